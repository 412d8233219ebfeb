"""What a model is made of: layers, shapes, parameters and memory, without making it."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from regard.bundle import outline
from regard.config import ModelConfig, RnnConfig, Seq2SeqConfig

BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}


@dataclass(frozen=True)
class Row:
    """A weight with its bias, if it has one, and how many layers have the like."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    times: int

    @property
    def parameters(self) -> int:
        return self.times * sum(torch.Size(shape).numel() for shape in self.shapes)


@dataclass(frozen=True)
class Summary:
    """A model in numbers. Memory is in bytes."""

    config: ModelConfig
    rows: tuple[Row, ...]

    @property
    def parameters(self) -> int:
        return sum(row.parameters for row in self.rows)

    @property
    def memory(self) -> dict[str, int]:
        return {dtype: self.parameters * size for dtype, size in BYTES.items()}

    @property
    def training_memory(self) -> int:
        """Weights, gradients and AdamW's two averages in float32; what a batch needs comes on top."""
        return self.parameters * 16

    @property
    def cache_per_position(self) -> int:
        """Keys and values in bfloat16 that each decoded position adds to a row; 0 for a model with none."""
        if isinstance(self.config, RnnConfig) or self.config.kind == "encoder":
            return 0
        layers = self.config.decoder_layers if isinstance(self.config, Seq2SeqConfig) else None
        return (layers or self.config.layers) * 2 * (self.config.kv_heads or self.config.heads) * self.config.key_width * BYTES["bfloat16"]

    def as_json(self) -> dict[str, Any]:
        return {
            "config": self.config.model_dump(mode="json"),
            "rows": [asdict(row) | {"parameters": row.parameters} for row in self.rows],
            "parameters": self.parameters,
            "memory": self.memory,
            "training_memory": self.training_memory,
            "cache_per_position": self.cache_per_position,
        }


def summarise(config: ModelConfig) -> Summary:
    """Counts every parameter of the model that a config describes."""
    model = outline(config)
    modules: dict[str, list[tuple[int, ...]]] = {}
    for name, parameter in model.named_parameters():
        modules.setdefault(re.sub(r"\.(weight|bias)$", "", name), []).append(tuple(parameter.shape))
    alike: dict[tuple[str, tuple[tuple[int, ...], ...]], int] = {}
    for name, shapes in modules.items():
        key = (re.sub(r"\.layers\.\d+\.", ".layers.*.", name), tuple(shapes))
        alike[key] = alike.get(key, 0) + 1
    return Summary(config, tuple(Row(name, shapes, times) for (name, shapes), times in alike.items()))


def show(summary: Summary, title: str, console: Console | None = None) -> None:
    """Prints a summary as a table."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("part", no_wrap=True)
    for column in ("shape + bias", "layers", "parameters"):
        table.add_column(column, justify="right", no_wrap=True)
    section = ""
    for row in summary.rows:
        if section and row.name.split(".")[0] != section:
            table.add_row()
        section = row.name.split(".")[0]
        shapes = " + ".join(" × ".join(map(str, shape)) for shape in row.shapes)
        table.add_row(row.name, shapes, f"× {row.times}" if row.times > 1 else "", f"{row.parameters:,}")
    memory = " · ".join(f"{readable(size)} in {dtype}" for dtype, size in summary.memory.items())
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    facts.add_row("parameters", Text(f"{summary.parameters:,}", style="bold"))
    facts.add_row("weights", memory)
    facts.add_row("training", f"{readable(summary.training_memory)} for weights, gradients and AdamW in float32, before any batch")
    if summary.cache_per_position:
        facts.add_row("decoding", f"{readable(summary.cache_per_position)} of cache for each position of a row, in bfloat16")
    (console or Console()).print(Group(Text(title, style="bold"), Text(describe(summary.config), style="dim"), "", table, "", facts))


def describe(config: ModelConfig) -> str:
    """The settings that tell one model from another, in a line."""
    what = {"seq2seq": "encoder-decoder", "lm": "decoder-only", "encoder": "encoder-only", "rnn": "recurrent encoder-decoder"}[config.kind]
    if isinstance(config, RnnConfig):
        attention = "additive attention" if config.attention == "additive" else "no attention"
        return f"{what}: {config.layers} {config.cell.upper()} layers, {config.width} wide, {attention}, vocabulary {config.vocabulary:,}"
    layers = f"{config.layers}"
    if isinstance(config, Seq2SeqConfig):
        layers += f" + {config.decoder_layers or config.layers}"
    heads = f"{config.heads} heads" + (f" on {config.kv_heads} of keys" if config.kv_heads not in (None, config.heads) else "")
    norm = f"{'RMSNorm' if config.norm == 'rms' else 'LayerNorm'} {config.norm_place}"
    return (
        f"{what}: {layers} layers, {config.width} wide, {heads}, feed-forward {config.feedforward} ({config.activation}), "
        f"{config.positions} positions, {norm}, {'tied' if config.tied else 'untied'} vocabulary of {config.vocabulary:,}"
    )


def readable(size: int) -> str:
    """Bytes as a person says them."""
    value, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:,.0f} {units[0]}" if units[0] == "B" else f"{value:,.1f} {units[0]}"

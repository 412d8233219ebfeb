"""Six encoder layers, ours beside torch.nn's and each of our backends, on the same numbers in the same run: forward and backward.

    python benchmarks/attention.py [--json FILE]

On a CPU only the ratios mean something. Contenders take turns, and the median of the rounds counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from regard.config import EncoderConfig
from regard.nn import using
from regard.nn.layers import Stack
from regard.nn.masks import Boundaries, Documents, Padding

WIDTH, HEADS, INNER, LAYERS = 512, 8, 2048, 6
CUDA = torch.cuda.is_available()
ROUNDS = 30 if CUDA else 5
SIZES = [(1024, 32), (256, 128), (64, 512)] if CUDA else [(16, 32), (4, 128), (1, 512)]


def lengths_of(rows: int, longest: int) -> Tensor:
    """Sentences of many lengths, as they come: lognormal, the longest fills its row."""
    torch.manual_seed(0)
    lengths = (torch.randn(rows) * 0.6).exp() * longest / 3
    return lengths.long().clamp(1, longest).index_fill(0, torch.tensor([0]), longest)


def contenders(rows: int, longest: int) -> dict[str, Callable[[], object]]:
    device = "cuda" if CUDA else "cpu"
    dtype = torch.bfloat16 if CUDA else torch.float32
    lengths = lengths_of(rows, longest)
    real = (torch.arange(longest)[None] < lengths[:, None]).to(device)
    x = torch.randn(rows, longest, WIDTH, device=device, dtype=dtype)
    config = EncoderConfig(
        vocabulary=1, layers=LAYERS, width=WIDTH, heads=HEADS, feedforward=INNER, norm_place="before", positions="none", dropout=0.0
    )
    ours = Stack(config).to(device, dtype)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, INNER, dropout=0.0, batch_first=True, norm_first=True)
    theirs = nn.TransformerEncoder(layer, LAYERS, norm=nn.LayerNorm(WIDTH)).to(device, dtype)

    def padded(backend: str) -> object:
        mask = Padding(real).build(longest, device=device)
        with using(backend):
            return _backward(ours(x, positions=torch.arange(longest, device=device)[None], mask=mask)[real], ours)

    def packed() -> object:
        edges = torch.cat((torch.zeros(1, dtype=torch.long), lengths.cumsum(0))).to(device, torch.int32)
        mask = Documents(Boundaries(edges, longest)).pack()
        tokens = x[real][None]
        with using("varlen"):
            return _backward(ours(tokens, positions=torch.arange(tokens.shape[1], device=device)[None], mask=mask), ours)

    found: dict[str, Callable[[], object]] = {
        "torch.nn.TransformerEncoder": lambda: _backward(theirs(x, src_key_padding_mask=~real)[real], theirs),
        "regard, explicit": lambda: padded("explicit"),
        "regard, sdpa": lambda: padded("sdpa"),
    }
    if CUDA:
        found["regard, varlen (packed)"] = packed
    return found


def _backward(output: Tensor, module: nn.Module) -> None:
    output.float().square().mean().backward()
    module.zero_grad(set_to_none=True)


def measure(run: Callable[[], object]) -> float:
    if CUDA:
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if CUDA:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    warnings.filterwarnings("ignore", message="enable_nested_tensor")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    table = Table(title=f"{LAYERS} encoder layers of {WIDTH}, forward and backward; time relative to torch.nn", title_justify="left")
    table.add_column("rows × longest")
    results: dict[str, dict[str, list[float]]] = {}
    for rows, longest in SIZES:
        runs = contenders(rows, longest)
        times: dict[str, list[float]] = {name: [] for name in runs}
        for run in runs.values():
            run()
        for _ in range(ROUNDS):
            for name, run in runs.items():
                times[name].append(measure(run))
        results[f"{rows} × {longest}"] = times
        if not table.rows:
            for name in runs:
                table.add_column(name, justify="right")
        base = statistics.median(next(iter(times.values())))
        cells = []
        for values in times.values():
            middle = statistics.median(values)
            spread = (max(values) - min(values)) / middle / 2
            cells.append(f"{middle / base:.2f} ({middle * 1000:.1f} ms ±{spread:.0%})")
        table.add_row(f"{rows} × {longest}", *cells)
    Console(width=150).print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()

"""A bundle as ONNX graphs: encoders whole; what writes, word by word with a cache. ONNX Runtime runs them, with any batch and length."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.bundle import outline
from regard.config import EncoderConfig, LanguageModelConfig, ModelConfig, RnnConfig, Seq2SeqConfig
from regard.interop import loops
from regard.interop.graphs import ReaderGraph, SourceGraph, TargetGraph, WriterGraph
from regard.interop.original import SAME, ExportError, Original, Report, in_batches, largest, needed
from regard.models import Encoder, LanguageModel, Network, Seq2Seq

OPSET = 20
CLOSE = 1e-4  # of logits
READER, SOURCE, TARGET, WRITER = "model.onnx", "encoder.onnx", "decoder-with-cache.onnx", "decoder-with-cache.onnx"
INLINE = 1_500_000_000  # bytes: larger weights lie in a file of their own


@dataclass(frozen=True)
class Input:
    """What a graph is given: an example of it, and the names of the sizes that may change."""

    name: str
    example: Tensor
    sizes: dict[int, str] = field(default_factory=dict)


def refuse(config: ModelConfig) -> None:
    """An error where there is no graph for such a model."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        needed(package)
    if isinstance(config, RnnConfig):
        raise ExportError("a recurrent model is not exported to onnx: its encoder reads word by word; it runs in regard alone")


def write(original: Original, out: Path) -> Report:
    """Writes the graphs, runs them, and tries them against the original."""
    model = spelled_out(original.network)
    if isinstance(model, Encoder):
        _write_reader(model, out)
    elif isinstance(model, Seq2Seq):
        _write_pair(model, out)
    else:
        assert isinstance(model, LanguageModel)
        _write_writer(model, out)
    loops.write(original, out, "onnx")
    return _tried(original, out).checked()


def spelled_out(model: Network) -> Network:
    """The same with attention as the formula itself, which every runtime has operators for."""
    same = outline(model.config, backend="explicit")
    same.load_state_dict(model.state_dict(), assign=True)
    return same.eval()


def _write_reader(model: Encoder, out: Path) -> None:
    rows, length = 2, min(5, model.config.context)
    sizes = {0: "rows", 1: "length"}
    outputs = ["states", "vector", *(["labels"] if model.classifier is not None else []),
               *(["words"] if model.masked_words is not None else [])]  # fmt: skip
    _save(ReaderGraph(model), [Input("ids", _ids(rows, length), sizes), Input("mask", _ones(rows, length), sizes)], outputs, out / READER)


def _write_pair(model: Seq2Seq, out: Path) -> None:
    rows, length, past, config = 2, 5, 3, model.config
    source = {0: "rows", 1: "source"}
    _save(
        SourceGraph(model),
        [Input("ids", _ids(rows, length), source), Input("mask", _ones(rows, length), source)],
        ["source_key", "source_value"],
        out / SOURCE,
    )
    shape = (config.decoder_layers or config.layers, rows, config.kv_heads or config.heads)
    _save(
        TargetGraph(model),
        [
            Input("ids", _ids(rows, 2), {0: "rows", 1: "new"}),
            *(Input(name, torch.randn(*shape, past, config.key_width), {1: "rows", 3: "past"}) for name in ("key", "value")),
            *(
                Input(f"source_{name}", torch.randn(*shape, length, config.key_width), {1: "rows", 3: "source"})
                for name in ("key", "value")
            ),
            Input("source_mask", _ones(rows, length), source),
        ],
        ["logits", "key_so_far", "value_so_far"],
        out / TARGET,
    )


def _write_writer(model: LanguageModel, out: Path) -> None:
    rows, new, past, config = 2, 2, 3, model.config
    shape = (config.layers, rows, config.kv_heads or config.heads, past, config.key_width)
    inputs = [
        Input("ids", _ids(rows, new), {0: "rows", 1: "new"}),
        Input("mask", _ones(rows, past + new), {0: "rows", 1: "so_far"}),
        *(Input(name, torch.randn(shape), {1: "rows", 3: "past"}) for name in ("key", "value")),
    ]
    if config.mask == "prefix":
        inputs.append(Input("prefix", torch.tensor([2])))
    _save(WriterGraph(model), inputs, ["logits", "key_so_far", "value_so_far"], out / WRITER)


def _ids(rows: int, length: int) -> Tensor:
    return torch.zeros(rows, length, dtype=torch.long)


def _ones(rows: int, length: int) -> Tensor:
    return torch.ones(rows, length, dtype=torch.long)


def _save(graph: nn.Module, inputs: Sequence[Input], outputs: Sequence[str], path: Path) -> None:
    """The graph as a file."""
    dims = {name: torch.export.Dim(name) for entry in inputs for name in entry.sizes.values()}
    shapes = [{place: dims[name] for place, name in entry.sizes.items()} or None for entry in inputs]
    large = sum(tensor.numel() * tensor.element_size() for tensor in graph.state_dict().values()) > INLINE
    with _quietly(), torch.no_grad():
        torch.onnx.export(
            graph.eval(),
            tuple(entry.example for entry in inputs),
            str(path),
            input_names=[entry.name for entry in inputs],
            output_names=list(outputs),
            dynamic_shapes=shapes,
            opset_version=OPSET,
            dynamo=True,
            external_data=large,
            verbose=False,
        )


def session(path: Path) -> Any:
    """The graph, ready to run on this machine's CPU."""
    runtime = needed("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


@torch.inference_mode()
def _tried(original: Original, folder: Path) -> Report:
    """With batches of one and of many, and word by word."""
    config, texts = original.config, len(original.rows)
    if isinstance(config, EncoderConfig):
        difference, same = _tried_reader(original, folder)
        return Report("an ONNX graph", texts, "logits", difference, CLOSE, same, SAME)
    difference = _tried_pair(original, folder) if isinstance(config, Seq2SeqConfig) else _tried_writer(original, folder)
    program = loops.program("onnx", config.kind)
    loop, outputs = program.Loop(folder, threads=torch.get_num_threads()), []
    for rows, written in in_batches(original.rows, original.written):
        outputs += loop.greedy(rows, [len(own) + 1 for own in written])
    same, others = original.compare(outputs)
    made = "ONNX graphs, encoder and decoder with cache" if isinstance(config, Seq2SeqConfig) else "an ONNX decoder with cache"
    return Report(made, texts, "logits", difference, CLOSE, same, SAME, others)


def _tried_reader(original: Original, folder: Path) -> tuple[float, int]:
    graph, model = session(folder / READER), original.encoder
    difference, same = 0.0, 0
    for (rows,) in in_batches(original.rows):
        tokens = original.padded(rows)
        assert tokens.real is not None
        names = [output.name for output in graph.get_outputs()]
        found = dict(zip(names, graph.run(None, {"ids": tokens.ids.numpy(), "mask": tokens.real.long().numpy()}), strict=True))
        states = model(tokens)
        ours = {"states": states, "vector": model.vectors(states, tokens)}
        if model.classifier is not None:
            ours["labels"] = model.classify(states, tokens)
        if model.masked_words is not None:
            ours["words"] = model.fill(states)
        assert ours.keys() == found.keys()
        for name, own in ours.items():
            difference = max(difference, largest(own, torch.from_numpy(found[name]), tokens.real if own.dim() == 3 else None))
        head = "labels" if "labels" in ours else "words" if "words" in ours else "vector"
        agree = ours[head].argmax(-1) == torch.from_numpy(found[head]).argmax(-1)
        same += int(agree.sum()) if agree.dim() == 1 else int((agree | ~tokens.real).all(1).sum())
    return difference, same


def _tried_pair(original: Original, folder: Path) -> float:
    source, target = session(folder / SOURCE), session(folder / TARGET)
    difference = 0.0
    for rows, targets in in_batches(original.rows, original.begun):
        read, begun = original.padded(rows), original.padded(targets)
        assert read.real is not None
        mask = read.real.long().numpy()
        keys, values = source.run(None, {"ids": read.ids.numpy(), "mask": mask})
        given = {"source_key": keys, "source_value": values, "source_mask": mask}
        steps = _word_by_word(target, begun.ids, keys.shape[:3], keys.shape[4], given)
        difference = max(difference, largest(original.network(read, begun), steps, begun.real))
    return difference


def _tried_writer(original: Original, folder: Path) -> float:
    graph, config = session(folder / WRITER), original.config
    assert isinstance(config, LanguageModelConfig)
    difference = 0.0
    for (rows,) in in_batches(original.rows):
        tokens = original.padded(rows)
        assert tokens.real is not None
        heads, prefix = config.kv_heads or config.heads, None
        given: dict[str, Any] = {"mask": tokens.real.long().numpy()}
        if config.mask == "prefix":  # the first word alone was given; the rest is what follows
            given["prefix"], prefix = np.array([1]), torch.ones(len(rows), dtype=torch.long)
        steps = _word_by_word(graph, tokens.ids, (config.layers, len(rows), heads), config.key_width, given)
        ours = original.network(tokens) if prefix is None else original.network(tokens, prefix)
        difference = max(difference, largest(ours, steps, tokens.real))
    return difference


def _word_by_word(graph: Any, ids: Tensor, shape: Sequence[int], width: int, given: dict[str, Any]) -> Tensor:
    """Logits (rows, length, vocabulary): of the first words at once, then of one after the other."""
    key = value = np.zeros((*shape, 0, width), np.float32)
    first = min(2, ids.shape[1])
    found = []
    for start, end in [(0, first), *((place, place + 1) for place in range(first, ids.shape[1]))]:
        more = given if "mask" not in given else given | {"mask": given["mask"][:, :end]}
        logits, key, value = graph.run(None, {"ids": ids[:, start:end].numpy(), "key": key, "value": value, **more})
        found.append(torch.from_numpy(logits))
    return torch.cat(found, 1)


@contextmanager
def _quietly() -> Iterator[None]:
    """Without what the exporter tells of itself."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)

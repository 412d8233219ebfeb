"""A trace as one JSON document, which the page, `regard view` and the server's /api/trace share. docs/trace.md defines it."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from regard.decoding.tree import Node
from regard.door.results import Written
from regard.door.schemes import Scheme, Schemes
from regard.door.trace_types import LabelOutput, Layer, Looks, Norm, Output, Search, Sentence, SubLayer, Target, Trace, Vectors, Word

FORMAT = 1
DIGITS = 6  # significant ones, of numbers that stand alone
HALF = 65504.0  # the largest number that float16 has
WEIGHTS_WHOLE = 2 << 20  # characters: where weights would take more they are written in half precision
DROPPED = ("inner", "scores", "vectors", "qkv")  # the order in which parts are left out of a file that would be too large

Type = Literal["float32", "float16", "int8", "bool"]
NUMPY: dict[str, str] = {"float32": "<f4", "float16": "<f2", "int8": "<i1", "bool": "<u1"}


def as_json(trace: Trace, *, most: int | None = None, remedy: str = "regard serve shows it") -> dict[str, Any]:
    """The document. `most`: characters that it may take; parts are left out until it fits, and it says which, and the remedy."""
    left_out: list[dict[str, str]] = []
    for part in DROPPED:
        if most is None or size(trace) <= most:
            break
        if _has(trace, part):
            trace = without(trace, part)
            left_out.append({"part": part, "why": f"all would be larger than {most / 1e6:.1f} MB; {remedy}"})
    return {
        "format": FORMAT,
        "model": {name: number(value) for name, value in trace.model.items()},
        "verb": trace.verb,
        "text": trace.text,
        "to": trace.to,
        "answer": _answer(trace.answer),
        "source": None if trace.source is None else _sentence(trace.source),
        "target": None if trace.target is None else _target(trace.target),
        "alignment": _array(trace.alignment, "float32"),
        "search": None if trace.search is None else _search(trace.search),
        "output": _output(trace.output),
        "attention": {kind: _looks(own) for kind, own in trace.attention.items()},
        "vectors": {stack: _vectors(own) for stack, own in trace.vectors.items()},
        "schemes": None if trace.schemes is None else _schemes(trace.schemes),
        "left_out": left_out,
    }


# Arrays


def array(values: Tensor, type: Type) -> dict[str, Any]:
    """Numbers as base64, little-endian, the last axis fastest; int8 with a scale for each row of the last axis."""
    record: dict[str, Any] = {"shape": list(values.shape), "type": type}
    values = values.detach().cpu()
    if type == "int8":
        scale = values.float().abs().amax(-1, keepdim=True) / 127
        values = (values.float() / scale.clamp(min=1e-30)).round()
        record["scale"] = _base64(scale.numpy(), "float32")
    elif type == "float16":
        values = values.float().clamp(-HALF, HALF)
    return record | {"data": _base64(values.numpy(), type)}


def _base64(values: np.ndarray[Any, Any], type: Type) -> str:
    return base64.b64encode(np.ascontiguousarray(values.astype(NUMPY[type])).tobytes()).decode("ascii")


def decoded(record: dict[str, Any]) -> Tensor:
    """The numbers of an array again, as the page reads them."""
    found = np.frombuffer(base64.b64decode(record["data"]), NUMPY[record["type"]]).reshape(record["shape"])
    if record["type"] == "bool":
        return torch.from_numpy(found.astype(bool))
    values = torch.from_numpy(found.astype(np.float32))
    if record["type"] == "int8":
        scale = np.frombuffer(base64.b64decode(record["scale"]), "<f4").astype(np.float32)
        values = values * torch.from_numpy(scale).view(*record["shape"][:-1], 1)
    return values


def _array(values: Tensor | None, type: Type) -> dict[str, Any] | None:
    return None if values is None else array(values, type)


def number(value: Any) -> Any:
    """A number to six significant digits; what is no number is null."""
    if isinstance(value, bool) or not isinstance(value, float):
        return value
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


def _numbers(values: Sequence[float] | Tensor) -> list[Any]:
    return [number(float(value)) for value in values]


# How large it will be


def size(trace: Trace) -> int:
    """Characters that the arrays of the document take, about; told before anything is written."""
    return sum(math.ceil(values.numel() * BYTES[type] / 3) * 4 for values, type in _arrays(trace)) + 200 * len(_nodes(trace))


BYTES: dict[str, int] = {"float32": 4, "float16": 2, "int8": 1, "bool": 1}


def _nodes(trace: Trace) -> list[Node]:
    return [] if trace.search is None else trace.search.nodes


def _arrays(trace: Trace) -> list[tuple[Tensor, Type]]:
    found: list[tuple[Tensor | None, Type]] = [(trace.alignment, "float32")]
    for own in trace.attention.values():
        found += [(own.weights, _weights_type(own)), (own.mask, "bool")]
        found += [(values, "float16") for values in (own.scores, own.q, own.k, own.v)]
    for vectors in trace.vectors.values():
        found += [(values, "float16") for values in (vectors.embeddings, vectors.positions, vectors.states, vectors.contexts)]
        for layer in vectors.layers:
            found.append((layer.input, "float16"))
            for part in (layer.attention, layer.feedforward, layer.cross):
                if part is not None:
                    found += [(part.output, "float16"), (part.inner, "int8")]
                    found += [(values, "float32") for values in vars(part.norm).values()] if part.norm else []
    for scheme in trace.schemes.each.values() if trace.schemes else ():
        found += [(scheme.vectors, "float16"), (scheme.bias, "float32")]
    return [(values, type) for values, type in found if values is not None]


def _weights_type(own: Looks) -> Type:
    return "float32" if own.weights is None or own.weights.numel() * 16 / 3 <= WEIGHTS_WHOLE else "float16"


def _has(trace: Trace, part: str) -> bool:
    attention, vectors = trace.attention.values(), trace.vectors.values()
    if part == "inner":
        return any(layer.feedforward.inner is not None for own in vectors for layer in own.layers)
    if part == "vectors":
        return bool(trace.vectors)
    return any((own.scores if part == "scores" else own.q) is not None for own in attention)


def without(trace: Trace, part: str) -> Trace:
    """The same trace less one of its larger parts."""
    if part == "vectors":
        return replace(trace, vectors={})
    if part == "inner":
        return replace(trace, vectors={stack: _no_inner(own) for stack, own in trace.vectors.items()})

    def less(own: Looks) -> Looks:
        return replace(own, scores=None) if part == "scores" else replace(own, q=None, k=None, v=None)

    return replace(trace, attention={kind: less(own) for kind, own in trace.attention.items()})


def _no_inner(own: Vectors) -> Vectors:
    return replace(own, layers=tuple(replace(layer, feedforward=replace(layer.feedforward, inner=None)) for layer in own.layers))


# Each part of the document


def _answer(answer: Any) -> dict[str, Any]:
    if isinstance(answer, Tensor):
        return {"width": answer.shape[-1], "vector": array(answer, "float32")}
    if not isinstance(answer, Written):
        return _rounded(answer.as_json())
    own = {name: value for name, value in answer.as_json().items() if name not in ("source", "alternatives")}
    return _rounded(own) | {"alternatives": [_answer(other) for other in answer.alternatives]}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(own) for name, own in value.items()}
    return [_rounded(own) for own in value] if isinstance(value, list | tuple) else number(value)


def _sentence(own: Sentence) -> dict[str, Any]:
    return {name: list(getattr(own, name)) for name in ("tokens", "ids", "special", "words")}


def _target(own: Target) -> dict[str, Any]:
    after = _sentence(own.next)
    following = {"next": after["tokens"], "next_ids": after["ids"], "next_special": after["special"], "next_words": after["words"]}
    return _sentence(own) | {"given": own.given} | following


def _looks(own: Looks) -> dict[str, Any]:
    record: dict[str, Any] = {name: getattr(own, name) for name in ("kind", "query", "key")}
    record |= {name: list(getattr(own, name)) for name in ("layers", "heads", "kv", "rows")}
    record |= {"weights": _array(own.weights, _weights_type(own)), "mask": _array(own.mask, "bool")}
    return record | {name: _array(getattr(own, name), "float16") for name in ("scores", "q", "k", "v")}


def _vectors(own: Vectors) -> dict[str, Any]:
    record: dict[str, Any] = {"rows": list(own.rows), "embeddings": _array(own.embeddings, "float16")}
    if own.states is not None:
        return record | {"states": array(own.states, "float16"), "contexts": _array(own.contexts, "float16")}
    record |= {"positions": _array(own.positions, "float16"), "embedding_norm": _norm(own.embedding_norm)}
    return record | {"layers": [_layer(layer) for layer in own.layers], "norm": _norm(own.norm)}


def _layer(own: Layer) -> dict[str, Any]:
    parts = {name: None if part is None else _sublayer(part) for name, part in (("attention", own.attention), ("cross", own.cross))}
    inner = {"inner": _array(own.feedforward.inner, "int8")}
    return {"layer": own.layer, "input": _array(own.input, "float16"), **parts, "feedforward": _sublayer(own.feedforward) | inner}


def _sublayer(own: SubLayer) -> dict[str, Any]:
    return {"output": _array(own.output, "float16"), "norm": _norm(own.norm)}


def _norm(own: Norm | None) -> dict[str, Any] | None:
    return None if own is None else {"weight": array(own.weight, "float32"), "bias": _array(own.bias, "float32")}


def _output(own: Output | LabelOutput | None) -> dict[str, Any] | None:
    if own is None:
        return None
    if isinstance(own, LabelOutput):
        figures = {"logits": _numbers(own.logits), "probabilities": _numbers(own.logits.softmax(-1))}
        return {"labels": list(own.labels)} | figures | {"pooled": array(own.pooled, "float16")}
    record: dict[str, Any] = {"places": list(own.places)}
    for name, field in (("tokens", "token"), ("ids", "id"), ("logits", "logit"), ("probabilities", "probability")):
        record[name] = [[number(getattr(word, field)) for word in words] for words in own.words]
    record["chosen"] = None if own.chosen is None else [_word(word) for word in own.chosen]
    return record | {"logsumexp": _numbers(own.logsumexp), "entropy": _numbers(own.entropy)}


def _word(word: Word) -> dict[str, Any]:
    return {name: number(value) for name, value in vars(word).items()}


def _search(own: Search) -> dict[str, Any]:
    grouped = any(node.group for node in own.nodes)
    return {
        "method": own.method,
        "settings": dict(own.settings),
        "rules": dict(own.rules),
        "positions": own.tree.positions,
        "nodes": [_node(node, token, grouped) for node, token in zip(own.nodes, own.tokens, strict=True)],
        "finished": own.tree.finished,
        "best": own.tree.best,
    }


def _node(node: Node, token: str, grouped: bool) -> dict[str, Any]:
    record: dict[str, Any] = {"parent": node.parent, "position": node.position, "token": token, "id": node.word}
    record |= {"log_probability": number(node.log_probability), "total": number(node.total), "state": node.state, "reason": node.reason}
    if abs(node.rank - node.total) > 1e-6:
        record["rank"] = number(node.rank)
    optional = {"chance": node.chance, "rule": node.rule, "bound": node.bound, "score": node.score, "place": node.place}
    record |= {name: number(value) for name, value in optional.items() if value is not None}
    if grouped:
        record["group"] = node.group
    if node.state == "finished":
        record["ended"] = node.ended
    return record | {"best": node.best}


def _schemes(own: Schemes) -> dict[str, Any]:
    return {"own": own.own} | {name: _scheme(scheme) for name, scheme in own.each.items()}


def _scheme(own: Scheme) -> dict[str, Any]:
    if own.vectors is None or own.similarity is None:
        return {"bias": _array(own.bias, "float32"), "distance": list(own.distance)}
    alike = {name: _numbers(values) for name, values in vars(own.similarity).items()}
    return {"vectors": array(own.vectors, "float16"), "similarity": {"distance": list(own.distance)} | alike}

"""What a notebook shows of a result is short, says what it is, and is never megabytes of numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from regard.door import Model
from regard.door.shown import shown
from regard.evaluation.compare import paired_bootstrap

Models = Callable[[str], Model]
MOST = 1000  # characters
LONG = "1 2 3 4 5 6 7 8 9 " * 3


def results(model: Models) -> Iterator[tuple[str, Any]]:
    translator, writer, critic, guesser = map(model, ("translator", "writer", "critic", "guesser"))
    for each in (translator, writer, critic, guesser):
        yield f"model {each.name}", each
    yield "translate", translator.translate(LONG, "back", n_best=4, attention=True)
    yield "generate", writer.generate("the cat", samples=3, max_length=16, seed=1, attention=True)
    yield "classify", critic.classify("a lovely story")
    yield "fill", guesser.fill("1 [MASK] 3 [MASK] [MASK]", choices=40)
    yield "score", translator.score(LONG, LONG, to="back")
    yield "vectors", critic.vectors("a lovely story")
    for verb, of, text in (
        ("translate", translator, LONG), ("generate", writer, "the cat"), ("classify", critic, "a lovely story"),
        ("fill", guesser, "1 [MASK] 3"), ("embed", critic, "a lovely story"), ("translate", model("recurrent"), "1 2 3"),
    ):  # fmt: skip
        options: Any = {"n_best": 4, "to": "back"} if of is translator else {}
        yield f"trace {verb} {of.config.kind}", of.trace(text, verb=verb, **options)


def parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A result, and all dataclasses that are part of it."""
    if is_dataclass(value) or isinstance(value, Model):
        yield name, value
    if is_dataclass(value):
        for each in fields(value):
            yield from parts(f"{name}.{each.name}", getattr(value, each.name))
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from parts(f"{name}[{key!r}]", each)
    elif isinstance(value, tuple):
        for each in value[:2]:
            yield from parts(name, each)


def test_every_result_and_every_part_of_it_is_short(model: Models) -> None:
    seen = set()
    for name, result in results(model):
        for path, part in parts(name, result):
            said = repr(part)
            assert 0 < len(said) < MOST, f"{path}: {len(said):,} characters"
            assert type(part).__name__ in said
            assert "tensor(" not in said
            seen.add(type(part).__name__)
    assert seen >= {"Model", "Written", "Attention", "Labelled", "Filled", "Scored", "WordVectors", "Trace", "Sentence", "Target", "Looks",
                    "Vectors", "Layer", "SubLayer", "Norm", "Output", "LabelOutput", "Search", "Schemes", "Scheme"}  # fmt: skip


def test_a_trace_says_what_was_asked_and_what_there_is(model: Models) -> None:
    trace = model("translator").trace("1 2 3", "back", parts=("weights", "search"))
    first, *lines = repr(trace).splitlines()
    assert first == f"Trace of {model('translator').name!r}: translate '1 2 3' to 'back' gives {str(trace.answer)!r}".replace(
        repr(model("translator").name), shown(model("translator").name)
    )
    has = dict(line.strip().split(": ", 1) for line in lines)
    assert list(has) == ["source", "target", "search", "alignment", "attention"]
    weights = trace.attention["cross"].weights
    assert weights is not None
    assert f"cross Tensor{list(weights.shape)}" in has["attention"]


def test_evaluations_and_comparisons(model: Models, tmp_path: Any) -> None:
    (tmp_path / "pairs.tsv").write_text("".join(f"{n} {n + 1}\t{n + 1} {n}\n" for n in range(8)))
    found = model("translator").evaluate(tmp_path / "pairs.tsv", to="back")
    assert len(repr(found)) < MOST
    assert "bleu=" in repr(found)
    texts = [f"a b c d {number}" for number in range(60)]
    assert len(repr(paired_bootstrap(texts, texts[::-1], texts, names=("one", "other")))) < MOST


def test_nothing_is_left_out_without_saying_so() -> None:
    assert shown(("a", "b")) == "('a', 'b')"
    assert shown(("a",)) == "('a',)"
    assert shown(["a", "b", "c", "d"]) == "['a', 'b', 'c', … 4 in all]"
    assert shown({"a": [1], "b": 0.123456}) == "{'a': list(…), 'b': 0.1235}"
    assert shown("x" * 1234) == f"{'x' * 30!r}… 1,234 characters"
    assert shown(torch.zeros(2, 3)) == "Tensor[2, 3]"
    assert shown(None) == "None"

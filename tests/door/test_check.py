"""The laws tried on a bundle: all hold for what we trained, and each is noticed when it is broken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.bundle import save_bundle
from regard.data.batch import Tokens
from regard.decoding.products import LINEAR, Int8Product, available
from regard.door import load
from regard.door.check import Law, _together_in_int8, check
from regard.models import LanguageModel, RnnSeq2Seq, Seq2Seq
from tests.families import FAMILIES, small

Bundles = Callable[[str], Path]
COMMON = {"batch-invariant", "padding-invariant", "saved = loaded"}
WRITING = {"cached = uncached", "causal", "beam 1 = greedy", "score = rescoring"}


def names(laws: list[Law]) -> set[str]:
    return {law.name.partition(":")[0] for law in laws}


@pytest.mark.parametrize("name", ["translator", "recurrent", "recurrent_plain", "apart", "writer", "speller", "critic", "guesser"])
def test_trained_bundles_keep_every_law(bundle: Bundles, name: str) -> None:
    laws = check(bundle(name))
    assert [law.name for law in laws if not law.holds] == []
    wanted = COMMON | {"tokenizer"} | (set() if name in ("critic", "guesser") else WRITING)
    wanted |= set() if name.startswith("recurrent") else {"sdpa = explicit"}
    wanted |= {"source tokenizer"} if name == "apart" else set()
    assert names(laws) == wanted


@pytest.mark.parametrize(
    ("name", "settings"), [*((name, {}) for name in FAMILIES), ("gpt2", {"mask": "prefix"}), ("llama-tiny", {"window": 4})]
)
def test_bundles_without_a_tokenizer(tmp_path: Path, name: str, settings: dict[str, Any]) -> None:
    save_bundle(small(name, **settings).float(), tmp_path / "b")
    laws = check(tmp_path / "b")
    assert [law.name for law in laws if not law.holds] == []
    assert "tokenizer" not in names(laws)


def test_a_small_context(tmp_path: Path) -> None:
    for name in ("gpt2", "transformer-base", "bert-base"):
        save_bundle(small(name, context=6).float(), tmp_path / name)
        assert all(law.holds for law in check(tmp_path / name))


def broken_by(monkeypatch: pytest.MonkeyPatch, owner: Any, method: str, change: Callable[[Any], Any], folder: Path) -> set[str]:
    """The laws that no longer hold when what a method gives is changed."""
    was = getattr(owner, method)
    monkeypatch.setattr(owner, method, lambda self, *given, **more: change(was(self, *given, **more)))
    return names([law for law in check(folder) if not law.holds])


def test_a_cache_that_forgets_is_noticed(bundle: Bundles, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = broken_by(monkeypatch, LanguageModel, "step", lambda logits: logits.roll(1, -1), bundle("writer"))
    assert {"cached = uncached", "score = rescoring", "beam 1 = greedy"} <= broken
    assert "padding-invariant" not in broken


def test_a_row_that_sees_its_neighbour_is_noticed(bundle: Bundles, monkeypatch: pytest.MonkeyPatch) -> None:
    def mixed(states: Tensor) -> Tensor:
        return states + 0.01 * states.mean(0, keepdim=True) * (states.shape[0] > 1)

    assert "batch-invariant" in broken_by(monkeypatch, Seq2Seq, "read", mixed, bundle("translator"))


def test_a_word_that_sees_the_next_is_noticed(bundle: Bundles, monkeypatch: pytest.MonkeyPatch) -> None:
    def ahead(states: Tensor) -> Tensor:
        return states + states.sum(1, keepdim=True)

    assert "causal" in broken_by(monkeypatch, RnnSeq2Seq, "states", ahead, bundle("recurrent"))


def test_padding_that_counts_is_noticed(bundle: Bundles, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = Seq2Seq.forward
    monkeypatch.setattr(Seq2Seq, "forward", lambda self, source, target: forward(self, Tokens(source.ids), target))
    assert {"padding-invariant", "batch-invariant"} <= names([law for law in check(bundle("translator")) if not law.holds])


@pytest.mark.skipif(not available(Int8Product), reason="this PyTorch has no int8 kernels for this CPU")
def test_a_scale_for_a_whole_batch_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """In int8, which is what the translator writes in by default; float32 knows nothing of it."""
    laws = check("translator", device="cpu", precision="int8")
    assert "batch-invariant in int8" in names([law for law in laws if law.holds])

    def by_batch(self: Int8Product, x: Tensor) -> Tensor:
        times = x.abs().amax()
        product = LINEAR(x / times, self._unit, self._zero, self.laid)
        return product * times if self.bias is None else torch.lerp(self.bias, product, times)

    monkeypatch.setattr(Int8Product, "_by_row", by_batch)
    monkeypatch.setattr(Int8Product, "fit", Int8Product.forget)
    assert not _together_in_int8(load("translator", device="cpu", precision="int8")).holds


def test_what_is_not_saved_as_it_was_is_noticed(bundle: Bundles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.door.check.read_tensors", lambda folder: {})
    assert names([law for law in check(bundle("critic")) if not law.holds]) == {"saved = loaded"}


def test_numbers_that_are_none_hold_no_law() -> None:
    assert not Law("x", float("nan"), 1.0).holds
    assert Law("x", 0.5, 1.0).as_json() == {"name": "x", "difference": 0.5, "allowed": 1.0, "holds": True}

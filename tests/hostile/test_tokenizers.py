"""Tokenizers that come with a model from anywhere: one that kills, hangs or fails whoever uses it is refused when it is loaded."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from regard.errors import BundleError
from regard.recipe import TokenizerSettings
from regard.shipped import shipped
from regard.text import trial
from regard.text.tokenizer import FOREIGN, Tokenizer
from regard.worker import Worker
from tests.door.talker import talker
from tests.hostile.test_worker import LINUX

SENTENCES = ["The cat sat on the mat.", "It cost 3.14, didn't it?", "abcdefghijklmnopqrstuvwxyz"] * 3


@pytest.fixture(autouse=True)
def _untried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(trial, "_tried", set())


@pytest.fixture(autouse=True, scope="module")
def _soon() -> Iterator[None]:
    """So that nobody waits for what takes all it may."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial, "_worker", Worker("regard.text.trial_work", 0.5, 256 << 20))
        yield


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> str:
    return Tokenizer.train(SENTENCES, TokenizerSettings(kind="bpe", size=300)).to_json()


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> str:
    return (talker(tmp_path_factory.mktemp("talker")) / "tokenizer.json").read_text(encoding="utf-8")


def changed(content: str, change: Callable[[dict[str, Any]], None]) -> str:
    """The same tokenizer, with something else in what the library reads."""
    start, end = "", 0
    if content.startswith(FOREIGN):
        _, end = json.JSONDecoder().raw_decode(content, len(FOREIGN))
        start = content[:end]
    library = json.loads("{" + content[end:].lstrip(" ,") if start else content)
    change(library)
    return f"{start},{json.dumps(library)[1:]}" if start else json.dumps(library)


def growing(times: int, letter: str = "a") -> Callable[[dict[str, Any]], None]:
    def change(library: dict[str, Any]) -> None:
        each = {"type": "Replace", "pattern": {"String": letter}, "content": 2 * letter}
        library["normalizer"] = {"type": "Sequence", "normalizers": [each] * times}

    return change


def mapped(library: dict[str, Any]) -> None:
    library["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(b"\x08\0\0\0" + b"\xff" * 60).decode()}


def backtracking(library: dict[str, Any]) -> None:
    library["pre_tokenizer"] = {"type": "Split", "pattern": {"Regex": r"(a|a|aa)+$(?<=b)"}, "behavior": "Isolated", "invert": False}


def growing_back(library: dict[str, Any]) -> None:
    each = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
    library["decoder"] = {"type": "Sequence", "decoders": [library["decoder"], {"type": "Fuse"}, *[each] * 6]}


def speechless(library: dict[str, Any]) -> None:
    library["model"] = {"type": "WordLevel", "vocab": {"<pad>": 0, "<start>": 1, "<end>": 2, "<mask>": 3}, "unk_token": "nobody"}
    library["added_tokens"] = library["added_tokens"][:4]


CHANGES = {
    "letters that double": growing(24),
    "letters that double for ever": growing(31, "e"),
    "a map of characters that is none": mapped,
    "an expression that never ends": backtracking,
    "text that grows": growing_back,
    "a token for what is unknown that it has not": speechless,
}
OF_OURS = "a token for what is unknown that it has not"


@LINUX
@pytest.mark.parametrize("what", CHANGES)
def test_it_is_refused_when_it_is_loaded(what: str, ours: str, foreign: str, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(changed(ours if what == OF_OURS else foreign, CHANGES[what]), encoding="utf-8")
    for _ in range(2 if what == OF_OURS else 1):  # nor is it let in because it was tried
        with pytest.raises(BundleError) as refused:
            Tokenizer.load(file)
        assert str(file) in str(refused.value)
        assert "\n" not in str(refused.value)
    file.write_text(ours, encoding="utf-8")
    assert Tokenizer.load(file).to_json() == ours


def test_one_is_tried_once(ours: str, foreign: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    ask = Worker.ask
    monkeypatch.setattr(Worker, "ask", lambda worker, what: (asked.append(worker.module), ask(worker, what))[1])
    for name, content in (("ours", ours), ("foreign", foreign), ("copy", ours)):
        (tmp_path / name).write_text(content, encoding="utf-8")
        Tokenizer.load(tmp_path / name)
    assert asked == ["regard.text.trial_work"] * 2
    monkeypatch.setattr(trial, "_tried", set())  # as in another process
    Tokenizer.load(tmp_path / "ours")
    assert len(asked) == 2
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "another"))
    Tokenizer.load(tmp_path / "ours")
    assert len(asked) == 3


def test_what_comes_with_regard_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worker, "ask", None)
    for folder in shipped().values():
        Tokenizer.load(folder / "tokenizer.json")


def test_without_a_cache_it_is_tried_all_the_same(ours: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "file" / "cache"))
    (tmp_path / "tokenizer.json").write_text(ours, encoding="utf-8")
    for _ in range(2):
        assert Tokenizer.load(tmp_path / "tokenizer.json").to_json() == ours

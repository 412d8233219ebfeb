"""`regard view`: a page in one file, and pictures."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regard.door import Model
from tests.cli.running import run

Bundles = Callable[[str], Path]


def document(page: Path) -> Any:
    found = re.search(r'<script type="application/json" id="trace">(.*?)</script>', page.read_text())
    assert found is not None
    return json.loads(found[1])


@pytest.mark.parametrize(
    ("name", "arguments", "verb"),
    [
        ("translator", ["3 1 4", "--to", "back", "--n-best", "2"], "translate"),
        ("recurrent", ["3 1 4"], "translate"),
        ("writer", ["the cat", "--max-length", "5", "--temperature", "0"], "generate"),
        ("critic", ["a lovely film"], "classify"),
        ("guesser", ["the [MASK] sat"], "fill"),
        ("guesser", ["the cat sat", "--verb", "embed"], "embed"),
    ],
)
def test_a_page_for_every_family(bundle: Bundles, tmp_path: Path, name: str, arguments: list[str], verb: str) -> None:
    page = tmp_path / "out" / "page.html"
    page.parent.mkdir()
    done = run("view", *arguments, "--model", bundle(name), "--out", page)
    assert (done.code, done.out) == (0, "")
    assert re.search(rf"wrote {re.escape(str(page))}, \d\.\d MB; open it in a browser", done.err)
    found = document(page)
    assert found["verb"] == verb
    assert found["text"] == arguments[0]
    assert "/" not in found["model"]["name"]
    assert page.stat().st_size < 3_000_000
    text = page.read_text()
    assert str(tmp_path.parent) not in text
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!data:|#)""", text.partition('<script type="module">')[0])


def test_it_says_what_the_model_says(bundle: Bundles, model: Callable[[str], Model], tmp_path: Path) -> None:
    run("view", "3 1 4 1", "--to", "back", "--model", bundle("translator"), "--out", tmp_path / "page.html", "--beam-size", "3")
    found = document(tmp_path / "page.html")
    wanted = model("translator").translate("3 1 4 1", "back", beam_size=3)
    assert found["answer"]["text"] == wanted.text
    assert found["search"]["settings"]["size"] == 3
    assert found["to"] == "back"
    assert found["left_out"] == []


@pytest.mark.parametrize(
    ("name", "arguments", "outputs"),
    [
        ("translator", ["3 1 4", "--to", "back"], 4),
        ("translator", ["3 1 4", "--to", "back", "--beam-size", "3"], 3),
        ("translator", ["3 1 4", "--to", "back", "--beam-size", "8"], 4),
        ("translator", ["3 1 4", "--to", "back", "--beam-size", "1"], 1),
        ("translator", ["3 1 4", "--to", "back", "--n-best", "1"], 1),
        ("translator", ["3 1 4", "--to", "back", "--n-best", "6"], 6),
        ("translator", ["3 1 4", "--to", "back", "--temperature", "1"], 1),
        ("writer", ["the cat", "--max-length", "5"], 1),
        ("writer", ["the cat", "--max-length", "5", "--beam-size", "2"], 2),
    ],
)
def test_what_else_could_have_been_said(bundle: Bundles, tmp_path: Path, name: str, arguments: list[str], outputs: int) -> None:
    page = tmp_path / "page.html"
    assert run("view", *arguments, "--model", bundle(name), "--out", page).code == 0
    answer = document(page)["answer"]
    texts = [answer["text"], *(other["text"] for other in answer["alternatives"])]
    assert len(texts) == outputs
    scores = [answer["score"], *(other["score"] for other in answer["alternatives"])]
    assert scores == sorted(scores, reverse=True)


def test_pictures_alone(bundle: Bundles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("view", "3 1 4", "--to", "back", "--model", bundle("translator"), "--png", "pictures")
    assert done.code == 0
    assert "to pictures" in done.err
    kinds = {f"attention-{kind}.png" for kind in ("encoder", "decoder", "cross")}
    assert {path.name for path in Path("pictures").iterdir()} == kinds | {"alignment.png", "entropy.png", "positions.png"}
    assert not Path("page.html").exists()
    assert run("view", "3 1", "--to", "back", "--model", bundle("translator"), "--png", "drawn", "--svg", "--out", "both.html").code == 0
    assert {path.suffix for path in Path("drawn").iterdir()} == {".svg"}
    assert Path("both.html").exists()


def test_a_line_of_standard_input(bundle: Bundles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("view", "--to", "back", "--model", bundle("translator"), stdin="4 5\n6 7\n").code == 0
    assert document(Path("page.html"))["text"] == "4 5"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["3 1 4"], 1, "say which with to="),
        (["3 1", "--to", "back", "--svg"], 2, "say where with --png DIR"),
        (["3 1", "--to", "back", "--verb", "sing"], 1, "no trace of 'sing'"),
        (["3 1", "--to", "back", "--verb", "fill"], 1, "but not fill"),
        (["1 2 3 " * 40, "--to", "back"], 1, "trace a shorter one"),
        (["3 1", "--to", "back", "--temperature", "1", "--beam-size", "2"], 1, "choose one of the two"),
    ],
)
def test_what_goes_wrong_is_said(
    bundle: Bundles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("view", *arguments, "--model", bundle("translator"))
    assert done.code == code
    assert message in re.sub(r"[│\s]+", " ", done.err)
    assert not list(tmp_path.glob("*.html"))

"""Where rows come from, and how they are split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regard.recipe import Recipe, parse_recipe
from regard.text.sieve import Sieve, learned_from
from regard.text.sources import blocks, held_out, sources_of


def recipe(task: str, **data: Any) -> Recipe:
    return parse_recipe({"task": task, "data": data})


def test_one_text_is_split_at_a_character(tmp_path: Path) -> None:
    """As the benchmarks of language models have it: the first nine tenths of all characters, wherever a line ends."""
    text = "".join(f"line {number} of a text\n" for number in range(137))
    (tmp_path / "a.txt").write_text(text)
    train, dev = sources_of(recipe("lm", train=str(tmp_path / "a.txt"), unit="file", dev_share=0.1), None)
    cut = int(len(text) * 0.9)
    assert "".join(blocks(train[0].rows())) == text[:cut]
    assert "".join(blocks(dev[0].rows())) == text[cut:]


def test_lines_are_split_by_what_is_learned_from(tmp_path: Path) -> None:
    """One source with many translations stands on one side only."""
    lines = [f"Source number {number % 100}{mark}\ttarget {number}" for number in range(400) for mark in ".!"]
    (tmp_path / "a.tsv").write_text("\n".join(lines))
    train, dev = sources_of(recipe("translate", train=str(tmp_path / "a.tsv"), dev_share=0.2), None)
    one, other = ({learned_from(row, "translate") for row in part[0].rows()} for part in (train, dev))
    assert not one & other
    assert len(one | other) == 100
    assert 8 <= len(other) <= 35


def test_rows_of_dev_and_test_are_held_out(tmp_path: Path) -> None:
    for name, content in {"train": "a\tb\nB\tc\nd\te\n\tf\nd\te\n", "dev": "A.\tx\n", "test": "b\ty\n\tz\n"}.items():
        (tmp_path / f"{name}.tsv").write_text(content)
    files = {name: f"{name}.tsv" for name in ("train", "dev", "test")}
    wanted = recipe("translate", **files, filter={"drop_duplicates": True})
    train, _ = sources_of(wanted, tmp_path)
    sieve = Sieve(wanted.data, "translate", held_out(wanted, tmp_path))
    reasons = [sieve.reason(row, train[0].file) for row in train[0].whole_rows]
    assert reasons == ["in dev or test", "in dev or test", None, "a duplicate"]
    assert held_out(recipe("translate", **files, keep_apart=False), tmp_path) == frozenset()
    assert held_out(recipe("lm", train="train.tsv", test="missing.txt", unit="file"), tmp_path) == frozenset()

"""A check reads to the end whatever is wrong, and names each kind of trouble with file, line and remedy."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from regard.recipe import DataFile, Task
from regard.text.check import KINDS, Report, check


def checked(
    folder: Path, content: str | bytes, task: Task = "translate", dev: str | None = None, name: str = "a.tsv", **more: Any
) -> Report:
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    against = []
    if dev is not None:
        (folder / "dev.tsv").write_text(dev)
        against = [DataFile(path="dev.tsv")]
    return check([DataFile(path=name)], task, against, folder, **more)


def lines_of(report: Report, kind: str) -> list[int]:
    """The line numbers of the first findings of a kind."""
    return [int(place.split(":")[1].split()[0]) for place in report.found[kind].first]


def test_a_clean_corpus(tmp_path: Path) -> None:
    report = checked(tmp_path, "one two\tuno\nthree\ttre quattro cinque\n", dev="four\tsei\n")
    assert not report.found
    assert report.rows == {"a.tsv": 2}
    assert report.against == {"dev.tsv": 1}
    assert vars(report.sides["source"]) == {"words": 3, "characters": 12, "most_words": 2, "most_characters": 7}
    assert report.sides["target"].most_words == 3
    assert report.lines() == [
        "a.tsv: 2 rows",
        "  source: 3 words, 12 characters; mean 1.5 words, 6.0 characters; largest 2 words, 7 characters",
        "  target: 4 words, 21 characters; mean 2.0 words, 10.5 characters; largest 3 words, 18 characters",
        "checked against dev.tsv: 1 rows",
        "nothing wrong was found",
    ]


def test_every_kind_of_trouble_in_pairs(tmp_path: Path) -> None:
    rows = [
        b"fine\tbene",
        b"caf\xe9\tbar",  # 2: not UTF-8
        b"no tab here",  # 3: columns
        b"\tvuoto",  # 4: empty
        b"w " * 1001 + b"\t" + b"v " * 1001,  # 5: long
        b"w" * 10_001 + b"\tv",  # 6: long
        b"one two\t" + b"v " * 11,  # 7: ratio
        b"one\t" + b"v " * 10,  # 8: short enough
        b"Roma\tRoma",  # 9: same
        b"fine\tbene",  # 10: duplicate
        b"fine\taltro",  # 11: only the source again
        b"bell\x07\tbar",  # 12: stray
        "left\tover\ufffd".encode(),  # 13: stray
        b"seen  Before\tvisto",  # 14: overlap
        b"",  # 15: empty
    ]
    report = checked(tmp_path, b"\n".join(rows) + b"\n", dev="Seen before\tx\nnew\ty\n")
    assert set(report.errors) == {"utf-8", "columns"}
    assert set(report.warnings) == {"empty", "long", "ratio", "same", "duplicate", "overlap", "stray"}
    expected = {"utf-8": [2], "columns": [3], "empty": [4, 15], "long": [5, 5, 6], "ratio": [7], "same": [9], "duplicate": [10]}
    assert {kind: lines_of(report, kind) for kind in expected} == expected
    assert lines_of(report, "stray") == [12, 13]
    path = tmp_path / "a.tsv"
    assert report.found["utf-8"].first == [f"{path}:2 not UTF-8 (byte 4 is 0xE9)"]
    assert report.found["columns"].first == [f"{path}:3 1 column where 2 are wanted (with a tab between them)"]
    assert report.found["duplicate"].first == [f"{path}:10 stands in {path}:1"]
    assert report.found["overlap"].first == [f"{tmp_path / 'dev.tsv'}:1 stands in {path}:14"]
    assert report.found["ratio"].first == [f"{path}:7 (2 words to 11)"]
    assert report.rows == {"a.tsv": 13}
    shown = report.lines()
    for kind, found in report.found.items():
        assert f"  → {KINDS[kind].remedy}" in shown
        assert f"{'error' if KINDS[kind].stops else 'warning'}: {KINDS[kind].title}: {found.total}" in shown


def test_only_the_first_few_are_listed(tmp_path: Path) -> None:
    report = checked(tmp_path, "one\n" * 1200)
    assert report.errors["columns"].total == 1200
    assert lines_of(report, "columns") == [1, 2, 3, 4, 5]
    assert "  … and 1,195 more" in report.lines()


def test_labels(tmp_path: Path) -> None:
    report = checked(tmp_path, "good\ta\ngood\tb\nbad\tc\nbad\td\nbda\te\n", "classify", dev="bad\tA\nugly\tz\n")
    assert report.labels == {"good": 2, "bad": 2, "bda": 1}
    assert report.found["rare-label"].first == ["'bda'"]
    assert report.found["new-label"].first == [f"{tmp_path / 'dev.tsv'}:2 'ugly'"]
    assert report.found["overlap"].total == 1
    assert "  3 labels: good 2, bad 2, bda 1" in report.lines()
    assert list(report.sides) == ["text"]


def test_texts_in_the_column_of_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.text.check.MOST_LABELS", 10)
    report = checked(tmp_path, "".join(f"text {number}\tgood\n" for number in range(50)), "classify", dev="text 60\tgood\n")
    assert len(report.labels) == 10
    assert set(report.found) == {"many-labels", "overlap"}
    assert "columns = [label, text]" in "\n".join(report.lines())


def test_plain_text_and_documents(tmp_path: Path) -> None:
    content = "a b\n" + "w " * 1500 + "\n\nc d\n\nc d\n"
    report = checked(tmp_path, content, "lm", name="a.txt")
    assert {kind: lines_of(report, kind) for kind in report.found} == {"empty": [3, 5], "long": [2], "duplicate": [6]}
    report = checked(tmp_path, content, "lm", name="a.txt", unit="document")
    assert report.rows == {"a.txt": 3}
    assert {kind: lines_of(report, kind) for kind in report.found} == {"duplicate": [6]}


def test_files_that_cannot_be_read_do_not_stop_the_check(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_text("a\nb\n")
    (tmp_path / "a.it").write_text("A\n")
    (tmp_path / "b.tsv.gz").write_text("not gzip")
    (tmp_path / "c.tsv").write_text("c\tC\na\tA\n")
    files = [DataFile(source="a.en", target="a.it"), DataFile(path="nowhere.tsv"), DataFile(path="b.tsv.gz"), DataFile(path="c.tsv")]
    report = check(files, "translate", root=tmp_path)
    assert report.rows == {"a.en + a.it": 1, "nowhere.tsv": 0, "b.tsv.gz": 0, "c.tsv": 2}
    first = report.errors["file"].first
    assert len(first) == 3
    assert "a.en has 2 lines" in first[0]
    assert "there is no file nowhere.tsv" in first[1]
    assert "b.tsv.gz is damaged" in first[2]
    assert report.found["duplicate"].first == [f"{tmp_path / 'c.tsv'}:2 stands in {tmp_path / 'a.en'}:1"]


def test_bad_json_is_listed(tmp_path: Path) -> None:
    report = checked(tmp_path, '{"text": 1}\n{"text": "a"}\n{\n{"other": "b"}\n', "lm", name="a.jsonl")
    assert lines_of(report, "json") == [1, 3]
    assert lines_of(report, "columns") == [4]
    assert report.rows == {"a.jsonl": 1}


def test_nothing_at_all(tmp_path: Path) -> None:
    report = checked(tmp_path, "", dev="a\tb\n")
    assert report.errors["no-rows"].first == ["a.tsv"]
    assert set(report.found) == {"no-rows"}


def test_tabs_within_a_text_are_noticed(tmp_path: Path) -> None:
    report = checked(tmp_path, "good\tone\ngood\ttwo\tthree\n\nbad\tfour\nbad\tfive\n", "classify")
    assert report.warnings["surplus"].first == [f"{tmp_path / 'a.tsv'}:2 1 more than the 2 columns of the first line"]
    assert not report.errors


def test_the_report_as_json_and_on_a_console(tmp_path: Path) -> None:
    report = checked(tmp_path, "[red]a\tb\none\n[red]a\tb\n")
    content = json.loads(json.dumps(report.as_json()))
    assert content["rows"] == {"a.tsv": 2}
    assert content["errors"]["columns"]["total"] == 1
    assert content["errors"]["columns"]["remedy"] == KINDS["columns"].remedy
    assert content["warnings"]["duplicate"]["first"] == [f"{tmp_path / 'a.tsv'}:3 stands in {tmp_path / 'a.tsv'}:1"]
    assert content["sides"]["source"]["words"] == 2
    out = io.StringIO()
    report.show(Console(file=out, width=40))
    assert out.getvalue().splitlines() == report.lines()

"""The first line of a table that names its columns is left out and said; whatever may be a row is one."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from regard.errors import CorpusError
from regard.recipe import DataFile
from regard.text.check import check
from regard.text.corpus import header_left_out, read_rows
from regard.text.header import names_columns

HEADERS = [
    ("translate", "source", "target"), ("translate", "Source ", "Target"), ("translate", "src", "tgt"),
    ("translate", "source_text", "target_text"), ("translate", "english", "Deutsch"), ("translate", "en", "de"), ("translate", "it", "en"),
    ("translate", "en_US", "pt_BR"), ("translate", "English sentence", "Hindi sentence"), ("translate", "中文", "English"),
    ("translate", "English", "German"), ("classify", "label", "text"),
    ("classify", "Sentiment", "Review"), ("lm", "text"), ("mlm", "Sentence"),
]  # fmt: skip
ROWS = [
    ("translate", "German", "Deutsch"), ("translate", "English", "Englisch"), ("translate", "it", "es"), ("translate", "no", "nein"),
    ("translate", "source", "Quelle"), ("translate", "Source", "source"), ("translate", "target", "Ziel"), ("translate", "text", "Text"),
    ("translate", "English is hard.", "Deutsch ist schwer."), ("translate", "en", "en"), ("translate", "", ""), ("translate", "is", "de"),
    ("translate", "enter", "demi"), ("translate", "Hello.", "Hallo."), ("classify", "spam", "text"), ("classify", "text", "label"),
    ("classify", "label", "a label fell off"), ("classify", "target", "target"), ("lm", "Once upon a time"), ("lm", "English"),
]  # fmt: skip


@pytest.mark.parametrize("line", HEADERS)
def test_names_of_columns(line: tuple[Any, ...]) -> None:
    assert names_columns(line[1:], line[0])


@pytest.mark.parametrize("line", ROWS)
def test_rows_that_only_look_like_it(line: tuple[Any, ...]) -> None:
    assert not names_columns(line[1:], line[0])


def test_only_the_first_line_is_looked_at_and_it_is_said(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("source\ttarget\nHello.\tHallo.\nsource\ttarget\n")
    file = DataFile(path=str(path))
    assert [row.texts for row in read_rows(file, "translate")] == [("Hello.", "Hallo."), ("source", "target")]
    assert [row.line for row in read_rows(file, "translate")] == [2, 3]
    assert header_left_out(file, "translate") == (
        f"{path}, line 1: 'source' and 'target' are taken for the names of the columns and left out; "
        "if it is a row, say --no-header, or header = false in a recipe"
    )


def test_it_can_be_forced(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("source\ttarget\nHello.\tHallo.\n")
    forced = DataFile(path=str(path), header=False)
    assert [row.line for row in read_rows(forced, "translate")] == [1, 2]
    assert header_left_out(forced, "translate") is None
    path.write_text("what I say\twhat you say\nHello.\tHallo.\n")
    assert [row.line for row in read_rows(DataFile(path=str(path)), "translate")] == [1, 2]
    named = DataFile(path=str(path), header=True)
    assert [row.line for row in read_rows(named, "translate")] == [2]
    said = header_left_out(named, "translate")
    assert said == f"{path}, line 1: 'what I say' and 'what you say' are taken for the names of the columns and left out"


def test_columns_that_are_chosen_are_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv.gz"
    with gzip.open(path, "wt") as file:
        file.write("id\tEnglish\tItalian\n1\tHello.\tCiao.\n")
    assert [row.texts for row in read_rows(DataFile(path=str(path), columns=(1, 2)), "translate")] == [("Hello.", "Ciao.")]


@pytest.mark.parametrize(
    ("task", "first", "says"),
    [
        ("classify", "text\tlabel", r"'label' and 'text' are the names of label and text, .*; say --columns 1,0, or columns = \[1, 0\] in"),
        ("classify", "id\tlabel\ttext", "say --columns 1,2"),
        ("translate", "id\ten\tde", "'en' and 'de' are the names of source and target, but the first two columns would be read; .* 1,2"),
        ("translate", "target\tsource", "say --columns 1,0"),
    ],
)
def test_names_of_other_columns_than_those_read_are_not_passed_over(tmp_path: Path, task: Any, first: str, says: str) -> None:
    """A number or a text would be learned as a label, without a word."""
    path = tmp_path / "table.tsv"
    path.write_text(f"{first}\n1\ta\tb\n")
    with pytest.raises(CorpusError, match=says):
        list(read_rows(DataFile(path=str(path)), task))
    assert check([DataFile(path=str(path))], task).errors
    assert [row.line for row in read_rows(DataFile(path=str(path), header=False), task)] == [1, 2]
    assert [row.texts for row in read_rows(DataFile(path=str(path), columns=(1, 0), header=True), task)] == [("a", "1")]


@pytest.mark.parametrize("first", ["id\ten", "id\ten\tsource", "en\tid", "en\tde\tfr"])
def test_indonesian_is_a_language(tmp_path: Path, first: str) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text(f"{first}\nselamat\thello\t3\n")
    assert [row.line for row in read_rows(DataFile(path=str(path)), "translate")] == [2]


def test_what_has_no_columns_has_no_header(tmp_path: Path) -> None:
    for name, content, task in (("a.txt", "text\nOne.\n", "lm"), ("a.jsonl", '{"source": "source", "target": "target"}\n', "translate")):
        path = tmp_path / name
        path.write_text(content)
        assert header_left_out(DataFile(path=str(path)), task) is None  # type: ignore[arg-type]
        assert next(iter(read_rows(DataFile(path=str(path)), task))).line == 1  # type: ignore[arg-type]
        with pytest.raises(CorpusError, match=r"header = true is for tables, and this is (JSON|plain text); take it out"):
            list(read_rows(DataFile(path=str(path), header=True), task))  # type: ignore[arg-type]


def test_a_check_counts_it(tmp_path: Path) -> None:
    path = tmp_path / "labelled.tsv"
    path.write_text("label\ttext\n" + "good\tI liked it.\nbad\tI left.\n" * 2)
    report = check([DataFile(path=str(path))], "classify")
    assert report.rows == {str(path): 4}
    assert report.found["header"].first == [f"{path}:1 'label' and 'text' are taken for the names of the columns and left out"]
    assert not report.errors
    assert report.labels == {"good": 2, "bad": 2}


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.tmx", "<?xml version='1.0'?><tmx/>", "a.tmx is XML, not lines of text; take its text out first, .*, or a row on [^;]*$"),
        ("a.tsv", "PAR1\x00\x00", "is a Parquet table, not lines of text; save the column"),
        ("a.csv", "Hello.,Hallo.\n", "csv is not read; save it as .tsv"),
        ("a.json", '[{"source": "a"}]', "json is not read; save it as .tsv"),
        ("a.jsonl", '{"translation": {"en": "a", "de": "b"}}', "its keys: translation.; 'translation' holds an object, so write"),
        ("a.txt", "<!doctype html><p>Hello.</p>", "a web page .HTML., not lines of text"),
    ],
)  # fmt: skip
def test_what_is_no_table_is_refused_in_a_sentence(tmp_path: Path, name: str, content: str, says: str) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode())
    with pytest.raises(CorpusError, match=says):
        list(read_rows(DataFile(path=str(path)), "translate"))


def test_utf_16_is_read_by_its_mark(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("source\ttarget\nSchön.\tNice.\n", encoding="utf-16")
    assert [row.texts for row in read_rows(DataFile(path=str(path)), "translate")] == [("Schön.", "Nice.")]

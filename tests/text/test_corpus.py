"""Reading a corpus: every form gives the same rows, and what is wrong is said with file, line and remedy."""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from regard.errors import CorpusError
from regard.recipe import DataFile, Task
from regard.text.corpus import LineError, Row, find, open_text, read_rows, synthetic_reverse

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


def write(path: Path, content: str | bytes) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def texts(task: Task, unit: Any = "line", **settings: Any) -> list[tuple[str, ...]]:
    return [row.texts for row in read_rows(DataFile.model_validate(settings), task, unit=unit)]


@pytest.mark.parametrize("ending", PACKERS)
def test_compressed_files_read_equal(ending: str, tmp_path: Path) -> None:
    content = "a\tb\r\n\nc\u2028d\x0b\x85e\n" + "\n".join(f"line {number} é" for number in range(30_000))
    path = write(tmp_path / f"text.txt{ending}", PACKERS[ending](content.encode()))
    lines = list(open_text(path))
    assert lines[:4] == [(1, "a\tb"), (2, ""), (3, "c\u2028d\x0b\x85e"), (4, "line 0 é")]
    assert [line for _, line in lines] == content.replace("\r\n", "\n").split("\n")
    assert [number for number, _ in lines] == list(range(1, 30_004))


@pytest.mark.parametrize("ending", [".gz", ".xz", ".zst"])
def test_several_compressed_parts_in_one_file(ending: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"text{ending}", PACKERS[ending](b"a\nb") + PACKERS[ending](b"c\n"))
    assert list(open_text(path)) == [(1, "a"), (2, "bc")]


@pytest.mark.parametrize("ending", PACKERS)
def test_an_empty_file_has_no_lines(ending: str, tmp_path: Path) -> None:
    assert list(open_text(write(tmp_path / f"text{ending}", PACKERS[ending](b"")))) == []


def test_the_mark_at_the_start_of_a_file_is_no_text(tmp_path: Path) -> None:
    assert list(open_text(write(tmp_path / "a", "\ufeffa\n\ufeffb"))) == [(1, "a"), (2, "\ufeffb")]


@pytest.mark.parametrize("ending", [".gz", ".xz", ".zst"])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.99])
def test_a_file_that_is_cut_short(ending: str, share: float, tmp_path: Path) -> None:
    packed = PACKERS[ending]("\n".join(hashlib.sha256(bytes([number % 256])).hexdigest() for number in range(5000)).encode())
    path = write(tmp_path / f"text{ending}", packed[: int(len(packed) * share)])
    with pytest.raises(CorpusError, match="is damaged or cut short") as error:
        list(open_text(path))
    assert path in str(error.value)


@pytest.mark.parametrize("ending", [".gz", ".xz", ".zst"])
def test_a_file_that_is_not_what_its_name_says(ending: str, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"damaged or cut short .*name it by what it is"):
        list(open_text(write(tmp_path / f"text{ending}", "just text\n" * 100)))


def test_broken_utf8_is_named_by_line_and_byte(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"fine\ncaf\xe9 noir\n")
    with pytest.raises(CorpusError, match=r"a.txt, line 2: not UTF-8 \(byte 4 is 0xE9\); convert the file .*LATIN1"):
        list(open_text(path))
    assert list(open_text(write(tmp_path / "b.txt", "wide\nschön".encode("utf-16")))) == [(1, "wide"), (2, "schön")]  # its mark says so
    with pytest.raises(CorpusError, match=r"b.txt is in UTF-16 \(LE\) without a mark, .*iconv -f UTF-16LE"):
        list(open_text(write(tmp_path / "b.txt", "wide and without".encode("utf-16-le"))))


def test_files_are_found_in_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REGARD_DATA", raising=False)
    data, work, recipe = tmp_path / "data", tmp_path / "work", tmp_path / "recipe"
    for folder in (data, work, recipe):
        folder.mkdir()
        write(folder / f"{folder.name}.txt", "x")
    monkeypatch.chdir(work)
    assert find("work.txt").read_text() == "x"
    assert find(str(data / "data.txt")) == data / "data.txt"
    assert find("data.txt", data) == data / "data.txt"
    assert find("recipe.txt", data, beside=recipe) == recipe / "recipe.txt"
    with pytest.raises(CorpusError, match=r"no file data.txt \(looked for .*work/data.txt\); .*--data-dir or REGARD_DATA"):
        find("data.txt")
    monkeypatch.setenv("REGARD_DATA", str(data))
    assert find("data.txt") == data / "data.txt"
    with pytest.raises(CorpusError, match="is a folder; name a file in it"):
        find(str(data))
    write(data / "packed.tsv.gz", gzip.compress(b"a\tb"))
    with pytest.raises(CorpusError, match=r"did you mean packed.tsv.gz\?"):
        find("packed.tsv")
    with pytest.raises(CorpusError, match=r"there is no file nowhere.txt.*REGARD_DATA"):
        list(open_text("nowhere.txt"))


def test_the_hash_is_checked(tmp_path: Path) -> None:
    one, two = write(tmp_path / "a.en", "a\n"), write(tmp_path / "a.de", "b\n")
    right, wrong = hashlib.sha256(b"a\n").hexdigest(), "0" * 64
    assert texts("lm", path=one, sha256=right.upper()) == [("a",)]
    with pytest.raises(CorpusError, match=f"a.en: its sha256 is {right}, but the recipe says {wrong}; get the right file"):
        texts("lm", path=one, sha256=wrong)
    assert texts("translate", source=one, target=two, sha256=hashlib.sha256(b"a\nb\n").hexdigest()) == [("a", "b")]


def test_pairs_from_every_form(tmp_path: Path) -> None:
    pairs = [("one two", "uno due"), ("", "vuoto"), (" three ", "tre")]
    table = write(tmp_path / "a.tsv", "".join(f"{source}\t{target}\tx\n" for source, target in pairs))
    turned = write(tmp_path / "b.txt", "".join(f"x\t{target}\t{source}\n" for source, target in pairs))
    objects = write(tmp_path / "a.jsonl", "\n\n".join(json.dumps({"n": 1, "source": s, "target": t}) for s, t in pairs))
    keys = write(tmp_path / "b.jsonl.gz", gzip.compress("\n".join(json.dumps({"en": s, "it": t}) for s, t in pairs).encode()))
    source = write(tmp_path / "a.en", "\n".join(source for source, _ in pairs))
    target = write(tmp_path / "a.it", "\n".join(target for _, target in pairs) + "\n")
    assert texts("translate", path=table) == pairs
    assert texts("translate", path=turned, columns=[2, 1]) == pairs
    assert texts("translate", path=objects) == pairs
    assert texts("translate", path=keys, columns=["en", "it"]) == pairs
    assert texts("translate", source=source, target=target) == pairs
    rows = list(read_rows(DataFile(path=objects), "translate"))
    assert rows[1] == Row(("", "vuoto"), objects, 3)


def test_labelled_text(tmp_path: Path) -> None:
    table = write(tmp_path / "a.tsv", "good\tI like it\nbad\tI don't\n")
    objects = write(tmp_path / "a.jsonl", '{"text": "I like it", "label": 1}\n{"label": false, "text": "I don\'t"}')
    assert texts("classify", path=table) == [("good", "I like it"), ("bad", "I don't")]
    assert texts("classify", path=objects) == [("1", "I like it"), ("false", "I don't")]


def test_plain_text_by_line_and_document(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "\n\none\ttab\ntwo\n \n\nthree\n")
    assert texts("lm", path=path) == [("",), ("",), ("one\ttab",), ("two",), (" ",), ("",), ("three",)]
    rows = list(read_rows(DataFile(path=path), "mlm", unit="document"))
    assert rows == [Row(("one\ttab\ntwo",), path, 3), Row(("three",), path, 7)]
    objects = write(tmp_path / "a.jsonl", '{"text": "a\\n\\nb"}\n')
    assert texts("lm", "document", path=objects) == [("a\n\nb",)]
    table = write(tmp_path / "a.tsv", "good\tI like it\n")
    assert texts("lm", path=table, columns=[1]) == [("I like it",)]
    with pytest.raises(
        CorpusError, match=r"a.tsv is a table; say which column holds the text, for example --columns 0, or columns = \[0\] in"
    ):
        texts("lm", path=table)


def test_rows_are_kept_or_dropped_by_a_column(tmp_path: Path) -> None:
    table = write(tmp_path / "a.tsv", "a\tA\tx\nb\tB\ty\nc\tC\tz\n")
    assert texts("translate", path=table, only={"2": ["x", "z"]}) == [("a", "A"), ("c", "C")]
    assert texts("translate", path=table, without={"2": ["x"]}) == [("b", "B"), ("c", "C")]
    assert texts("translate", path=table, only={"2": ["x", "z"]}, without={"0": ["c"]}) == [("a", "A")]
    objects = write(tmp_path / "a.jsonl", '{"text": "a", "year": 1990}\n{"text": "b", "year": 1991}\n')
    assert texts("lm", path=objects, only={"year": ["1991"]}) == [("b",)]


def test_too_few_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "a\tb\n\nonly one\nc\td\n")
    with pytest.raises(CorpusError, match=r"a.tsv, line 3: 1 column where 2 are wanted .*`regard data check .*a.tsv --task translate`"):
        texts("translate", path=path)
    with pytest.raises(CorpusError, match="line 1: 2 columns where 4 are wanted"):
        texts("translate", path=path, without={"3": ["x"]})
    told: list[LineError] = []
    rows = list(read_rows(DataFile(path=path), "translate", skip=told.append))
    assert [row.texts for row in rows] == [("a", "b"), ("", ""), ("c", "d")]
    assert [(bad.kind, bad.file, bad.line) for bad in told] == [("columns", path, 3)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"source": "a"', r"line 1: not JSON \(.*\); write one object on each line"),
        ('["a", "b"]', r'line 1: not a JSON object; write {"source": …, "target": …}'),
        ('{"source": "a", "aim": "b"}', r"line 1: no key 'target' \(its keys: source, aim\); name the keys with columns"),
        ('{"source": "a", "target": null}', "line 1: 'target' is NoneType, not text"),
        ('{"source": "a", "target": 1}', "line 1: 'target' is int, not text"),
        ('{"source": "a", "target": "\\ud800"}', "line 1: 'target' holds half of a character"),
        ("[" * 100_000, "line 1: nested too deep"),
    ],
)
def test_bad_json_lines(line: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=message):
        texts("translate", path=write(tmp_path / "a.jsonl", line + "\n"))


def test_aligned_files_of_different_lengths(tmp_path: Path) -> None:
    source, target = write(tmp_path / "a.en", "a\nb\nc\n"), write(tmp_path / "a.it", "A\n")
    with pytest.raises(CorpusError, match=r"a.en has 3 lines and .*a.it has 1;"):
        texts("translate", source=source, target=target)
    with pytest.raises(CorpusError, match=r"a.it has 1 lines and .*a.en has 3;"):
        texts("translate", source=target, target=source)
    broken = write(tmp_path / "b.it", b"A\n\xff\nC\n")
    with pytest.raises(CorpusError, match=r"b.it, line 2: not UTF-8"):
        texts("translate", source=source, target=broken)
    rows = read_rows(DataFile(source=source, target=broken), "translate", skip=lambda bad: None)
    assert [row.texts for row in rows] == [("a", "A"), ("c", "C")]


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        ("translate", {"path": "a.csv"}, r"\.csv is not read; save it as .tsv"),
        ("translate", {"path": "a.tsv", "columns": [0]}, r"columns = \[0\], but task translate needs 2 \(source, target\)"),
        ("translate", {"path": "a.tsv", "columns": ["en", "it"]}, "no column 'en' in a TSV; its columns are numbers from 0"),
        ("translate", {"path": "a.tsv", "columns": [-1, 0]}, "no column -1 in a TSV"),
        ("translate", {"path": "a.tsv", "only": {"kind": ["x"]}}, "no column 'kind' in a TSV"),
        ("classify", {"source": "a.tsv", "target": "a.csv"}, "two aligned files are for task translate; for classify give one"),
        ("translate", {"source": "a.tsv", "target": "a.csv", "columns": [0, 1]}, "two aligned files have no columns"),
    ],
)
def test_settings_that_do_not_fit(task: Task, settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    for name in ("a.csv", "a.tsv"):
        write(tmp_path / name, "a\tb\n")
    with pytest.raises(CorpusError, match=message):
        list(read_rows(DataFile.model_validate(settings), task, tmp_path))


def test_memory_stays_flat(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv.zst", zstandard.ZstdCompressor().compress(b"some source\tsome target\n" * 400_000))
    tracemalloc.start()
    try:
        count = sum(1 for _ in read_rows(DataFile(path=path), "translate"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 400_000
    assert peak < 20_000_000


def test_synthetic_pairs() -> None:
    train = list(synthetic_reverse(2000, seed=1))
    assert train == list(synthetic_reverse(2000, seed=1))
    assert train != list(synthetic_reverse(2000, seed=2))
    assert {len(row.texts[0].split()) for row in train} == set(range(4, 13))
    assert all(row.texts[1].split() == row.texts[0].split()[::-1] for row in train)
    assert {digit for row in train for digit in row.texts[0].split()} == set("0123456789")
    for seed in (1, 2):
        dev = list(synthetic_reverse(500, seed, "dev"))
        assert len(dev) == 500
        assert not {row.texts[0] for row in dev} & {row.texts[0] for row in train}

"""Two batches of lines under way at the same time, as on a GPU, say what one after the other says, byte for byte."""

from __future__ import annotations

import gzip
import re
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regard.cli.lines import BATCHES_AT_ONCE, LINES_AT_ONCE
from regard.door import Model, writing
from tests.cli.running import Done, interrupted, read_along, run
from tests.cli.test_asking import LONG, lines_of

Bundles = Callable[[str], Path]
AS_ON_A_GPU = "from regard.cli import lines, main; lines.BATCHES_AT_ONCE['cpu'] = 2; lines.LINES_AT_ONCE['cpu'] = {size}; main()"


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """Runs a command one batch after the other, and then two at a time, which must not differ."""

    def compared(*arguments: str | Path, size: int = 5, stdin: str | bytes = "") -> Done:
        monkeypatch.setitem(LINES_AT_ONCE, "cpu", size)
        monkeypatch.setitem(BATCHES_AT_ONCE, "cpu", 1)
        alone = run(*arguments, stdin=stdin)
        monkeypatch.setitem(BATCHES_AT_ONCE, "cpu", 2)
        threads = threading.active_count()
        assert run(*arguments, stdin=stdin) == alone
        assert threading.active_count() == threads
        return alone

    return compared


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("translator", ["translate", "--to", "back"]),
        ("translator", ["translate", "--to", "same", "--temperature", "1", "--seed", "7", "--samples", "2"]),
        ("translator", ["translate", "--to", "back", "--n-best", "2", "--format", "json", "--attention"]),
        ("translator", ["translate", "--to", "back", "--mbr", "3"]),
        ("writer", ["generate", "--max-length", "4", "--format", "json"]),
        ("writer", ["score"]),
        ("critic", ["classify"]),
        ("critic", ["embed"]),
    ],
)
def test_the_same_words(both: Callable[..., Done], bundle: Bundles, name: str, arguments: list[str]) -> None:
    lines = lines_of(60) if name == "translator" else [line[:40] for line in lines_of(60)]
    done = both(*arguments, "-m", bundle(name), stdin="\n".join(lines))
    assert done.code == 0, done.err
    assert len(done.lines) >= 60
    assert ("line 51: 46 tokens" in done.err) == (name == "translator")


def test_warnings_come_in_the_order_of_lines(both: Callable[..., Done], bundle: Bundles) -> None:
    """Those of reading and those of the model, of which only the first twenty each are said."""
    lines = [LONG.encode() if number % 2 else b"1 \xff" if number % 3 else b"2" for number in range(90)]
    done = both("translate", "-m", bundle("translator"), "--to", "back", "--beam-size", "1", size=7, stdin=b"\n".join(lines))
    long, broken = ([int(number) for number in re.findall(f"line (\\d+): {kind}", done.err)] for kind in (r"\d+ tokens", "not UTF-8"))
    assert long == [number + 1 for number in range(90) if number % 2][:20]
    assert broken == [number + 1 for number in range(90) if number % 2 == 0 and number % 3][:20]
    assert "… and 25 more warnings of this kind" in done.err
    assert "… and 10 more lines that are not UTF-8" in done.err


def test_an_error_comes_after_all_before_it(both: Callable[..., Done], bundle: Bundles) -> None:
    lines = ["1\t2"] * 17
    lines[12] = "no tab"
    done = both("score", "-m", bundle("translator"), "--to", "back", stdin="\n".join(lines))
    assert (done.code, len(done.lines)) == (1, 10)
    assert done.err.startswith("regard: standard input, line 13: score takes a source, a tab")


def test_a_damaged_file_gives_what_was_read(both: Callable[..., Done], bundle: Bundles, tmp_path: Path) -> None:
    path = tmp_path / "lines.gz"
    whole = "".join(f"{line}\n" for line in lines_of(3000)).encode()
    path.write_bytes(gzip.compress(whole)[:-2000])
    there = zlib.decompressobj(31).decompress(path.read_bytes()).count(b"\n")
    done = both("classify", "-m", bundle("critic"), "--input", path, size=500)
    assert done.code == 1
    assert there - 500 < len(done.lines) <= there  # but for what the library had not given out yet
    assert len(done.lines) % 500  # the last batch is not whole
    assert "is damaged or cut short" in done.err


def test_two_are_decoded_beside_each_other(bundle: Bundles, monkeypatch: pytest.MonkeyPatch) -> None:
    decode_many, both = writing.decode_many, threading.Barrier(2, timeout=20)

    def watched(*given: Any, **options: Any) -> Any:
        both.wait()
        return decode_many(*given, **options)

    monkeypatch.setattr(writing, "decode_many", watched)
    monkeypatch.setitem(LINES_AT_ONCE, "cpu", 5)
    monkeypatch.setitem(BATCHES_AT_ONCE, "cpu", 2)
    done = run("translate", "-m", bundle("translator"), "--to", "back", stdin="1 2\n" * 20)
    assert (done.code, len(done.lines)) == (0, 20)


def test_two_threads_may_ask_one_model(bundle: Bundles) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from regard.door import load

    translator: Model = load(bundle("translator"), device="cpu", precision="float32")
    texts = [line for line in lines_of(48) if line != LONG]
    alone = load(bundle("translator"), device="cpu", precision="float32").translate(texts, "back")
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: translator.translate(texts, "back"), range(8)))
    assert all(each == alone for each in found)


def test_whoever_reads_along_gets_lines_as_they_come(bundle: Bundles) -> None:
    sent = [b"1 2 3\n", b"\n", b"4\n", b"1\n2\n3\n4\n5\n6\n7\n", b"1\n2\n3\n"]
    read_along(["-c", AS_ON_A_GPU.format(size=3)], bundle("translator"), sent)


def test_ctrl_c_leaves_nothing_half_written(bundle: Bundles, tmp_path: Path) -> None:
    interrupted(["-W", "error", "-c", AS_ON_A_GPU.format(size=2048)], bundle("translator"), tmp_path)

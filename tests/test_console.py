"""Lines in and results out, as a person meets them: real processes where standard input, output and error matter."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import pty
import re
import select
import signal
import subprocess
import sys
import textwrap
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from regard.console import Lines, Messages, OutputError, Results, line_by_line
from regard.errors import CorpusError, RegardError
from regard.text.formats import foreign, wide_encoding
from tests.signals import heard

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}
BREAKS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
UPPER = """
    import sys, time
    from pathlib import Path
    from regard.console import line_by_line
    from regard.errors import RegardError

    def main(texts=(), file=None, output=None, size=8, pause=0.0, fail_at=None):
        try:
            with line_by_line(texts, file and Path(file), output and Path(output)) as (lines, results, messages):
                for batch in lines.batches(size):
                    for text in batch:
                        if text == fail_at:
                            raise RegardError("made to fail")
                        results.text(text.upper())
                    results.flush()
                    time.sleep(pause)
        except RegardError as error:
            print(f"regard: {error}", file=sys.stderr)
            sys.exit(1)
"""


def program(**arguments: Any) -> list[str]:
    """A verb that writes each line in capitals."""
    quoted = ", ".join(f"{name}={(str(value) if isinstance(value, Path) else value)!r}" for name, value in arguments.items())
    return [sys.executable, "-W", "error", "-c", f"{textwrap.dedent(UPPER)}\nmain({quoted})"]


def run(stdin: bytes | None = None, **arguments: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(program(**arguments), input=stdin, capture_output=True, check=False, timeout=60)


def read(path: Path) -> list[str]:
    with Messages() as messages:
        return list(Lines([], path, messages))


# Lines


@pytest.mark.parametrize("ending", PACKERS)
@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a", ["a"]),
        (b"a\n\nb", ["a", "", "b"]),
        (b"a\r\nb\rc\r\r\nd\r", ["a", "b\rc\r", "d\r"]),
        ("a\x0bb\x0cc\x1cd\x1de\x1ef\x85g\u2028h\u2029i\n".encode(), ["a\x0bb\x0cc\x1cd\x1de\x1ef\x85g\u2028h\u2029i"]),
        (b"nul \x00 bell \x07 esc \x1b tab \t\n", ["nul \x00 bell \x07 esc \x1b tab \t"]),
        ("\ufeffa\n\ufeffb\n".encode(), ["a", "\ufeffb"]),
        (b"caf\xe9 noir\n", ["caf\ufffd noir"]),
    ],
)
def test_only_a_line_feed_ends_a_line(ending: str, content: bytes, lines: list[str], tmp_path: Path) -> None:
    path = tmp_path / f"text{ending}"
    path.write_bytes(PACKERS[ending](content))
    assert read(path) == lines


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_lines(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    assume(foreign("text", content) is None and wide_encoding(content) is None)
    path = tmp_path_factory.mktemp("any") / "text"
    path.write_bytes(content)
    wanted = content.replace(b"\r\n", b"\n").removesuffix(b"\n").split(b"\n") if content else []
    lines = read(path)
    assert len(lines) == len(wanted)
    assert lines[1:] == [line.decode(errors="replace") for line in wanted[1:]]


def test_standard_input_reads_like_a_file(tmp_path: Path) -> None:
    content = "a\r\nb\rc\n\n\x85\u2028é\x00\n".encode() + b"broken \xff\xfe\nlast"
    (tmp_path / "text").write_bytes(content)
    piped = run(content)
    assert piped.returncode == 0
    assert piped.stdout == "A\nB C\n\n  É\x00\nBROKEN \ufffd\ufffd\nLAST\n".encode()
    assert piped.stderr.decode() == "regard: standard input, line 5: not UTF-8 (byte 8 is 0xFF); read with \ufffd where it is broken\n"
    from_file = run(file=tmp_path / "text")
    assert from_file.stdout == piped.stdout
    assert from_file.stderr.decode() == piped.stderr.decode().replace("standard input", str(tmp_path / "text"))
    with (tmp_path / "text").open("rb") as redirected:
        done = subprocess.run(program(file="-", output="-"), stdin=redirected, capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (piped.stdout, piped.stderr)


@pytest.mark.parametrize("content", [b"", b"\n", b"\n\n", b"a" * 300_000, b"\n" * 100_000, (b"x" * 65_535 + b"\n") * 3, b"a\nb" * 50_000])
def test_as_many_lines_out_as_in(content: bytes) -> None:
    done = run(content, size=1000)
    assert done.stdout.count(b"\n") == content.count(b"\n") + (content[-1:] not in (b"", b"\n"))
    assert done.stdout.removesuffix(b"\n") == content.upper().removesuffix(b"\n")


def test_texts_given_as_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    with Messages() as messages:
        lines = Lines(["one", "", "two\nlines", "caf\udce9"], None, messages)
        assert lines.total == 4
        assert list(lines.batches(3)) == [["one", "", "two\nlines"], ["caf\ufffd"]]
    assert capsys.readouterr().err == "regard: text 4: not UTF-8; read with \ufffd where it is broken\n"


def test_a_pipe_of_the_shells_making_is_a_file_too() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"a\nb\n")
    os.close(writing)
    assert read(Path(f"/dev/fd/{reading}")) == ["a", "b"]
    os.close(reading)


def test_a_file_in_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    (tmp_path / "x.txt").write_text("found\n")
    assert read(Path("x.txt")) == ["found"]


def test_what_cannot_be_read_is_said_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "text.gz").write_bytes(gzip.compress(b"a"))
    with Messages() as messages:
        with pytest.raises(CorpusError, match=r"there is no file .*text \(.*did you mean .*text\.gz\?"):
            Lines([], tmp_path / "text", messages)
        with pytest.raises(CorpusError, match="is a folder; name a file in it"):
            Lines([], tmp_path, messages)
        with pytest.raises(CorpusError, match="there is text to work on, and the file x as well; give one of the two"):
            Lines(["text"], Path("x"), messages)
    done = subprocess.run(["sh", "-c", 'exec "$@" <&-', "sh", *program()], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "regard: standard input is closed; give text, or a file to read\n")


def test_a_damaged_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "text.gz").write_bytes(gzip.compress(os.urandom(1000).hex().encode())[:500])
    with pytest.raises(CorpusError, match="is damaged or cut short"):
        read(tmp_path / "text.gz")


def test_batches(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("".join(f"{number}\n" for number in range(10)))
    with Messages() as messages:
        assert [len(batch) for batch in Lines([], tmp_path / "text", messages).batches(4)] == [4, 4, 2]
        assert [len(batch) for batch in Lines([], tmp_path / "text", messages).batches(5)] == [5, 5]


@pytest.mark.parametrize("ending", PACKERS)
def test_many_lines_need_no_more_memory_than_few(ending: str, tmp_path: Path) -> None:
    peaks = []
    for count in (10_000, 100_000):
        path, out = tmp_path / f"text{ending}", tmp_path / "out"
        path.write_bytes(PACKERS[ending](b"".join(b"%d and some more text\n" % number for number in range(count))))
        tracemalloc.start()
        with line_by_line([], path, out) as (lines, results, _):
            for batch in lines.batches(64):
                for text in batch:
                    results.text(text)
                results.flush()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert out.read_text() == "".join(f"{number} and some more text\n" for number in range(count))
    assert peaks[1] < peaks[0] + 1_000_000  # where all lines together are 10


def test_a_hundred_thousand_lines_through_a_pipe() -> None:
    content = b"".join(b"line %d\n" % number for number in range(100_000))
    assert run(content, size=64).stdout == content.upper()


# Results


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(BREAKS)))
def test_a_result_is_one_line(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("one") / "out"
    with Results(path) as results:
        results.text(text)
        results.json({"text": text})
    plain, record, rest = path.read_bytes().decode("utf-8").split("\n")
    assert rest == ""
    assert len(f"{plain}.".splitlines()) == len(f"{record}.".splitlines()) == 1
    assert plain == re.sub(f"\r\n|[{BREAKS}]", " ", text)
    assert json.loads(record) == {"text": text}


def test_json_for_machines(tmp_path: Path) -> None:
    with Results(tmp_path / "out") as results:
        results.json({"text": "è 猫\u2028\x85\ud800", "score": float("-inf"), "list": [1, float("nan")]})
    line = (tmp_path / "out").read_text(encoding="utf-8")
    assert line == '{"text": "è 猫\\u2028\\u0085\ufffd", "score": null, "list": [1, null]}\n'


def test_results_are_utf8_whatever_the_locale() -> None:
    done = subprocess.run(
        program(texts=["è 猫"]), capture_output=True, check=True, env=os.environ | {"PYTHONIOENCODING": "latin-1", "LC_ALL": "C"}
    )
    assert done.stdout == "È 猫\n".encode()


def test_the_file_is_there_when_all_is_done(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("before\n")
    out.chmod(0o640)
    with Results(out) as results:
        results.text("after")
        results.flush()
        assert out.read_text() == "before\n"
        assert len(list(tmp_path.iterdir())) == 2
    assert out.read_text() == "after\n"
    assert out.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [out]
    with Results(tmp_path / "new"):
        pass
    mask = os.umask(0)
    os.umask(mask)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o666 & ~mask


def test_a_link_goes_on_pointing(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with Results(tmp_path / "link") as results:
        results.text("x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "x\n"


def test_an_error_leaves_nothing_half_written(tmp_path: Path) -> None:
    done = run(b"a\nb\nc\n", output=tmp_path / "out", fail_at="c", size=1)
    assert (done.returncode, done.stderr) == (1, b"regard: made to fail\n")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "out").write_text("before\n")
    run(b"a\nb\nc\n", output=tmp_path / "out", fail_at="c", size=1)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out").read_text() == "before\n"


def test_ctrl_c_leaves_nothing_half_written(tmp_path: Path) -> None:
    process = subprocess.Popen(
        heard(program(output=tmp_path / "out")),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    process.stdin.write(b"a\nb\n")
    process.stdin.flush()
    until(lambda: any(path.stat().st_size for path in tmp_path.iterdir()))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode != 0
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk(small_disk: Path) -> None:
    (small_disk / "out").write_text("before\n")
    with (
        pytest.raises(OutputError, match=r"could not write .*out: No space left on device; free some space"),
        Results(small_disk / "out") as results,
    ):
        results.text("x" * 1_000_000)
    assert [path.name for path in small_disk.iterdir()] == ["out"]
    assert (small_disk / "out").read_text() == "before\n"


def test_a_full_disk_behind_standard_output() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(program(texts=["x"]), stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "regard: could not write to standard output: No space left on device; free some space, or choose another place\n"


def test_a_device_is_not_replaced() -> None:
    with Results(Path("/dev/null")) as results:
        results.text("x")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(OutputError, match="could not write /dev/full: No space left"), Results(Path("/dev/full")) as results:
        results.text("x")


def test_where_results_cannot_go_is_said_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"can't write .*out: there is no folder .*nowhere; make it first, or choose another"):
        Results(tmp_path / "nowhere" / "out")
    with pytest.raises(OutputError, match="is a folder; name a file in it"):
        Results(tmp_path)
    done = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *program(texts=["x"])], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "regard: standard output is closed; say where results should go with --output\n")
    assert issubclass(OutputError, RegardError)


def test_the_reader_of_a_pipe_may_have_seen_enough() -> None:
    """BrokenPipeError goes on to the command line, and Python has nothing to complain of at its end."""
    code = f"{textwrap.dedent(UPPER)}\ntry:\n    main(texts=['x'] * 100_000)\nexcept BrokenPipeError:\n    sys.exit(7)"
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-c", code], stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (7, b"")


def test_a_pipe_sees_results_early() -> None:
    """Whoever sends a line and waits for its result gets it, though a batch would hold more."""
    process = subprocess.Popen(program(size=64), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    for word in (b"one", b"two", b"three"):
        process.stdin.write(word + b"\n")
        process.stdin.flush()
        assert select.select([process.stdout], [], [], 30)[0]
        assert process.stdout.readline() == word.upper() + b"\n"
    process.communicate(timeout=30)
    assert process.returncode == 0


# Messages


def test_many_warnings_of_a_kind_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    with Messages() as messages:
        for number in range(25):
            messages.warn(f"trouble {number}")
        for number in range(20):
            messages.warn(f"other {number}", "other troubles")
        messages.say("and something else")
    said = capsys.readouterr()
    lines = said.err.splitlines()
    assert said.out == ""
    assert lines[:20] == [f"regard: trouble {number}" for number in range(20)]
    assert lines[20:40] == [f"regard: other {number}" for number in range(20)]
    assert lines[40:] == ["regard: and something else", "regard: … and 5 more warnings"]


def test_broken_lines_are_counted_too() -> None:
    done = run(b"\xff\n" * 1000)
    assert done.stdout.count("\ufffd\n".encode()) == 1000
    said = done.stderr.decode().splitlines()
    assert len(said) == 21
    assert said[19].startswith("regard: standard input, line 20: not UTF-8")
    assert said[20] == "regard: … and 980 more lines that are not UTF-8"


def test_no_bar_where_standard_error_is_no_terminal(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a\nb\n")
    assert run(file=tmp_path / "text", output=tmp_path / "out").stderr == b""
    assert (tmp_path / "out").read_text() == "A\nB\n"


@pytest.mark.parametrize("packed", [False, True])
def test_a_bar_where_standard_error_is_a_terminal(packed: bool, tmp_path: Path) -> None:
    content = b"".join(b"line %d\n" % number for number in range(40)) + b"broken \xff\n"
    path = tmp_path / ("text.gz" if packed else "text")
    path.write_bytes(gzip.compress(content) if packed else content)
    screen, terminal = pty.openpty()
    process = subprocess.Popen(
        program(file=path, pause=0.1), stdout=subprocess.PIPE, stderr=terminal, env=os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    )
    os.close(terminal)
    shown = "".join(part.decode(errors="ignore") for part in parts_of(screen))
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert out == content.upper().replace(b"\xff", "\ufffd".encode())  # the bar is not among the results
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert re.search(r"41 lines · \d+/s", plain)
    assert re.search(r"(8|16|24|32) lines · \d", plain)  # counted on the way
    assert "0:00:0" in plain
    assert ("left" in plain) != packed  # of a packed file, nobody knows the end
    assert f"regard: {path}, line 41: not UTF-8" in plain
    assert shown.count("\x1b[?25h") == shown.count("\x1b[?25l")  # the cursor is back


def test_an_error_ends_the_bar_first(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("".join(f"{number}\n" for number in range(9)))
    screen, terminal = pty.openpty()
    process = subprocess.Popen(
        program(file=tmp_path / "text", size=1, fail_at="8"), stdout=subprocess.PIPE, stderr=terminal, env=os.environ | {"TERM": "xterm"}
    )
    os.close(terminal)
    shown = b"".join(parts_of(screen))
    process.communicate(timeout=30)
    assert shown.endswith(b"regard: made to fail\r\n")
    assert shown.rindex(b"\x1b[?25h") < shown.rindex(b"made to fail")


def test_typing_at_a_terminal() -> None:
    screen, terminal = pty.openpty()
    process = subprocess.Popen(program(), stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True)
    os.close(terminal)
    shown = b""
    coming = parts_of(screen)
    for typed, wanted in ((b"", b"regard: type a line and press Enter; Ctrl-D ends\r\n"), (b"one\n", b"ONE\r\n"), (b"two\n", b"TWO\r\n")):
        os.write(screen, typed) if typed else None
        while wanted not in shown:
            shown += next(coming)
    os.write(screen, b"\x04")
    assert process.wait(timeout=30) == 0
    assert b"\x1b[?25l" not in shown  # no bar in the way


def parts_of(screen: int) -> Iterator[bytes]:
    """What a terminal shows, until its last user is gone."""
    try:
        while select.select([screen], [], [], 30)[0]:
            yield os.read(screen, 65536)
    except OSError:  # how Linux says so
        os.close(screen)


def until(condition: Callable[[], bool]) -> None:
    for _ in range(300):
        if condition():
            return
        time.sleep(0.1)
    pytest.fail("waited 30 seconds in vain")

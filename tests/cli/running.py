"""The command line, run here and now, or in a process of its own: what it prints, and how it ends."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from regard.cli import main
from tests.signals import heard


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """Only a line feed ends a line."""
        return self.out.split("\n")[:-1]


def run(*arguments: str | Path, stdin: str | bytes = "") -> Done:
    """Runs `regard` with these arguments in this process: one of its own takes seconds to start."""
    given = stdin.encode() if isinstance(stdin, str) else stdin
    out, err = io.BytesIO(), io.BytesIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["regard", *map(str, arguments)])
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        patch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding="utf-8", write_through=True))
        patch.setattr(sys, "stderr", io.TextIOWrapper(err, encoding="utf-8", write_through=True))
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
            if isinstance(ended.code, str):
                print(ended.code, file=sys.stderr)  # as the interpreter does
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
                stream.detach()  # type: ignore[attr-defined]
    return Done(code, out.getvalue().decode(), err.getvalue().decode())


def read_along(program: Sequence[str], bundle: Path, sent: Sequence[bytes]) -> None:
    """Whoever sends lines gets as many back before sending more."""
    command = [sys.executable, *program, "translate", "-m", str(bundle), "--to", "back"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for lines in sent:
            process.stdin.write(lines)
            process.stdin.flush()
            for _ in range(lines.count(b"\n")):
                assert process.stdout.readline().endswith(b"\n")
        process.stdin.close()
        assert process.wait(20) == 0


def interrupted(program: Sequence[str], bundle: Path, folder: Path) -> None:
    """Ctrl-C in the middle of a file leaves nothing half written, and says nothing that is not meant for people."""
    out = folder / "out.txt"
    out.write_text("as it was\n")
    (folder / "lines.txt").write_text("1 2 3 4\n" * 200_000)
    command = [sys.executable, *program, "translate", "-m", str(bundle), "--to", "back"]
    command += ["--beam-size", "1", "--max-length", "4", "--input", str(folder / "lines.txt"), "--output", str(out)]
    with subprocess.Popen(heard(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + 60
        while not any(path.suffix == ".part" and path.stat().st_size for path in folder.iterdir()):
            assert time.monotonic() < until
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        shown, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert (shown, "Traceback" in said, "Exception" in said) == ("", False, False)
    assert out.read_text() == "as it was\n"
    assert sorted(path.name for path in folder.iterdir() if not path.is_dir()) == ["lines.txt", "out.txt"]

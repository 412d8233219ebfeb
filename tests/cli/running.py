"""The command line, run here and now: what it prints, and how it ends."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from regard.cli import main


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

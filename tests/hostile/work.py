"""What a worker is asked in tests: to do this or that to its own process."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from pathlib import Path
from typing import Any


class Panic(BaseException):
    """As libraries in Rust raise."""


def answer(asked: Any) -> Any:
    match asked:
        case ["abort"]:
            os.abort()
        case ["crash"]:
            ctypes.string_at(0)
        case ["leave", int(code)]:
            os._exit(code)
        case ["sleep", seconds]:
            time.sleep(seconds)
        case ["hold"]:  # out of Python, where no signal of its own is heard
            ctypes.PyDLL(None).sleep(600)
        case ["compute"]:
            while True:
                pass
        case ["take", int(size)]:
            return len(bytearray(size))
        case ["panic"]:
            raise Panic("at the\ndisco")
        case ["print"]:
            print('{"answer": "printed"}', flush=True)
            os.write(1, b'{"answer": "written"}\n')
        case ["environment"]:
            return dict(os.environ)
        case ["signals"]:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
        case ["threads"]:
            return len(list(Path("/proc/self/task").iterdir()))
    return asked

"""A program that reads damaged files, and writes on each line what became of one: it may hang or run out of memory, and a test may not."""

from __future__ import annotations

import json
import random
import signal
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path

from regard.errors import RegardError, out_of_memory
from tests.hostile.formats import HERE, Read

SECONDS, SECONDS_IN_ALL, BYTES = 30, 300, 3 * 1024**3  # that a file may take: of work, of a clock, and of memory


def damaged(name: str, number: int, seed: int, content: bytes) -> bytes:
    """The same for the same name, number and seed, on every machine."""
    chance = random.Random(f"{name} {number} {seed}")
    return chance.choice(HERE[name].damages)(chance, content)


def outcome(read: Read, file: Path) -> str:
    """What became of reading a file."""
    try:
        read(file)
    except RegardError:
        return "refused"
    except BaseException as error:
        if out_of_memory(error):
            return "out of memory"
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:120]}"
    return "read"


def main(folder: Path, seed: int, cases: Iterable[tuple[str, int]]) -> None:
    import resource

    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_DATA, (BYTES, BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    whole: dict[str, tuple[Path, bytes]] = {}
    for name, number in cases:
        if name not in whole:
            place = folder / str(len(list(folder.iterdir())))
            place.mkdir()
            file = HERE[name].make(place)
            whole[name] = file, file.read_bytes()
            assert outcome(HERE[name].read, file) == "read", f"{name}: {outcome(HERE[name].read, file)}"
        file, content = whole[name]
        file.write_bytes(damaged(name, number, seed, content))
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # whose signals end a process that does not expect them
        signal.alarm(SECONDS_IN_ALL)
        print(json.dumps([name, number, outcome(HERE[name].read, file)]), flush=True)
        signal.alarm(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), json.load(sys.stdin))

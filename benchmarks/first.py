"""How long a person waits for the first translation on a CPU: from the start of a process to its end, and the parts of it.

    python benchmarks/first.py [--text "…"] [--to de] [--model translator] [--repeats 9] [--precision auto] [--json FILE]

`regard translate` runs in a new process each time, nothing beside it. Every other process is watched from within, and says when all was
imported, when the model was loaded and made ready, and when the text was translated. Figures are medians (smallest … largest) in seconds;
one process before that is not counted, so that files are read from memory and modules are compiled. A last one, with Python's own
`-X importtime`, says what each package takes to import: one that is not needed stands out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

GOAL = 2.5  # seconds
TEXT = "I love you very much."
PLAIN = ("-m", "regard")
# The same, with a look at the clock in between; it is the system's, which started before the process did.
WATCHED = """
import json, os, sys, time
from regard.cli import lines, main

named_model = lines.named_model

def watched_model(*given):
    import regard.door.writing
    times = {"imports": time.monotonic()}
    model = named_model(*given)
    times["load"] = time.monotonic()
    translate = model.translate

    def watched_translate(*given, **options):
        found = translate(*given, **options)
        times["decode"] = time.monotonic()
        os.write(2, json.dumps(times).encode())
        return found

    model.translate = watched_translate
    return model

lines.named_model = watched_model
main()
"""
PARTS = {
    "imports": "Python and imports",
    "load": "load, and make ready",
    "decode": "first decode",
    "end": "print and leave",
}


def run(python: Sequence[str], arguments: Sequence[str]) -> tuple[float, float, str]:
    """When a process began and ended, and what it said on standard error."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    begin = time.monotonic()
    done = subprocess.run([sys.executable, *python, "translate", *arguments], capture_output=True, text=True, check=False, env=environment)
    end = time.monotonic()
    if done.returncode or not done.stdout.strip():
        raise SystemExit(f"regard translate {' '.join(arguments)} ended with {done.returncode}: {done.stderr}")
    return begin, end, done.stderr


def parts(arguments: Sequence[str]) -> dict[str, float]:
    """Seconds that each part of one process took."""
    begin, end, said = run(("-c", WATCHED), arguments)
    times = {**json.loads(said.splitlines()[-1]), "end": end}
    return {name: times[name] - before for name, before in zip(times, (begin, *times.values()), strict=False)}


def imports(arguments: Sequence[str]) -> dict[str, float]:
    """Milliseconds that the modules of each package took to import, without what they import; those of Python itself together."""
    found: Counter[str] = Counter()
    for line in run(("-X", "importtime", *PLAIN), arguments)[2].splitlines():
        own, bar, rest = line.removeprefix("import time:").partition("|")
        if bar and own.strip().isdigit():
            package = rest.partition("|")[2].strip().partition(".")[0]
            found["Python's own" if package in sys.stdlib_module_names else package] += int(own)
    return {package: taken / 1000 for package, taken in found.most_common()}


def spread(turns: Sequence[float]) -> str:
    return f"{statistics.median(turns):6.2f} ({min(turns):.2f} … {max(turns):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", default=TEXT)
    parser.add_argument("--to", default="de")
    parser.add_argument("--model", default="translator")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    arguments = [options.text, "--model", options.model, "--to", options.to, "--precision", options.precision, "--device", "cpu"]
    run(PLAIN, arguments)
    whole: list[float] = []
    watched: list[dict[str, float]] = []
    for _ in range(options.repeats):
        begin, end, _ = run(PLAIN, arguments)
        whole.append(end - begin)
        watched.append(parts(arguments))
    packages = imports(arguments)
    middle = statistics.median(whole)
    print(f"{'seconds to the first translation':34}{spread(whole)}   {'within' if middle < GOAL else 'beyond'} the goal of {GOAL}")
    for name, title in PARTS.items():
        print(f"  {title:32}{spread([turn[name] for turn in watched])}")
    print("milliseconds to import (slower, because each module is timed)")
    for package, taken in packages.items():
        if taken >= 1:
            print(f"  {package:32}{taken:6.0f}")
    print(f"  {'all others together':32}{sum(taken for taken in packages.values() if taken < 1):6.0f}")
    if options.json:
        record = {"seconds": whole, "parts": watched, "imports_in_milliseconds": packages}
        options.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""A long file, as a user translates it: lines a second from file to file, against the best that decoding alone reaches.

    python benchmarks/file.py [--lines 4096] [--alone 4096] [--to de] [--model translator] [--beam-size 4] [--device cpu]
                              [--precision auto] [--repeats 3] [--json FILE]

The file has up to 100,000 lines (`--lines 100000` for all of them): English sentences of $REGARD_DATA/translate where that is set, those of
the test files, shuffled, again and again, and made-up ones otherwise. `regard translate --input --output` translates it in a
process of its own, which is watched from within: from the moment the model is loaded to the last line on disk, so that reading,
tokenising, sorting within what is read at once, decoding, detokenising and writing all count, and starting does not. Beside it, in this
process, all lines (or the first of them, `--alone`) are given to the same model at once, and only the time within `decode_many` counts:
sorted as a whole, with nothing to read or write. The two take turns, and write the same words (but for rounding in int8 or half precision).
Memory is that of the process which translates the file, each quarter of the lines.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import regard
from regard.door import writing

ALL = 100_000
GOAL = 0.9  # of the best batch rate
# `regard translate`, and with it the time and the memory after each batch of lines; the clock is the system's.
WATCHED = """
import json, os, resource, sys, threading, time
from regard.cli import lines, main

named_model, one_at_a_time = lines.named_model, threading.Lock()

def watched_model(*given):
    model = named_model(*given)
    translate, begun, done = model.translate, time.monotonic(), [0, 0]

    def watched_translate(*given, **options):
        found = translate(*given, **options)
        with one_at_a_time:  # on a GPU two batches are under way
            done[0], done[1] = done[0] + len(found), done[1] + sum(len(answer.tokens) for answer in found)
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            now = int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() / 1024**2 if sys.platform == "linux" else memory
            state = {"begun": begun, "at": time.monotonic(), "lines": done[0], "tokens": done[1], "peak": memory, "memory": now}
            os.write(2, (json.dumps(state) + "\\n").encode())
        return found

    model.translate = watched_translate
    return model

lines.named_model = watched_model
try:
    main()
finally:
    os.write(2, json.dumps({"ended": time.monotonic()}).encode() + b"\\n")
"""


@dataclass(frozen=True)
class Turn:
    """What one contender did with all the lines."""

    seconds: float
    tokens: int
    texts: list[str]


def real_lines(folder: Path) -> list[str]:
    """The English side of every test file, each line once."""
    found: dict[str, None] = {}
    for path in sorted((folder / "translate").glob("en-*.test.tsv.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            found |= dict.fromkeys(line.partition("\t")[0].strip() for line in file)
    return [line for line in found if line]


def made_lines() -> list[str]:
    who = ("I", "You", "My old friends", "The two children", "People who live here", "Some of the students in our school")
    does = ("know", "like", "want to see", "have never forgotten", "would rather talk about", "are going to write to")
    what = ("it", "the house", "a small town by the sea", "what you said yesterday", "the man who came to dinner last Friday")
    when = (".", " today.", " every now and then.", ", but nobody believes that any more.", " when it rains and there is nothing to do.")
    return [f"{a} {b} {c}{d}" for d, c, b, a in itertools.product(when, what, does, who)]


def translate_file(source: Path, target: Path, arguments: Sequence[str]) -> tuple[Turn, list[dict[str, float]]]:
    """The command in a process of its own, and its state after each batch."""
    command = [sys.executable, "-c", WATCHED, "translate", "--input", str(source), "--output", str(target), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"regard translate ended with {done.returncode}: {done.stderr}")
    *states, last = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    texts = target.read_text(encoding="utf-8").split("\n")[:-1]
    return Turn(last["ended"] - states[0]["begun"], int(states[-1]["tokens"]), texts), states


def decode_alone(model: regard.Model, lines: list[str], to: str, beam_size: int) -> Turn:
    """All lines at once, and only the seconds that `decode_many` took."""
    decode_many, seconds = writing.decode_many, 0.0

    def timed(*given, **options):  # type: ignore[no-untyped-def]
        nonlocal seconds
        begin = time.perf_counter()
        found = decode_many(*given, **options)
        seconds += time.perf_counter() - begin
        return found

    writing.decode_many = timed
    try:
        answers = model.translate(lines, to, beam_size=beam_size)
    finally:
        writing.decode_many = decode_many
    return Turn(seconds, sum(len(answer.tokens) for answer in answers), [answer.text for answer in answers])


def spread(figures: Sequence[float], digits: str = ",.1f") -> str:
    return f"{statistics.median(figures):{digits}} ({min(figures):{digits}} … {max(figures):{digits}})"


def show_memory(states: Sequence[dict[str, float]], lines: int) -> None:
    print("memory of the process, MiB               now      most")
    ends = [next(place for place, state in enumerate(states) if state["lines"] * 4 >= lines * quarter) for quarter in (1, 2, 3, 4)]
    for state in (states[place] for place in sorted(set(ends))):
        print(f"  after {int(state['lines']):>9,} lines           {state['memory']:9,.0f} {state['peak']:9,.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=4096)
    parser.add_argument("--to", default="de")
    parser.add_argument("--model", default="translator")
    parser.add_argument("--alone", type=int, default=ALL, help="how many of the lines are decoded alone")
    parser.add_argument("--beam-size", type=int, default=4)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=("auto", "float32", "bfloat16", "int8"), default="auto")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    data = os.environ.get("REGARD_DATA")
    known = real_lines(Path(data)) if data else made_lines()
    if not known:
        raise SystemExit(f"{data} has no translate/en-*.test.tsv.gz; unset REGARD_DATA for sentences that are made up")
    random.Random(0).shuffle(known)  # as long in one part of the file as in another
    lines = list(itertools.islice(itertools.cycle(known), min(options.lines, ALL)))
    alone_lines = lines[: options.alone]
    model = regard.load(options.model, device=options.device, precision=options.precision)
    arguments = ["--to", options.to, "--model", options.model, "--precision", options.precision, "--device", options.device]
    arguments += ["--beam-size", str(options.beam_size)]
    turns: dict[str, list[Turn]] = {"file to file": [], "decoding alone": []}
    model.warn = lambda message: None  # of lines that are translated in parts, by both
    model.translate(lines[:256], options.to, beam_size=options.beam_size)  # to warm up
    with tempfile.TemporaryDirectory() as place:
        source, target = Path(place) / "source.txt", Path(place) / "target.txt"
        source.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        for _ in range(options.repeats):
            turn, states = translate_file(source, target, arguments)
            turns["file to file"].append(turn)
            turns["decoding alone"].append(decode_alone(model, alone_lines, options.to, options.beam_size))
    print(f"{len(lines):,} lines ({len(set(lines)):,} different, {'real' if data else 'made up'}), {options.repeats} turns each")
    for name, own in turns.items():
        rates = [len(turn.texts) / turn.seconds for turn in own]
        print(f"  {name:16} {spread(rates)} lines/s, {spread([turn.tokens / turn.seconds for turn in own], ',.0f')} target tokens/s")
    shares = [file.tokens / file.seconds / (alone.tokens / alone.seconds) for file, alone in zip(*turns.values(), strict=True)]
    print(f"  {'share':16} {spread(shares, '.3f')}   {'within' if statistics.median(shares) >= GOAL else 'below'} the goal of {GOAL}")
    file, alone = turns["file to file"][-1], turns["decoding alone"][-1]
    if len(states) > 3:  # what is compiled, recorded and loaded at first is so by then; on a GPU two batches end together
        begun, ended = states[1], states[-1]
        rate = (ended["tokens"] - begun["tokens"]) / (ended["at"] - begun["at"])
        share = rate / (alone.tokens / alone.seconds)
        print(f"  {'sustained':16} {rate:,.0f} target tokens/s after the first two batches, {share:.3f} of decoding alone")
    same = sum(map(str.__eq__, file.texts, alone.texts))
    print(f"  the same words in {same:,} lines of {len(alone.texts):,}")
    show_memory(states, len(lines))
    if options.json:
        record = {
            "lines": len(lines),
            "seconds": {name: [turn.seconds for turn in own] for name, own in turns.items()},
            "tokens": {name: [turn.tokens for turn in own] for name, own in turns.items()},
            "memory": states,
        }
        options.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()

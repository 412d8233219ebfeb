"""Everything that only a GPU can show, in one command: python -m tests.gate.gpu [--out docs/gpu.json] [--without-speed] [--without-tests]

Tests marked gpu; every recipe for some steps with two validations, a checkpoint, a kill and a resume, and its bundle asked; all verbs and
the server; and where all of that passed, three speed benchmarks in a short form. Data come from REGARD_DATA, and what is not there is made
up. Says of each thing as it ends how it ended, and all of it in one table. Whatever hangs is ended, and so is all that has not ended in
nine minutes. Where all of it passed it writes a stamp: when, on what, how much, how fast, and of which code.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import platform
import re
import statistics
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from regard.recipe import load_recipe
from tests.gate.recipes import ROOT, child, in_order, train_kill_resume_ask
from tests.gate.stand_ins import recipes_for
from tests.gate.verbs import ask, commands, serve_and_ask

AT_ONCE = max(2, min(12, (os.cpu_count() or 2) * 3 // 4))
ROWS = 3000  # of data that stands in: enough to fill the batches of the recipes
SECONDS, OF_TESTS, OF_A_BENCHMARK = 530.0, 300.0, 300.0  # for all of it on a GPU; for one file of tests; for one benchmark
SHARES = {"decoding/test_gpu.py": 6, "decoding/test_fused.py": 2, "nn/test_short.py": 2}  # of the files that take longest
STAMP = ROOT / "docs" / "gpu.json"
NONE = 5  # what pytest ends with where it ran no test: all were skipped, or none is marked


class Row(NamedTuple):
    """What was done, how it ended, and in how many seconds."""

    what: str
    how: str
    seconds: float

    @property
    def failed(self) -> bool:
        return self.how.startswith("FAILED")


@dataclass(frozen=True)
class Gate:
    """Where it is done, on what, how many things at once, and until when on the monotonic clock."""

    folder: Path
    device: str
    pool: ThreadPoolExecutor
    until: float

    def begin(self, what: str, work: Callable[[], str], after: Future[Row] | None = None) -> Future[Row]:
        def in_turn() -> Row:
            if after is not None:
                after.result()
            return row(what, work)

        return self.pool.submit(in_turn)


def row(what: str, work: Callable[[], str]) -> Row:
    """Does it, and says so at once: whoever ends the gate before its time knows what there is."""
    began = time.monotonic()
    try:
        how = work()
    except Exception as error:
        how = f"FAILED {error}" if str(error) else f"FAILED {type(error).__name__}"
    done = Row(what, how, time.monotonic() - began)
    sys.stdout.write(f"{done.seconds:4.0f} s  {what}: {how[:3000] if done.failed else _first_line(how)}\n")
    sys.stdout.flush()
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=STAMP)
    parser.add_argument("--without-speed", action="store_true", help="no benchmarks, and so no stamp")
    parser.add_argument("--without-tests", action="store_true", help="no tests marked gpu, and so no stamp")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu: to see that this very command works")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("there is no GPU here that PyTorch can use; what a CPU can show of a GPU's code, make test shows")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        gate = Gate(Path(folder), options.device, pool, began + SECONDS if options.device == "cuda" else math.inf)
        recipes = begin_recipes(gate)
        tests = [] if options.without_tests else begin_tests(gate)
        done = {"recipes": ended(recipes), "commands": ended(begin_commands(gate)), "tests": ended(tests)}
        speeds: dict[str, float] = {}
        if not options.without_speed and options.device == "cuda" and not any(each.failed for rows in done.values() for each in rows):
            done["speeds"] = [row(name, lambda measure=measure: told(speeds, measure(gate))) for name, measure in BENCHMARKS.items()]
    seconds = time.monotonic() - began
    rows = [each for some in done.values() for each in some]
    show(rows, seconds)
    if failed := [each.what for each in rows if each.failed]:
        sys.exit(f"{len(failed)} of {len(rows)} failed: {', '.join(failed)}")
    if speeds and tests:
        options.out.write_text(json.dumps(stamp(done, speeds, seconds), indent=2) + "\n", encoding="utf-8")
        print(f"wrote {options.out}")


def ended(begun: list[Future[Row]]) -> list[Row]:
    return [future.result() for future in begun]


def begin_tests(gate: Gate) -> list[Future[Row]]:
    """Tests marked gpu, each file of them by itself: none waits for another, and none takes another along. Large files in shares."""
    files = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if re.search(r"\bmark\.gpu\b", path.read_text(encoding="utf-8"))]
    names = [(path.relative_to(ROOT).as_posix(), SHARES.get(path.relative_to(ROOT / "tests").as_posix(), 1)) for path in files]
    shares = [(name, f"{number}/{of}") for name, of in sorted(names, key=lambda each: -each[1]) for number in range(1, of + 1)]
    return [gate.begin(f"{name} {share}", lambda name=name, share=share: marked_tests(name, share, gate)) for name, share in shares]


def marked_tests(file: str, share: str, gate: Gate) -> str:
    quiet = ["-p", "no:cacheprovider", "-p", "no:xdist", "--show-capture=no", "-o", f"faulthandler_timeout={OF_TESTS / 2:.0f}"]
    asked = ["-m", "pytest", "-m", "gpu", *quiet, "-p", "tests.gate.share", "--share", share, file]
    done = child(asked, ROOT, gate.device, seconds=OF_TESTS, until=gate.until)
    if done.returncode not in (0, NONE):
        raise AssertionError(f"ended with {done.returncode}\n{done.stdout[-6000:]}\n{done.stderr[-2000:]}")
    return ", ".join(f"{count} {how}" for how, count in counted(done.stdout.strip().splitlines()[-1]).items()) or "no test of it is marked"


def counted(line: str) -> Counter[str]:
    """How many tests passed, were skipped and so on, by the last line of what pytest says."""
    return Counter({how: int(count) for count, how in re.findall(r"(\d+) (passed|skipped|xfailed)", line)})


def begin_recipes(gate: Gate) -> list[Future[Row]]:
    """Every recipe, as many at once as there is room for; one that begins from another's bundle after that one."""
    shipped = ROOT / "recipes"
    root = Path(os.environ["REGARD_DATA"]) if os.environ.get("REGARD_DATA") else None
    recipes_for(shipped, root, gate.folder, ROWS if gate.device == "cuda" else 160)
    begun = {"minilm": gate.begin("what recipes of SST-2 begin with", lambda: _begin_sst2(gate))}
    for name in in_order(shipped):  # parents come first, so that nobody waits for one that has no place
        parent = load_recipe(shipped / f"{name}.toml").begins_from
        before = None if parent is None else begun.get(Path(parent).name)
        begun[name] = gate.begin(f"recipe {name}", lambda name=name: trained(name, gate), before)
    return list(begun.values())


def trained(name: str, gate: Gate) -> str:
    done = train_kill_resume_ask(name, gate.folder, device=gate.device, small=gate.device == "cpu", until=gate.until)
    return f"loss {done.first:.2f} → {done.last:.2f}, dev {done.dev}, {done.asked}"


def _begin_sst2(gate: Gate) -> str:
    """A sentence encoder, here a tiny one, and sentences with labels."""
    from tests.interop.test_sentences import MEAN, NORMALIZE, POOLING, TRANSFORMER, sentence_encoder

    film = gate.folder / "runs" / "film"
    film.mkdir(parents=True)
    lines = (f"{'negative' if number % 2 else 'positive'}\tkalo mi {number} ru\n" for number in range(ROWS))
    (film / "sentences.tsv").write_text("".join(lines), encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = sentence_encoder(gate.folder / "minilm", MEAN, TRANSFORMER, POOLING, NORMALIZE, said={"max_seq_length": 96})
    return ask(["import", str(made), str(gate.folder / "runs" / "minilm")], gate.folder, gate.device, gate.until)


def begin_commands(gate: Gate) -> list[Future[Row]]:
    """All verbs, and the server."""

    def serve() -> str:
        return f"{len(serve_and_ask(gate.folder, gate.device, gate.until))} kinds of requests answered"

    def asked(arguments: list[str]) -> str:
        return " ".join(ask(arguments, gate.folder, gate.device, gate.until).split())[:60]

    verbs = commands(gate.folder, gate.device)
    return [gate.begin("serve", serve), *(gate.begin(name, lambda given=given: asked(given)) for name, given in verbs.items())]


def told(speeds: dict[str, float], found: dict[str, float]) -> str:
    speeds |= found
    return ", ".join(f"{value:,.0f} ({name})" for name, value in found.items())


def _benchmark(gate: Gate, script: str, *arguments: str) -> Any:
    result = gate.folder / f"{script}.json"
    asked = [str(ROOT / "benchmarks" / script), *arguments, "--json", str(result)]
    done = child(asked, ROOT, "cuda", seconds=OF_A_BENCHMARK, until=gate.until)
    if done.returncode:
        raise AssertionError(f"{script} ended with {done.returncode}\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}")
    return json.loads(result.read_text())


def training_speed(gate: Gate) -> dict[str, float]:
    found = _benchmark(gate, "train_gpu.py", "--only", "pairs: regard", "gpt2: regard", "--patience", "240")
    bad = {name: figures["error"][-500:] for name, figures in found.items() if "error" in figures}
    if bad:
        raise AssertionError(str(bad))
    return {f"trained tokens/s, {name}": figures["tokens_per_second"] for name, figures in found.items()}


def decoding_speed(gate: Gate) -> dict[str, float]:
    found = _benchmark(gate, "decode_gpu.py", "--repeats", "2")["tokens_per_second"]
    return {f"decoded tokens/s, {work}": statistics.median(turns["regard"]) for work, turns in found.items()}


def file_speed(gate: Gate) -> dict[str, float]:
    asked = ("--lines", "8192", "--alone", "8192", "--repeats", "1", "--device", "cuda", "--precision", "bfloat16")
    found = _benchmark(gate, "file.py", *asked)
    return {"lines/s from file to file, beam 4": found["lines"] / statistics.median(found["seconds"]["file to file"])}


BENCHMARKS = {"training": training_speed, "decoding": decoding_speed, "a file": file_speed}


def code() -> str:
    """find regard -name '*.py' | LC_ALL=C sort | xargs sha256sum | sha256sum"""
    files = sorted(path.relative_to(ROOT).as_posix().encode() for path in (ROOT / "regard").rglob("*.py"))
    lines = b"".join(hashlib.sha256((ROOT / name.decode()).read_bytes()).hexdigest().encode() + b"  " + name + b"\n" for name in files)
    return hashlib.sha256(lines).hexdigest()


def stamp(done: dict[str, list[Row]], speeds: dict[str, float], seconds: float) -> dict[str, Any]:
    import triton

    tests = sum((counted(each.how) for each in done["tests"]), Counter[str]())
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "gpu": torch.cuda.get_device_name(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "triton": triton.__version__},
        "tests": ", ".join(f"{count} {how}" for how, count in tests.items()),
        "recipes": sum(each.what.startswith("recipe ") for each in done["recipes"]),
        "commands": len(done["commands"]),
        "seconds": round(seconds),
        "data": "real where REGARD_DATA has it" if os.environ.get("REGARD_DATA") else "made up",
        "speeds": {name: round(value) for name, value in speeds.items()},
        "code": code(),
    }


def show(rows: list[Row], seconds: float) -> None:
    table = Table(title=f"{len(rows)} things, {seconds:.0f} s", title_justify="left")
    for column in ("what", "how it ended", "s"):
        table.add_column(column, justify="right" if column == "s" else "left", overflow="fold")
    for each in rows:
        table.add_row(each.what, each.how[:8000] if each.failed else _first_line(each.how), f"{each.seconds:.0f}")
    Console(width=170, markup=False, highlight=False).print(table)


def _first_line(how: str) -> str:
    return how.strip().partition("\n")[0][:110]


if __name__ == "__main__":
    main()

"""Everything that only a GPU can show, in one command: python -m tests.gate.gpu [--out docs/gpu.json] [--without-speed] [--without-tests]

Tests marked gpu; every recipe for some steps with two validations, a checkpoint, a kill and a resume, and its bundle asked; all verbs and
the server; three speed benchmarks in a short form. Data come from REGARD_DATA, and what is not there is made up. Prints one table. Where
all of it passed it writes a stamp: when, on what, how much, how fast, and of which code.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from regard.recipe import load_recipe
from tests.gate.recipes import ROOT, environment, in_order, train_kill_resume_ask
from tests.gate.stand_ins import recipes_for
from tests.gate.verbs import ask, commands, serve_and_ask

AT_ONCE = max(2, min(8, (os.cpu_count() or 2) // 2))
ROWS = 3000  # of data that stands in: enough to fill the batches of the recipes
STAMP = ROOT / "docs" / "gpu.json"
Row = tuple[str, str, float]  # what, how it ended, seconds


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
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(AT_ONCE + 1) as pool:
        tests = None if options.without_tests else pool.submit(timed, marked_tests, Path(folder))
        rows = trained(Path(folder), options.device, pool)
        rows += asked(Path(folder), options.device, pool)
        if tests is not None:
            rows.insert(0, tests.result())
        speeds: dict[str, float] = {}
        if not options.without_speed and options.device == "cuda":
            for name, measure in BENCHMARKS.items():
                row, found = measured(name, measure, Path(folder))
                rows.append(row)
                speeds |= found
    seconds = time.monotonic() - began
    show(rows, speeds, seconds)
    failed = [what for what, how, _ in rows if how.startswith("FAILED")]
    if failed:
        sys.exit(f"{len(failed)} of {len(rows)} failed: {', '.join(failed)}")
    if speeds and not options.without_tests:
        options.out.write_text(json.dumps(stamp(rows, speeds, seconds), indent=2) + "\n", encoding="utf-8")
        print(f"wrote {options.out}")


def timed(work: Callable[[Path], str], folder: Path) -> Row:
    began = time.monotonic()
    try:
        how = work(folder)
    except Exception as error:
        how = f"FAILED {error}"
    return work.__name__.replace("_", " "), how, time.monotonic() - began


def marked_tests(folder: Path) -> str:
    """Tests marked gpu, and what came of them."""
    quiet = ["-p", "no:cacheprovider", "-p", "no:benchmark", "--show-capture=no"]
    parallel = ["-n", str(AT_ONCE)] if _has("xdist") else []
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "gpu", *quiet, *parallel, str(ROOT / "tests")],
        cwd=ROOT, env=environment("cuda"), capture_output=True, text=True, timeout=540, check=False,
    )  # fmt: skip
    counts = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr[-500:]
    if done.returncode:
        raise AssertionError(counts + "\n" + done.stdout[-6000:])
    return re.sub(r"^=+ | in .*|, \d+ deselected| =+$", "", counts)


def _has(module: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(module) is not None


def trained(folder: Path, device: str, pool: ThreadPoolExecutor) -> list[Row]:
    """Every recipe, as many at once as there is room for; one that begins from another's bundle after that one."""
    shipped = ROOT / "recipes"
    root = Path(os.environ["REGARD_DATA"]) if os.environ.get("REGARD_DATA") else None
    recipes_for(shipped, root, folder, ROWS if device == "cuda" else 160)
    _begin_sst2(folder, device)
    futures: dict[str, Future[Row]] = {}

    def train(name: str) -> Row:
        began, parent = time.monotonic(), load_recipe(shipped / f"{name}.toml").begins_from
        if parent is not None and (before := futures.get(Path(parent).name)) is not None:
            before.result()
        try:
            done = train_kill_resume_ask(name, folder, device=device, small=device == "cpu")
        except Exception as error:
            return f"recipe {name}", f"FAILED {error}", time.monotonic() - began
        return f"recipe {name}", f"loss {done.first:.2f} → {done.last:.2f}, dev {done.dev}, {done.asked}", done.seconds

    for name in in_order(shipped):  # parents come first, so that nobody waits for one that has no place
        futures[name] = pool.submit(train, name)
    return [future.result() for future in futures.values()]


def _begin_sst2(folder: Path, device: str) -> None:
    """What the recipes of SST-2 begin with: a sentence encoder, here a tiny one, and sentences with labels."""
    from tests.interop.test_sentences import MEAN, NORMALIZE, POOLING, TRANSFORMER, sentence_encoder

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = sentence_encoder(folder / "minilm", MEAN, TRANSFORMER, POOLING, NORMALIZE, said={"max_seq_length": 96})
    ask(["import", str(made), str(folder / "runs" / "minilm")], folder, device)
    (folder / "runs" / "film").mkdir()
    lines = (f"{'negative' if number % 2 else 'positive'}\tkalo mi {number} ru\n" for number in range(ROWS))
    (folder / "runs" / "film" / "sentences.tsv").write_text("".join(lines), encoding="utf-8")


def asked(folder: Path, device: str, pool: ThreadPoolExecutor) -> list[Row]:
    def one(name: str, arguments: list[str]) -> Row:
        began = time.monotonic()
        try:
            printed = ask(arguments, folder, device)
        except Exception as error:
            return name, f"FAILED {error}", time.monotonic() - began
        return name, " ".join(printed.split())[:60], time.monotonic() - began

    futures = [pool.submit(one, name, arguments) for name, arguments in commands(folder, device).items()]

    def serve(folder: Path) -> str:
        return f"{len(serve_and_ask(folder, device))} kinds of requests answered"

    return [*(future.result() for future in futures), timed(serve, folder)]


def measured(name: str, measure: Callable[[Path], dict[str, float]], folder: Path) -> tuple[Row, dict[str, float]]:
    began = time.monotonic()
    try:
        found = measure(folder)
    except Exception as error:
        return (name, f"FAILED {error}", time.monotonic() - began), {}
    return (name, ", ".join(f"{value:,.0f} ({key})" for key, value in found.items()), time.monotonic() - began), found


def _benchmark(folder: Path, script: str, *arguments: str) -> Any:
    result = folder / f"{script}.json"
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / script), *arguments, "--json", str(result)],
        cwd=ROOT, env=environment("cuda"), capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    if done.returncode:
        raise AssertionError(f"{script} ended with {done.returncode}\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}")
    return json.loads(result.read_text())


def training_speed(folder: Path) -> dict[str, float]:
    found = _benchmark(folder, "train_gpu.py", "--only", "pairs: regard", "gpt2: regard", "--patience", "240")
    bad = {name: figures["error"][-500:] for name, figures in found.items() if "error" in figures}
    if bad:
        raise AssertionError(str(bad))
    return {f"trained tokens/s, {name}": figures["tokens_per_second"] for name, figures in found.items()}


def decoding_speed(folder: Path) -> dict[str, float]:
    found = _benchmark(folder, "decode_gpu.py", "--repeats", "2")["tokens_per_second"]
    return {f"decoded tokens/s, {work}": statistics.median(turns["regard"]) for work, turns in found.items()}


def file_speed(folder: Path) -> dict[str, float]:
    asked = ("--lines", "8192", "--alone", "8192", "--repeats", "1", "--device", "cuda", "--precision", "bfloat16")
    found = _benchmark(folder, "file.py", *asked)
    return {"lines/s from file to file, beam 4": found["lines"] / statistics.median(found["seconds"]["file to file"])}


BENCHMARKS = {"training": training_speed, "decoding": decoding_speed, "a file": file_speed}


def code() -> str:
    """find regard -name '*.py' | LC_ALL=C sort | xargs sha256sum | sha256sum"""
    files = sorted(path.relative_to(ROOT).as_posix().encode() for path in (ROOT / "regard").rglob("*.py"))
    lines = b"".join(hashlib.sha256((ROOT / name.decode()).read_bytes()).hexdigest().encode() + b"  " + name + b"\n" for name in files)
    return hashlib.sha256(lines).hexdigest()


def stamp(rows: list[Row], speeds: dict[str, float], seconds: float) -> dict[str, Any]:
    import triton

    return {
        "date": datetime.now(UTC).date().isoformat(),
        "gpu": torch.cuda.get_device_name(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "triton": triton.__version__},
        "tests": rows[0][1],
        "recipes": sum(what.startswith("recipe ") for what, _, _ in rows),
        "commands": sum(not what.startswith("recipe ") for what, _, _ in rows[1:]) - len(BENCHMARKS),
        "seconds": round(seconds),
        "data": "real where REGARD_DATA has it" if os.environ.get("REGARD_DATA") else "made up",
        "speeds": {name: round(value) for name, value in speeds.items()},
        "code": code(),
    }


def show(rows: list[Row], speeds: dict[str, float], seconds: float) -> None:
    table = Table(title=f"{len(rows)} things, {seconds:.0f} s", title_justify="left")
    for column in ("what", "how it ended", "s"):
        table.add_column(column, justify="right" if column == "s" else "left", overflow="fold")
    for what, how, spent in rows:
        table.add_row(what, how[:8000] if how.startswith("FAILED") else how.splitlines()[0][:110], f"{spent:.0f}", end_section=False)
    Console(width=170, markup=False, highlight=False).print(table)


if __name__ == "__main__":
    main()

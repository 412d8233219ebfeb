"""Training speed on one GPU: ours beside torch.nn.Transformer and Hugging Face, on the same sentences, in one run.

    python benchmarks/train_gpu.py [--json FILE] [--only NAME…] [--patience SECONDS]

Two pieces of work, each forward, backward and the optimiser's step, in bfloat16 with float32 weights:

- pairs: the paper's base model (6 + 6 layers of 512, vocabulary 32,768, tied, dropout and label smoothing 0.1), about 25,000 target tokens
  a batch of sentences of 4 to 200 tokens. Peers read padded batches of like length, ours packed rows. Real target tokens count.
- gpt2: 124 M parameters at 1,024 tokens, no dropout. Also as a share of the matrix unit's 989 TFLOP/s, by nanoGPT's formula.

Every contender has a process of its own. All are made ready at once, since compiling takes most of the time; then they are measured one
after the other, alone on the GPU, and the median of three rounds counts.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
import traceback
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from train_contenders import BATCHES, CONTENDERS, Contender

WARMUP, ROUNDS, STEPS = 6, 3, 30
PEAK = 989e12  # FLOP/s of an H100 or H200 in bfloat16, by its datasheet
GROUPS = {  # of kernels, by parts of their names; the first that fits counts
    "loss over the vocabulary": ("_surprise", "nll_loss", "softmax", "SoftMax"),
    "attention": ("_short_", "flash", "fmha", "cudnn"),
    "matrix products": ("gemm", "nvjet", "cutlass", "splitK"),
    "optimiser": ("FusedOptimizer", "adam", "multi_tensor"),
    "norms, dropout, residuals, activations": ("_norm_", "triton", "elementwise", "reduce"),
}


def work(name: str, pipe: Connection) -> None:
    """A contender's process: makes ready, then does as it is told until the pipe is closed."""
    try:
        torch.manual_seed(0)
        torch.set_float32_matmul_precision("high")
        contender = CONTENDERS[name]()
        warm(contender, name)
        graphs = compilations()
        torch.cuda.empty_cache()  # the others are still at it
        pipe.send({"ready": True})
        while (asked := pipe.recv()) is not None:
            if asked == "measure":
                warm(contender, name)
                rounds = [timed(contender) for _ in range(ROUNDS)]
                pipe.send(figures(contender, rounds) | {"recompiled": compilations() - graphs})
            else:
                pipe.send(profiled(contender))
    except BaseException:
        pipe.send({"error": traceback.format_exc()[-3000:]})


def warm(contender: Contender, name: str) -> None:
    """Every shape once, so that it is compiled and has its memory."""
    for _ in range(WARMUP + (BATCHES if "pairs" in name else 0)):
        contender.step()
    torch.cuda.synchronize()


def figures(contender: Contender, rounds: list[tuple[float, int]]) -> dict[str, float]:
    speeds = [tokens / seconds for seconds, tokens in rounds]
    middle = statistics.median(speeds)
    return {
        "tokens_per_second": middle,
        "spread": (max(speeds) - min(speeds)) / 2 / middle,
        "milliseconds": 1000 * statistics.median(seconds for seconds, _ in rounds) / STEPS,
        "memory": torch.cuda.max_memory_allocated() / 2**30,
        "peak": middle * contender.flops_per_token / PEAK,
    }


def compilations() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def timed(contender: Contender) -> tuple[float, int]:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    contender.step()  # the machine is warm and the queue is full
    begin.record()
    tokens = sum(contender.step() for _ in range(STEPS))
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1000, tokens


def profiled(contender: Contender, steps: int = 4) -> dict[str, Any]:
    """Milliseconds a step by group of kernels, and the kernels that take longest."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(steps):
            contender.step()
        torch.cuda.synchronize()
    kernels = {event.key: (event.self_device_time_total / 1000 / steps, event.count / steps) for event in profile.key_averages()}
    groups = dict.fromkeys([*GROUPS, "copies and the rest"], 0.0)
    for name, (spent, _) in kernels.items():
        groups[next((group for group, parts in GROUPS.items() if any(part in name for part in parts)), "copies and the rest")] += spent
    top = sorted(kernels.items(), key=lambda item: -item[1][0])[:60]
    return {
        "groups": groups,
        "launches": sum(count for _, count in kernels.values()),
        "kernels": [(name[:150], *spent) for name, spent in top],
    }


def run(names: list[str], patience: float = 600) -> dict[str, Any]:
    """Everyone's figures by name, and a profile of each of ours."""
    context = get_context("spawn")
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")
    workers = {}
    for name in names:
        here, there = context.Pipe()
        process = context.Process(target=work, args=(name, there), daemon=True)
        process.start()
        there.close()  # so that it is known here when the process ends
        workers[name] = (process, here)
    ready = wait_for({name: pipe for name, (_, pipe) in workers.items()}, patience)
    found: dict[str, Any] = {}
    for name, (process, _) in workers.items():
        if "error" in ready[name]:  # it must not disturb the others
            process.kill()
            found[name] = ready[name]
    for name, (_, pipe) in workers.items():
        if name not in found:
            found[name] = answer(pipe, "measure")
            if "regard" in name and "error" not in found[name]:
                found[name]["profile"] = answer(pipe, "profile")
            answer(pipe, None)
            print(f"{name}: { {key: value for key, value in found[name].items() if key != 'profile'} }", file=sys.stderr, flush=True)
    return found


def wait_for(pipes: dict[str, Connection], patience: float) -> dict[str, Any]:
    """What each contender says when it is ready; whoever takes longer than `patience` seconds is left out."""
    begun, ready = time.monotonic(), dict[str, Any]()
    while len(ready) < len(pipes) and (left := patience - (time.monotonic() - begun)) > 0:
        said = wait([pipe for name, pipe in pipes.items() if name not in ready], left)
        for name, pipe in pipes.items():
            if pipe in said:
                ready[name] = answer(pipe)
                how = ready[name].get("error", "ready")
                print(f"{name}: {how} after {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    return {name: ready.get(name, {"error": f"not ready after {patience:.0f} s"}) for name in pipes}


def answer(pipe: Connection, asked: str | None = "") -> dict[str, Any]:
    """What a process says, to what it is asked or by itself."""
    try:
        if asked != "":
            pipe.send(asked)
        return {} if asked is None else pipe.recv()
    except (EOFError, OSError) as error:
        return {"error": f"its process ended: {error!r}"}


def show(found: dict[str, Any]) -> None:
    console = Console(width=150)
    for job in ("pairs", "gpt2"):
        rows = {name.split(": ")[1]: figures for name, figures in found.items() if name.startswith(job) and "error" not in figures}
        best = max((figures["tokens_per_second"] for name, figures in rows.items() if "regard" not in name), default=math.nan)
        table = Table(title=f"{job}: forward, backward and the optimiser's step ({torch.cuda.get_device_name()})", title_justify="left")
        for column in ("", "k tokens/s", "ms a step", "of the best peer", "of 989 TFLOP/s", "GiB", "compiled after warm-up"):
            table.add_column(column, justify="left" if not column else "right")
        for name, figures in rows.items():
            table.add_row(
                *(name, f"{figures['tokens_per_second'] / 1000:.0f} ±{figures['spread']:.1%}", f"{figures['milliseconds']:.1f}"),
                *(f"{figures['tokens_per_second'] / best:.2f} ×", f"{figures['peak']:.1%}" if figures["peak"] else ""),
                *(f"{figures['memory']:.1f}", str(figures["recompiled"])),
            )
        console.print(table)
        for name, figures in rows.items():
            if "profile" in figures:
                profile = figures["profile"]
                spent = ", ".join(f"{group} {value:.1f}" for group, value in profile["groups"].items())
                busy = sum(profile["groups"].values())
                console.print(f"{name}, ms a step: {spent}; in all {busy:.1f} in {profile['launches']:.0f} kernels")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="+", default=[], help="contenders whose names contain one of these")
    parser.add_argument("--patience", type=float, default=600, help="seconds until a contender must have compiled, or is left out")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this measures training on a GPU, and there is none here")
    found = run([name for name in CONTENDERS if not arguments.only or any(part in name for part in arguments.only)], arguments.patience)
    show(found)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()

"""Compiles the kernels for a GPU of compute capability 9.0 (an H200) where there is none, and tells the hash of what each becomes.

A kernel that was moved or renamed keeps its hash; one that computes otherwise does not. What a compiler makes depends on its version, so
the table beside this file says which Triton it is of. Make it anew with `python -m tests.without_gpu.ptx --write`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)  # before any kernel is defined
os.environ["TRITON_DISABLE_LINE_INFO"] = "1"

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from regard.decoding import fused
from regard.decoding.settings import GREEDY, Beam, Method
from regard.nn import one_query, residual, short
from regard.nn.cache import KeyValues
from regard.nn.masks import Boundaries, Mask
from regard.training.surprise import surprise
from tests.without_gpu.laws import search_of

TABLE = Path(__file__).with_name("ptx.json")


class Absent:
    """A GPU that is asked what it is, and for nothing else."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def half(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


def attend_one(width: int, *, writes: bool, masked: bool, group: int = 1, dtype: torch.dtype = torch.bfloat16) -> None:
    keys, values = (half(3, 4, 256, width, dtype=dtype) for _ in range(2))
    query, new = half(3, 4 * group, 4, width, dtype=dtype), KeyValues(*(half(3, 4, 4, width, dtype=dtype) for _ in range(2)))
    mask = Mask(torch.ones(3, 1, 4, 256, dtype=torch.bool) if masked else None)
    one_query.attend(query, keys, values, mask, 0.125, new=new if writes else None, slots=torch.arange(4) if writes else None)


def attend_short(width: int) -> None:
    edges = Boundaries(torch.tensor([0, 100, 256], dtype=torch.int32), 156)
    seen = short.spans(edges, edges, 256, None, 1)
    query, key, value = half(1, 8, 256, width), half(1, 4, 256, width), half(1, 4, 256, width)
    output, logsum = short.short_attention._init_fn(query, key, value, seen, seen, 0.125, True)
    short.short_attention_backward._init_fn(query, key, value, output, logsum, half(256, 8, width), seen, seen, 0.125, True)


def add_norm(dropout: float) -> None:
    x, weight, seed = half(64, 512), torch.ones(512), torch.zeros(1, dtype=torch.long)
    output, added, mean, scale = residual._add_norm._init_fn(x, x, weight, weight, seed, dropout, 1e-5)
    residual._add_norm_backward._init_fn(output, added, weight, seed, mean, scale, dropout)


def lose(slopes: bool, dtype: torch.dtype = torch.bfloat16) -> None:
    surprise(half(64, 32768, dtype=dtype), torch.zeros(64, dtype=torch.long), torch.ones(64, dtype=torch.bool), 0.1, 32000, slopes=slopes)


def search(method: Method, dtype: torch.dtype) -> None:
    made = search_of(method, [3, 3], "16+1x")
    if isinstance(method, Beam) and method.size > 1:
        made.vacate(torch.arange(2))
    logits = torch.zeros(2, made.hypotheses, 32000, dtype=dtype)
    (fused.greedy if method is GREEDY else fused.beam)(made, logits)


CASES: dict[str, Callable[[], None]] = {
    "one query, 64": lambda: attend_one(64, writes=True, masked=True),
    "one query, 64, of a source": lambda: attend_one(64, writes=False, masked=True),
    "one query, 128, grouped": lambda: attend_one(128, writes=True, masked=True, group=4),
    "one query, 64, no mask": lambda: attend_one(64, writes=False, masked=False),
    "one query, 64, float16": lambda: attend_one(64, writes=True, masked=True, dtype=torch.float16),
    "one query, 16, writes, no mask": lambda: attend_one(16, writes=True, masked=False),
    "short documents, 32": lambda: attend_short(32),
    "short documents, 64": lambda: attend_short(64),
    "short documents, 128": lambda: attend_short(128),
    "add and norm": lambda: add_norm(0.0),
    "add and norm, dropout": lambda: add_norm(0.1),
    "add and norm alone": lambda: residual.add_norm_alone(half(2, 3, 512), half(2, 3, 512), torch.nn.LayerNorm(512).bfloat16()) and None,
    "surprise": lambda: lose(False),
    "surprise and slopes": lambda: lose(True),
    "surprise and slopes, float32": lambda: lose(True, torch.float32),
    "greedy": lambda: search(GREEDY, torch.bfloat16),
    "a beam": lambda: search(Beam(size=4), torch.bfloat16),
    "a beam, float32": lambda: search(Beam(size=4), torch.float32),
}


@contextmanager
def compiled_only(found: list[tuple[str, str]]) -> Iterator[None]:
    """Launches compile, and launch nothing."""
    run = JITFunction.run

    def compile_it(self: Any, *given: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        kernel = run(self, *given, grid=grid, warmup=True, **named)
        found.append((self.__name__, kernel.asm["ptx"]))
        return kernel

    driver.set_active(Absent())  # for good: this process is for nothing else
    JITFunction.run = compile_it
    try:
        yield
    finally:
        JITFunction.run = run


def hashes(launched: set[str] | None = None) -> dict[str, str]:
    """Of every kernel that each case launches; their names are added to those `launched`."""
    table = {}
    for case, launch in CASES.items():
        found: list[tuple[str, str]] = []
        with compiled_only(found), torch.inference_mode():
            launch()
        for number, (name, ptx) in enumerate(found):
            table[f"{case} {number + 1}" if len(found) > 1 else case] = _hash(ptx, name)
        if launched is not None:
            launched |= {name for name, _ in found}
    return table


def _hash(ptx: str, name: str) -> str:
    """Of the instructions: no comments, and no name."""
    plain = re.sub(r"\s*//.*", "", ptx).replace(name, "kernel")
    return hashlib.sha256(plain.encode()).hexdigest()[:16]


if __name__ == "__main__":
    names: set[str] = set()
    made = {"triton": triton.__version__, "kernels": hashes(names)}
    if "--write" in sys.argv:
        TABLE.write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
    else:
        print(json.dumps(made | {"launched": sorted(names)}, indent=2))

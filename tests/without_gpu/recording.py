"""Decoding and training as on a GPU, where positions and steps are recorded, with a tape in place of CUDA's graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.decoding import many, runner, table
from regard.decoding.kept import Kept
from regard.decoding.many import decode_many
from regard.decoding.search import Hypothesis
from regard.decoding.settings import GREEDY, Beam, Method, Rules, Sampling
from regard.models import Generator
from regard.models.state import StackState
from regard.nn.cache import REACH_STEP
from regard.recipe import parse_recipe
from regard.training.checkpoint import Checkpoints
from regard.training.distributed import World
from regard.training.prepare import prepare
from regard.training.replay import Replayed
from regard.training.report import Report
from regard.training.trainer import Trainer
from tests.decoding.lively import LONGEST, SOURCES, lively
from tests.without_gpu.tape import Tapes

METHODS: dict[str, Method] = {
    "greedy": GREEDY,
    "beam": Beam(size=4, n_best=2),
    "groups": Beam(size=4, groups=2),
    "sampling": Sampling(temperature=0.8, top_k=12, top_p=0.9, seed=5),
}
RULES = {
    "plain": Rules(max_length=LONGEST),
    "all": Rules(max_length="3+1x", min_length=3, no_repeat=2, repetition_penalty=1.3, banned=[[12], [16, 23]], never=[5]),
}
STEPS = 12
Words = list[list[tuple[tuple[int, ...], float]]]


@contextmanager
def scheduled_as_on_a_gpu(tapes: Tapes | None, rows: int = 2048) -> Iterator[None]:
    """Sources leave, come and are looked at as on a GPU, on which a batch has so many rows."""
    with pytest.MonkeyPatch.context() as patch:
        for constants in (runner.CHECK_EVERY, runner.DROP_AT, table.LET_IN_AT):
            patch.setitem(constants, "cpu", constants["cuda"])
        patch.setitem(REACH_STEP, "cpu", 32)
        patch.setitem(many.ROWS, "cpu", rows)
        patch.setattr(many, "crew_for", lambda rows: 1)
        patch.setattr(many, "ENOUGH", rows)
        patch.setattr(StackState, "clears", property(lambda self: False))
        patch.setattr(table.Table, "_has_sizes", property(lambda self: True))
        patch.setattr(runner, "graphs_on", lambda device: tapes)
        yield


def written(model: Generator, sources: Sequence[Sequence[int]], method: Method, rules: Rules, kept: Kept | None = None) -> Words:
    """Words with their scores, to the last bit."""
    return told(decode_many(model, sources, method, rules, numbers=range(len(sources)), kept=kept))


def told(found: list[list[Hypothesis]]) -> Words:
    return [[(hypothesis.tokens, hypothesis.score) for hypothesis in row] for row in found]


def decoding_law(kind: str, name: str, rules: str, *, rows: int = 2048, kept: bool = False, count: int = 14) -> Tapes:
    """Replayed, a text gets the same words and scores as called, to the bit: alone, after others, and at tables that are kept."""
    model, tapes = lively(kind), Tapes()
    sources = [[*source] for source in SOURCES[:count]]
    want = called(kind, name, rules, rows, kept, count)
    with scheduled_as_on_a_gpu(tapes, rows):
        pool = Kept() if kept else None
        for turn in range(1 + kept):
            found = written(model, sources, METHODS[name], RULES[rules], pool)
            assert found == want, f"{kind}, {name}, {rules}, turn {turn}"
    assert tapes.recorded
    assert tapes.replayed > tapes.recorded
    return tapes


@cache
def called(kind: str, name: str, rules: str, rows: int, kept: bool, count: int) -> Words:
    with scheduled_as_on_a_gpu(None, rows):
        return written(lively(kind), [[*source] for source in SOURCES[:count]], METHODS[name], RULES[rules], Kept() if kept else None)


def training_law(tmp_path: Path, **training: Any) -> Tapes:
    """Steps that are replayed learn what steps that are called do, to the bit: dropout, optimizer and learning rate go on changing."""
    tapes = Tapes()
    want, found = trained(tmp_path / "called", None, **training), trained(tmp_path / "replayed", tapes, **training)
    assert torch.equal(found[0], want[0]), "figures"
    assert found[1].keys() == want[1].keys()
    assert all(torch.equal(found[1][name], tensor) for name, tensor in want[1].items()), "weights"
    assert tapes.recorded == 1
    assert tapes.replayed >= STEPS // 2
    return tapes


def trained(out: Path, tapes: Tapes | None, **training: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """The figures of all steps, and the weights after them."""
    recipe = parse_recipe({
        "task": "translate",
        "data": {"synthetic": "reverse", "examples": 600, "max_length": 16},
        "tokenizer": {"kind": "char", "size": 40},
        "model": {"preset": "transformer-tiny", "layers": 1, "width": 32, "heads": 2, "feedforward": 64, "dropout": 0.1},
        "training": {"steps": STEPS, "batch_tokens": 256, "layout": "packed", "warmup": 3, "lr": 1e-3, "log_every": 4, **training},
        "decoding": {"examples": 0},
    })  # fmt: skip
    adamw, figures = torch.optim.AdamW, []

    def fused(groups: Any, **settings: Any) -> torch.optim.AdamW:
        """As on a GPU: what changes between steps is in tensors."""
        groups = [{**group, "lr": torch.tensor(float(group["lr"]))} for group in groups]
        return adamw(groups, **{**settings, "fused": True, "capturable": False})

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(out / "cache"))
        patch.setattr(torch.optim, "AdamW", fused)
        prepared = prepare(recipe, None, lambda message: None)
        trainer = Trainer(recipe, prepared, Checkpoints(out / "run", 1, 1), World(0, 1, torch.device("cpu")), Report(None, STEPS, 4))
        if tapes is not None:
            trainer.replayed = Replayed(lambda batch, counts: trainer._learn((batch,), counts), tapes, trainer.optimizer.zero_grad)
        update = trainer._update
        patch.setattr(trainer, "_update", lambda step: figures.append(found := update(step)) or found)
        patch.setattr(trainer, "_validate", lambda: None)
        trainer.train()
    return torch.stack(figures), {name: tensor.clone() for name, tensor in trainer.objective.model.state_dict().items()}

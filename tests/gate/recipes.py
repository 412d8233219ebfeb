"""Every recipe that ships, for a few steps: two validations, a checkpoint, a kill and a resume, and its bundle asked."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from regard.recipe import Recipe, load_recipe

ROOT = Path(__file__).parent.parent.parent
STEPS, VALIDATE, SAVE = 12, 6, 4
KILLED = -9
LIMIT = {"cuda": 180.0, "cpu": 600.0}  # seconds for one child

# What makes a recipe's model and data small enough for two cores; what begins from a bundle has that bundle's shape.
SMALL = {
    "data.max_length": 64,
    "training.batch_tokens": 512,
    "decoding.max_length": 12,
    "tokenizer.size": 300,
    "model.layers": 2,
    "model.width": 32,
    "model.heads": 2,
    "model.feedforward": 64,
}
FEW = {
    "training.steps": STEPS,
    "training.validate_every": VALIDATE,
    "training.checkpoint_every": SAVE,
    "training.warmup": 2,
    "training.log_every": 1,
    "decoding.examples": 6,
}
ASK = """
import sys, regard
model = regard.load(sys.argv[1])
verb = next(each for each in ("classify", "translate", "generate", "fill", "embed") if each in model.verbs)
text = sys.argv[3] if verb != "fill" else sys.argv[3] + " [MASK]"
options = {} if verb in ("classify", "fill", "embed") else {"max_length": 8}
if verb == "translate" and model.languages:
    options["to"] = model.languages[0]
answer = getattr(model, verb)(text, **options)
again = getattr(model, verb)([text, text], **options)
print(model.device.type, verb, type(answer).__name__, len(again))
assert model.device.type == sys.argv[2], model.device
"""


@dataclass(frozen=True)
class Trained:
    """What came of a recipe."""

    name: str
    seconds: float
    first: float  # training loss at the first step
    last: float  # and at the last
    dev: str  # its figure at the last validation
    asked: str


class GateError(AssertionError):
    """What a recipe did not do, with the end of what it printed."""


def child(
    arguments: Sequence[str], place: Path, device: str, *, seconds: float | None = None, until: float = math.inf
) -> subprocess.CompletedProcess[str]:
    """What came of a Python with these arguments. It has so many seconds, and none beyond `until` on the monotonic clock."""
    left = min(LIMIT[device] if seconds is None else seconds, until - time.monotonic())
    if left <= 0:
        raise GateError("not begun: there was no time left")
    try:
        return subprocess.run(
            [sys.executable, *arguments], cwd=place, env=environment(device), capture_output=True, text=True, timeout=left, check=False
        )
    except subprocess.TimeoutExpired as late:
        said = "\n".join(part.decode(errors="replace")[-3000:] for part in (late.stdout, late.stderr) if isinstance(part, bytes))
        raise GateError(f"did not end in {left:.0f} s: {' '.join(arguments)[:200]}\n{said}") from None


def in_order(recipes: Path) -> list[str]:
    """The names of all recipes, those first whose bundles others begin from."""
    begins = {path.stem: _parent(load_recipe(path)) for path in sorted(recipes.glob("*.toml"))}
    done: list[str] = []
    while len(done) < len(begins):
        done += [name for name, parent in begins.items() if name not in done and (parent not in begins or parent in done)]
    return done


def _parent(recipe: Recipe) -> str | None:
    return None if recipe.begins_from is None else Path(recipe.begins_from).name


def settings_for(recipe: Recipe, *, small: bool) -> dict[str, object]:
    chosen: dict[str, object] = dict(FEW)
    if recipe.begins_from is not None and not small:
        chosen |= {"data.max_length": SMALL["data.max_length"]}  # what stands in for a sentence encoder reads no long texts
    if small:
        chosen |= SMALL
        if recipe.tokenizer.kind == "char":
            del chosen["tokenizer.size"]
        own = recipe.begins_from is not None
        rnn = recipe.kind == "rnn"
        left_out = {key for key in SMALL if (own and key.startswith(("model.", "tokenizer."))) or (rnn and key.startswith("model."))}
        chosen = {key: value for key, value in chosen.items() if key not in left_out}
        if rnn:
            chosen |= {"model.width": 32}
        if "kv_heads" in recipe.model:
            chosen |= {"model.kv_heads": 2}
        if "decoder_layers" in recipe.model:
            chosen |= {"model.decoder_layers": 1}
    return chosen


def train_kill_resume_ask(name: str, place: Path, *, device: str, small: bool, until: float = math.inf) -> Trained:
    """Trains a recipe of `place` until it is killed, resumes it to its end, and asks its bundle; all of it `until` a time."""
    began = time.monotonic()
    recipe = load_recipe(place / "recipes" / f"{name}.toml")
    changes = [part for key, value in settings_for(recipe, small=small).items() for part in ("--set", f"{key}={json.dumps(value)}")]
    run = place / "runs" / name
    arguments = [str(place / "recipes" / f"{name}.toml"), "--data-dir", str(place / "data"), "--out", str(run), *changes]
    killed = child([str(Path(__file__).with_name("train_until_saved.py")), *arguments], place, device, until=until)
    _must(killed.returncode == KILLED, f"{name} ended with {killed.returncode} before its first checkpoint", killed)
    resumed = child(["-m", "regard", "train", "--resume", "--out", str(run)], place, device, until=until)
    _must(resumed.returncode == 0, f"{name} could not be resumed", resumed)
    _must(f"going on from step {SAVE}" in resumed.stderr, f"{name} did not go on from step {SAVE}", resumed)
    figures = list(_figures(run))
    losses = {each["step"]: each["loss"] for each in figures if each["kind"] == "train"}
    _must(sorted(losses) == list(range(1, STEPS + 1)), f"{name} took steps {sorted(losses)}", resumed)
    _must(all(loss is not None and math.isfinite(loss) for loss in losses.values()), f"{name} has losses {losses}", resumed)
    dev = [each for each in figures if each["kind"] == "dev"]
    _must([each["step"] for each in dev] == [VALIDATE, STEPS], f"{name} validated at {[each['step'] for each in dev]}", resumed)
    asked = child(["-c", ASK, str(run / "bundle"), device, "Kalo minera tika sa"], place, device, until=until)
    _must(asked.returncode == 0, f"the bundle of {name} does not answer", asked)
    figure = next(key for key in ("bleu", "accuracy", "perplexity", "loss") if key in dev[-1])
    shown = f"{figure} {dev[-1][figure]:.3g}"
    return Trained(name, time.monotonic() - began, losses[1], losses[STEPS], shown, asked.stdout.strip())


def _figures(run: Path) -> Iterator[dict[str, object]]:
    for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        yield json.loads(line)


def environment(device: str) -> dict[str, str]:
    """What a child needs to find regard, and the device it may see."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    hidden = {} if device == "cuda" else {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    return {**os.environ, "PYTHONPATH": path, "COLUMNS": "200", **hidden}


def _must(true: bool, problem: str, done: subprocess.CompletedProcess[str]) -> None:
    if not true:
        raise GateError(f"{problem}\n{done.stdout[-1000:]}\n{done.stderr[-4000:]}")

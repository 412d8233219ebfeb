"""Training from files to bundle: every task, stopped and resumed, split and accumulated, with the same result."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from regard.bundle import load_bundle
from regard.errors import ConfigError, TrainingError
from regard.models import build
from regard.recipe import Recipe, parse_recipe
from regard.storage import read_tensors
from regard.text.tokenizer import Tokenizer
from regard.training.checkpoint import Checkpoints
from regard.training.distributed import World
from regard.training.objective import Objective
from regard.training.run import recipe_of, run_recipe
from regard.training.trainer import StoppedError, Trainer
from tests.signals import heard

WORDS = {"one": "uno", "two": "due", "red": "rosso", "blue": "blu", "cat": "gatto", "dog": "cane", "and": "e", "the": "il", "big": "grande"}
QUIET = Console(quiet=True)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # of the processes started here
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def write_data(folder: Path, task: str, count: int = 300, seed: int = 0) -> Path:
    """A little made-up language: words are translated one by one; a text is about cats or about dogs."""
    chance = random.Random(seed)
    lines = []
    for _ in range(count):
        words = [chance.choice(list(WORDS)) for _ in range(chance.randrange(2, 9))]
        if task == "translate":
            lines.append(f"{' '.join(words)}\t{' '.join(WORDS[word] for word in words)}")
        elif task == "classify":
            animal = chance.choice(["cat", "dog"])
            words = [word for word in words if word not in ("cat", "dog")]
            words.insert(chance.randrange(len(words) + 1), animal)
            lines.append(f"{animal}s\t{' '.join(words)}")
        else:
            lines.append(" ".join(words))
    path = folder / (f"{task}.tsv" if task in ("translate", "classify") else f"{task}.txt")
    path.write_text("\n".join(lines) + "\n")
    return path


def recipe(folder: Path, task: str = "translate", training: dict[str, Any] | None = None, **sections: Any) -> Recipe:
    model = {"width": 32, "layers": 1, "dropout": 0.0}
    if not str(sections.get("model", {}).get("preset", "")).startswith("rnn"):
        model |= {"heads": 4, "feedforward": 64, "norm_place": "before", "attention_dropout": 0.0}
    small = {"steps": 40, "batch_tokens": 512, "lr": 5e-3, "warmup": 5, "validate_every": 20, "checkpoint_every": 10, "log_every": 1}
    settings: dict[str, Any] = {
        "task": task,
        "data": {"train": [str(write_data(folder, task))], "max_length": 24, "dev_share": 0.1} | sections.get("data", {}),
        "tokenizer": {"kind": "word", "size": 60} | sections.get("tokenizer", {}),
        "model": model | sections.get("model", {}),
        "training": small | {"label_smoothing": 0.0} | (training or {}),
        "decoding": {"max_length": 12, "examples": 10} | sections.get("decoding", {}),
    }
    return parse_recipe(settings)


def losses(out: Path, kind: str = "train") -> list[float]:
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [record["loss"] for record in records if record["kind"] == kind]


def weights(out: Path) -> dict[str, torch.Tensor]:
    return read_tensors(out / "bundle")


def same_weights(one: Path, other: Path) -> bool:
    a, b = weights(one), weights(other)
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "translate": ("translate", {}),
    "translate, vocabularies apart": ("translate", {"tokenizer": {"joint": False}}),
    "translate, rnn with attention": ("translate", {"model": {"preset": "rnn-attention"}}),
    "translate, rnn plain": ("translate", {"model": {"preset": "rnn-plain"}}),
    "lm": ("lm", {}),
    "lm, prefix": ("lm", {"model": {"mask": "prefix", "positions": "rotary"}}),
    "lm, one text": ("lm", {"data": {"unit": "file"}, "tokenizer": {"kind": "char"}}),
    "lm, bpe": ("lm", {"tokenizer": {"kind": "bpe", "size": 300}}),
    "mlm": ("mlm", {}),
    "classify": ("classify", {}),
}


@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_task_learns_and_leaves_a_bundle(tmp_path: Path, family: str, layout: str) -> None:
    task, sections = FAMILIES[family]
    if layout == "packed" and "rnn" in family:
        pytest.skip("a recurrent network reads padded rows")
    wanted = recipe(tmp_path, task, {"layout": layout, "steps": 60}, **sections)
    bundle = load_bundle(run_recipe(wanted, tmp_path / "run", console=QUIET))
    measured = losses(tmp_path / "run")
    assert len(measured) == 60
    assert sum(measured[-5:]) < (0.9 if task == "mlm" else 0.75) * sum(measured[:5])  # words follow one another by chance
    assert bundle.tokenizer is not None
    tokenizer = Tokenizer.load(bundle.tokenizer)
    assert bundle.config.vocabulary == len(tokenizer)
    assert (bundle.source_tokenizer is not None) == (sections.get("tokenizer", {}).get("joint") is False)
    assert recipe_of(tmp_path / "run").training == wanted.training
    if task == "classify":
        assert bundle.config.labels == ("cats", "dogs")  # type: ignore[union-attr]


def test_smoothed_classes_are_never_quite_certain(tmp_path: Path) -> None:
    """With ε = 0.4 of two classes the right one is believed in to 0.8 at best: -0.8 log 0.8 - 0.2 log 0.2 = 0.500 is the least loss."""
    for smoothing, name in ((0.0, "sharp"), (0.4, "smooth")):
        run_recipe(recipe(tmp_path, "classify", {"label_smoothing": smoothing, "steps": 60}), tmp_path / name, console=QUIET)
    assert min(losses(tmp_path / "sharp")) < 0.45
    assert min(losses(tmp_path / "smooth")) >= 0.5


def test_packed_and_padded_batches_give_the_same_training(tmp_path: Path) -> None:
    """One batch holds everything, so that both layouts step on the same examples."""
    (few := tmp_path / "few").mkdir()
    everything = {"train": [str(write_data(few, "translate", count=50))]}
    for layout in ("padded", "packed"):
        settings = {"layout": layout, "batch_tokens": 1024, "steps": 12}
        run_recipe(recipe(tmp_path, training=settings, data=everything), tmp_path / layout, console=QUIET)
    assert losses(tmp_path / "padded") == pytest.approx(losses(tmp_path / "packed"), abs=1e-5)


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_accumulation_equals_the_whole_batch(tmp_path: Path, layout: str) -> None:
    for parts in (1, 4):
        run_recipe(recipe(tmp_path, training={"accumulate": parts, "layout": layout}), tmp_path / str(parts), console=QUIET)
    assert losses(tmp_path / "1") == pytest.approx(losses(tmp_path / "4"), abs=1e-5)


@pytest.mark.parametrize(
    "settings", [{"optimizer": "muon"}, {"ema": 0.9}, {"average": 2}, {"schedule": "paper", "lr": 1.0}, {"weight_decay": 0.1}]
)
def test_settings_that_change_the_result(tmp_path: Path, settings: dict[str, Any]) -> None:
    run_recipe(recipe(tmp_path), tmp_path / "plain", console=QUIET)
    run_recipe(recipe(tmp_path, training=settings), tmp_path / "other", console=QUIET)
    assert not same_weights(tmp_path / "plain", tmp_path / "other")
    assert losses(tmp_path / "other")[-1] < losses(tmp_path / "other")[0]


def test_the_same_recipe_gives_the_same_bits(tmp_path: Path) -> None:
    for name in ("a", "b"):
        run_recipe(recipe(tmp_path, model={"dropout": 0.2}), tmp_path / name, console=QUIET)
    assert same_weights(tmp_path / "a", tmp_path / "b")
    run_recipe(recipe(tmp_path, training={"seed": 2}, model={"dropout": 0.2}), tmp_path / "c", console=QUIET)
    assert not same_weights(tmp_path / "a", tmp_path / "c")


def test_a_terminal_shows_a_bar_and_programs_get_their_files(tmp_path: Path) -> None:
    console = Console(record=True, width=160, file=io.StringIO(), force_terminal=True)
    run_recipe(recipe(tmp_path, training={"steps": 10}), tmp_path / "run", console=console)
    shown = console.export_text()
    assert "training" in shown
    assert "tokens/s" in shown
    assert "dev: loss" in shown
    assert any((tmp_path / "run" / "tensorboard").iterdir())
    assert (tmp_path / "run" / "bundle" / "README.md").read_text().startswith("# run")


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("moment", ["in the middle", "while validating"])
@pytest.mark.parametrize("settings", [{"average": 3}, {}])
def test_stopped_at_a_bad_moment_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, settings: dict[str, Any]
) -> None:
    """A stop between checkpoints, or during a validation, leaves no trace in the result, averages and the choice of the best among them."""
    wanted = recipe(tmp_path, training={**settings, "checkpoint_every": 10, "validate_every": 20, "keep": 2})
    run_recipe(wanted, tmp_path / "whole", console=QUIET)
    validate, update = Trainer._validate, Trainer._update
    stop_at = 20 if moment == "while validating" else 27

    def interrupted(self: Trainer, *arguments: Any) -> Any:
        if self.progress.step + (moment != "while validating") == stop_at:
            os.kill(os.getpid(), signal.SIGINT)
        return (validate if moment == "while validating" else update)(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_validate" if moment == "while validating" else "_update", interrupted)
        with pytest.raises(StoppedError, match=f"stopped after step {stop_at}"):
            run_recipe(wanted, tmp_path / "stopped", console=QUIET)
    run_recipe(recipe_of(tmp_path / "stopped"), tmp_path / "stopped", resume=True, console=QUIET)
    assert same_weights(tmp_path / "whole", tmp_path / "stopped")
    scores = [[(kept.step, kept.score) for kept in Checkpoints(tmp_path / name / "checkpoints", 9).all()] for name in ("whole", "stopped")]
    assert scores[0] == scores[1]


def test_resuming_with_other_data_is_refused(tmp_path: Path) -> None:
    wanted = recipe(tmp_path, training={"steps": 10})
    run_recipe(wanted, tmp_path / "run", console=QUIET)
    with pytest.raises(TrainingError, match="the model changed since step 10"):
        run_recipe(recipe(tmp_path, model={"feedforward": 32}), tmp_path / "run", resume=True, console=QUIET)
    with pytest.raises(TrainingError, match=r"the setting of training\.ema changed since step 10"):
        run_recipe(recipe(tmp_path, training={"ema": 0.9}), tmp_path / "run", resume=True, console=QUIET)
    file = tmp_path / "translate.tsv"
    file.write_text(file.read_text().replace("gatto", "micio"))
    with pytest.raises(TrainingError, match="the data or tokenizer changed since step 10"):
        run_recipe(wanted.model_copy(), tmp_path / "run", resume=True, console=QUIET)
    assert recipe_of(tmp_path / "run").training.steps == 10  # a refused resumption writes nothing


def test_a_model_of_the_wrong_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a model of kind 'seq2seq' can't learn to lm; choose a preset of kind 'lm'"):
        _prepared(recipe(tmp_path, "lm", model={"preset": "transformer-tiny"}))


def test_no_dev_data_means_no_patience(tmp_path: Path) -> None:
    run_recipe(recipe(tmp_path, training={"patience": 1, "validate_every": 5}, data={"dev_share": 0.0}), tmp_path / "run", console=QUIET)
    assert len(losses(tmp_path / "run")) == 40


def test_blank_lines_are_no_label_and_a_rare_label_is_one(tmp_path: Path) -> None:
    lines = write_data(tmp_path, "classify").read_text() + "\n" + "birds\ta bird\n"
    (tmp_path / "more.tsv").write_text(lines)
    for share in (0.1, 0.9):  # wherever the only bird falls
        assert _prepared(recipe(tmp_path, "classify", data={"train": [str(tmp_path / "more.tsv")], "dev_share": share})).labels == (
            "birds",
            "cats",
            "dogs",
        )


def test_frozen_parameters_stay(tmp_path: Path) -> None:
    run_recipe(recipe(tmp_path, training={"freeze": ["encoder"], "steps": 5}), tmp_path / "run", console=QUIET)
    torch.manual_seed(1)
    fresh = build(_prepared(recipe(tmp_path)).config).state_dict()
    trained = weights(tmp_path / "run")
    assert all(
        torch.equal(trained[key], fresh[key]) == key.startswith("encoder") for key in trained if "bias" not in key and "norm" not in key
    )


def test_patience_ends_a_training(tmp_path: Path) -> None:
    run_recipe(recipe(tmp_path, training={"patience": 2, "validate_every": 5, "steps": 400, "lr": 1e-9}), tmp_path / "run", console=QUIET)
    assert len(losses(tmp_path / "run")) < 100


def test_out_of_memory_halves_the_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same result as with room enough, and it says so."""
    run_recipe(recipe(tmp_path), tmp_path / "room", console=QUIET)
    forward = Objective.forward

    def cramped(self: Objective, batch: Any) -> torch.Tensor:
        if batch.target.ids.numel() > 200:
            raise torch.OutOfMemoryError("out of memory")
        return forward(self, batch)

    monkeypatch.setattr(Objective, "forward", cramped)
    console = Console(record=True, width=200, file=io.StringIO())
    run_recipe(recipe(tmp_path), tmp_path / "cramped", console=console)
    assert "out of memory: each batch is now worked through in 4 parts, with the same result" in console.export_text()
    assert losses(tmp_path / "cramped") == pytest.approx(losses(tmp_path / "room"), abs=1e-5)


def test_a_loss_that_is_not_finite_is_left_out_and_then_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forward, calls = Objective.forward, []

    def sick(self: Objective, batch: Any) -> torch.Tensor:
        calls.append(1)
        return forward(self, batch) * (float("nan") if len(calls) in (3, 4) or len(calls) > 10 else 1.0)

    monkeypatch.setattr(Objective, "forward", sick)
    with pytest.raises(TrainingError, match=r"not finite 5 times in a row, up to step 15; lower training\.lr"):
        run_recipe(recipe(tmp_path), tmp_path / "run", console=QUIET)
    assert all(tensor.isfinite().all() for tensor in read_tensors(tmp_path / "run" / "checkpoints" / "step-10").values())


def test_a_run_is_not_overwritten(tmp_path: Path) -> None:
    run_recipe(recipe(tmp_path, training={"steps": 10}), tmp_path / "run", console=QUIET)
    with pytest.raises(TrainingError, match="holds a training already; go on with it by --resume"):
        run_recipe(recipe(tmp_path), tmp_path / "run", console=QUIET)
    with pytest.raises(TrainingError, match="holds no training to resume"):
        recipe_of(tmp_path / "nothing")


def test_a_damaged_newest_checkpoint_is_reported_and_the_one_before_is_used(tmp_path: Path) -> None:
    run_recipe(recipe(tmp_path), tmp_path / "whole", console=QUIET)
    wanted = recipe(tmp_path)
    run_recipe(wanted, tmp_path / "hurt", console=QUIET)
    file = tmp_path / "hurt" / "checkpoints" / "step-40" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-7])
    console = Console(record=True, width=300, file=io.StringIO())
    run_recipe(wanted, tmp_path / "hurt", resume=True, console=console)
    said = console.export_text()
    assert "model.safetensors is damaged" in said
    assert "going on from step 30" in said
    assert same_weights(tmp_path / "whole", tmp_path / "hurt")
    assert len(losses(tmp_path / "hurt")) == 40  # what was taken back is written once


def test_bad_data_is_named(tmp_path: Path) -> None:
    wanted = recipe(tmp_path, "classify")
    (tmp_path / "dev.tsv").write_text("cats\ta cat\nmice\ta mouse\n")
    with pytest.raises(TrainingError, match=r"dev\.tsv, line 2: the label 'mice' stands in no training data"):
        run_recipe(recipe(tmp_path, "classify", data={"dev": [str(tmp_path / "dev.tsv")]}), tmp_path / "run", console=QUIET)
    (tmp_path / "one.tsv").write_text("cats\ta cat\n")
    with pytest.raises(TrainingError, match="needs two labels or more"):
        run_recipe(recipe(tmp_path, "classify", data={"train": [str(tmp_path / "one.tsv")]}), tmp_path / "run2", console=QUIET)
    (tmp_path / "empty.tsv").write_text("cat\t\n\tgatto\n")
    with pytest.raises(TrainingError, match="no example is left to train on"):
        run_recipe(
            recipe(tmp_path, data={"train": [str(tmp_path / "empty.tsv")]}, tokenizer={"kind": "bpe", "size": 300}),
            tmp_path / "run3",
            console=QUIET,
        )
    world, split = World(0, 2, torch.device("cpu")), recipe(tmp_path, training={"optimizer": "muon", "parallel": "fsdp"})
    with pytest.raises(ConfigError, match="Muon needs whole matrices"):
        Trainer(split, _prepared(wanted), None, world, None)  # type: ignore[arg-type]


def _prepared(wanted: Recipe) -> Any:
    from regard.training.prepare import prepare

    return prepare(wanted, None, lambda message: None)


def test_a_truncated_vocabulary_size_is_explained(tmp_path: Path) -> None:
    assert build(_prepared(recipe(tmp_path)).config).config.vocabulary < 60


# Real processes from here on.


def start(out: Path, *arguments: str, processes: int = 1) -> subprocess.Popen[str]:
    command = [sys.executable, "-m"]
    if processes > 1:
        command += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_NUM_THREADS": "1"}
    return subprocess.Popen(
        heard([*command, "regard", "train", *arguments, "--out", str(out)]),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str], code: int = 0) -> str:
    try:
        _, error = process.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # torchrun's children too
        raise
    assert process.returncode == code, error
    return error


def toml(folder: Path, wanted: Recipe) -> str:
    from regard.recipe import to_toml

    path = folder / "recipe.toml"
    path.write_text(to_toml(wanted))
    return str(path)


def test_killed_and_resumed_equals_uninterrupted(tmp_path: Path) -> None:
    """SIGKILL at five random moments, then to the end: the same model to the last bit."""
    wanted = recipe(tmp_path, training={"steps": 150, "checkpoint_every": 5, "validate_every": 50, "ema": 0.9}, model={"dropout": 0.2})
    path = toml(tmp_path, wanted)
    finish(start(tmp_path / "whole", path))
    chance = random.Random(1)
    out, arguments = tmp_path / "killed", [path]
    for attempt in range(5):
        process = start(out, *arguments)
        begun = _steps_done(out)
        while _steps_done(out) <= begun and process.poll() is None:
            time.sleep(0.02)
        if attempt == 2:  # once in the middle of a checkpoint
            while process.poll() is None and not any((out / "checkpoints").glob(".step-*")):
                time.sleep(0.0005)
        else:
            time.sleep(chance.uniform(0.0, 0.4))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        arguments = ["--resume"]
    finish(start(out, "--resume"))
    assert same_weights(tmp_path / "whole", out)
    assert losses(out) == losses(tmp_path / "whole")


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    wanted = recipe(tmp_path, training={"steps": 120, "checkpoint_every": 1000, "validate_every": 60}, model={"dropout": 0.2})
    path = toml(tmp_path, wanted)
    finish(start(tmp_path / "whole", path))
    process = start(tmp_path / "stopped", path)
    _wait(lambda: _steps_done(tmp_path / "stopped") > 20)
    process.send_signal(signal.SIGINT)
    said = finish(process, 130)
    assert "with all of it saved; go on with: regard train --resume --out" in said
    assert 20 < len(losses(tmp_path / "stopped")) < 120
    finish(start(tmp_path / "stopped", "--resume"))
    assert same_weights(tmp_path / "whole", tmp_path / "stopped")


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_equal_one(tmp_path: Path, parallel: str) -> None:
    """The same losses; and a checkpoint of two, split or not, goes on in one."""
    training = {"parallel": parallel, "steps": 30, "checkpoint_every": 10, "validate_every": 20}
    path = toml(tmp_path, recipe(tmp_path, training=training))
    finish(start(tmp_path / "one", path))
    finish(start(tmp_path / "two", path, processes=2))
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=1e-6)
    for step in (30, 20):  # as if it had been killed after step 10
        folder = tmp_path / "two" / "checkpoints" / f"step-{step}"
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
    said = finish(start(tmp_path / "two", "--resume"))
    assert "going on from step 10" in said
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=1e-6)


@pytest.mark.parametrize(("task", "model"), [("translate", "seq2seq"), ("lm", "lm"), ("classify", "encoder")])
def test_text_files_alone_are_enough(tmp_path: Path, task: str, model: str) -> None:
    file = write_data(tmp_path, task)
    small = ["training.steps=3", "model.width=32", "model.heads=4", "model.layers=1", "model.feedforward=32", "tokenizer.size=400"]
    changes = [word for change in [*small, "decoding.examples=4"] for word in ("--set", change)]
    done = start(tmp_path / "run", "--task", task, "--train", str(file), *changes)
    said = finish(done)
    assert "picked for this data: a bpe vocabulary of 400, 3 steps" in said
    assert load_bundle(tmp_path / "run" / "bundle").config.kind == model


def _steps_done(out: Path) -> int:
    metrics = out / "metrics.jsonl"
    return len([line for line in metrics.read_text().splitlines() if '"train"' in line]) if metrics.is_file() else 0


def _wait(ready: Any) -> None:
    deadline = time.monotonic() + 120
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_bundle_has_the_moving_average_of_the_best_validation(tmp_path: Path) -> None:
    """Not that of the last: training may have gone on for too long."""
    wanted = recipe(tmp_path, training={"steps": 40, "validate_every": 10, "checkpoint_every": 10, "keep": 9, "ema": 0.9})
    bundle = run_recipe(wanted, tmp_path / "run", console=QUIET)
    best = Checkpoints(tmp_path / "run" / "checkpoints", keep=9).best(print)
    assert best is not None
    kept = best.state()["ema"]["weights"]
    assert all(torch.equal(tensor, kept[name]) for name, tensor in load_bundle(bundle).model.state_dict().items())

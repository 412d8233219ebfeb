"""Training that begins from a bundle: what it takes over, what is new, and what does not fit."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from regard.bundle import load_bundle, read_config
from regard.door import load
from regard.errors import BundleError, ConfigError, RegardError, TrainingError
from regard.recipe import Recipe, parse_recipe
from regard.storage import read_tensors
from regard.text.cut import shortened
from regard.text.tokenizer import Tokenizer
from regard.training.prepare import prepare
from regard.training.run import recipe_of, run_recipe
from regard.training.trainer import StoppedError, Trainer
from tests.cli.running import run
from tests.training.test_run import QUIET, recipe, same_weights, write_data

SMALL = {"steps": 12, "batch_tokens": 512, "lr": 1e-3, "warmup": 2, "validate_every": 6, "checkpoint_every": 3, "label_smoothing": 0.0}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One of each task, hardly trained."""
    root = tmp_path_factory.mktemp("bundles")
    made = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(root / "cache"))
        patch.setattr(torch.cuda, "is_available", lambda: False)
        for task in ("mlm", "lm", "translate", "classify"):
            made[task] = run_recipe(recipe(root, task, {"steps": 4, "validate_every": 4}), root / task, console=QUIET)
    return made


def tuned(folder: Path, task: str, bundle: Path, training: dict[str, Any] | None = None, **sections: Any) -> Recipe:
    data = {"train": [str(write_data(folder, task))], "max_length": 24, "dev_share": 0.1} | sections.get("data", {})
    model = {"from": str(bundle)} | sections.get("model", {})
    rest = {key: value for key, value in sections.items() if key not in ("data", "model")}
    return parse_recipe({"task": task, "data": data, "model": model, "training": SMALL | (training or {}), **rest})


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return read_tensors(folder)


def start(wanted: Recipe, say: Any = None) -> dict[str, torch.Tensor]:
    """The weights that training begins with."""
    from regard.training.checkpoint import Checkpoints
    from regard.training.distributed import World
    from regard.training.report import Report

    console = Console(file=io.StringIO(), record=True, width=300)
    prepared = prepare(wanted, None, lambda message: None)
    report = Report(Path("unused"), 1, 1, console)
    trainer = Trainer(wanted, prepared, Checkpoints(Path("unused"), 1), World(0, 1, torch.device("cpu")), report)
    if say is not None:
        say.append(console.export_text())
    return trainer.objective.model.state_dict()


def test_a_classifier_takes_the_body_and_the_tokenizer_and_gets_a_new_head(tmp_path: Path, bundles: dict[str, Path]) -> None:
    said: list[str] = []
    wanted = tuned(tmp_path, "classify", bundles["mlm"])
    before, old = start(wanted, said), weights(bundles["mlm"])
    assert f"begins with the weights of {bundles['mlm']}; new: classifier; left out: masked_words" in said[0]
    assert {name for name in before if name not in old} == {"classifier.weight", "classifier.bias"}
    assert all(torch.equal(tensor, old[name]) for name, tensor in before.items() if name in old)
    made = load_bundle(run_recipe(wanted, tmp_path / "run", console=QUIET))
    assert made.config.labels == ("cats", "dogs")  # type: ignore[union-attr]
    assert made.config.task == "classify"
    assert not made.config.masked_words  # type: ignore[union-attr]
    assert made.config.width == load_bundle(bundles["mlm"]).config.width
    assert made.tokenizer is not None
    assert Tokenizer.load(made.tokenizer).fingerprint == Tokenizer.load(bundles["mlm"] / "tokenizer.json").fingerprint
    assert load(made.folder).classify("the big cat").label in ("cats", "dogs")


@pytest.mark.parametrize("task", ["mlm", "lm", "translate"])
def test_any_task_goes_on_with_all_weights(tmp_path: Path, bundles: dict[str, Path], task: str) -> None:
    before, old = start(tuned(tmp_path, task, bundles[task])), weights(bundles[task])
    assert before.keys() == old.keys()
    assert all(torch.equal(tensor, old[name]) for name, tensor in before.items())
    after = weights(run_recipe(tuned(tmp_path, task, bundles[task]), tmp_path / "run", console=QUIET))
    assert any(not torch.equal(tensor, old[name]) for name, tensor in after.items())


def test_the_same_labels_keep_their_head_and_others_get_a_new_one(tmp_path: Path, bundles: dict[str, Path]) -> None:
    old = weights(bundles["classify"])
    same = start(tuned(tmp_path, "classify", bundles["classify"]))
    assert torch.equal(same["classifier.weight"], old["classifier.weight"])
    other = tmp_path / "other.tsv"
    other.write_text(write_data(tmp_path, "classify").read_text().replace("cats\t", "mice\t"))
    fresh = start(tuned(tmp_path, "classify", bundles["classify"], data={"train": [str(other)]}))
    assert fresh["classifier.weight"].shape == old["classifier.weight"].shape
    assert not torch.equal(fresh["classifier.weight"], old["classifier.weight"])


def test_an_encoder_without_a_head_for_words_gets_one(tmp_path: Path, bundles: dict[str, Path]) -> None:
    said: list[str] = []
    start(tuned(tmp_path, "mlm", bundles["classify"]), said)
    assert "new: masked_words; left out: classifier" in said[0]


@pytest.mark.parametrize(
    ("task", "bundle", "sections", "says"),
    [
        (
            "classify",
            "mlm",
            {"model": {"width": 64}},
            r"model\.width = 64, but .* was made with 32; take model\.width out, or train without",
        ),
        ("classify", "mlm", {"model": {"widht": 64}}, r"unknown key 'widht' for .*; did you mean 'width'"),
        ("classify", "mlm", {"model": {"labels": ["a"]}}, r"model\.labels is decided by the task and the data; take it out"),
        ("classify", "lm", {}, r"is of kind 'lm', which can't learn to classify; give a bundle of kind 'encoder'"),
        ("lm", "mlm", {}, r"is of kind 'encoder', which can't learn to lm; give a bundle of kind 'lm'"),
        ("translate", "mlm", {}, r"can't learn to translate; give a bundle of kind 'seq2seq'"),
        ("classify", "mlm", {"data": {"max_length": 900}}, r"data\.max_length = 900, but .* reads 24 tokens; set it to 24 or less"),
        (
            "translate",
            "translate",
            {"data": {"train": [{"path": "TRAIN", "to": "it"}]}},
            r"to = 'it', but .* has no such tag; it knows none",
        ),
    ],
)
def test_what_does_not_fit_is_said(
    tmp_path: Path, bundles: dict[str, Path], task: str, bundle: str, sections: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        prepare(tuned(tmp_path, task, bundles[bundle], **sections), None, lambda message: None)


def test_a_recipe_that_says_the_shape_twice_is_refused(tmp_path: Path, bundles: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.size is set, but with model\.from the tokenizer is that of the bundle"):
        tuned(tmp_path, "classify", bundles["mlm"], tokenizer={"size": 100})
    with pytest.raises(ConfigError, match=r"model\.preset and model\.from both say what the model is"):
        tuned(tmp_path, "classify", bundles["mlm"], model={"preset": "bert-small"})
    with pytest.raises(BundleError, match="there is no model 'nowhere'"):
        prepare(tuned(tmp_path, "classify", Path("nowhere")), None, lambda message: None)


def test_a_bundle_without_a_tokenizer_takes_no_text(tmp_path: Path, bundles: dict[str, Path]) -> None:
    bare = load_bundle(bundles["mlm"]).save(tmp_path / "bare")
    (bare / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"has no tokenizer\.json, so it takes token ids and not text"):
        prepare(tuned(tmp_path, "classify", bare), None, lambda message: None)


def test_learned_positions_are_as_many_as_they_are(tmp_path: Path, bundles: dict[str, Path]) -> None:
    learned = recipe(tmp_path, "mlm", {"steps": 2, "validate_every": 2}, model={"positions": "learned"})
    bundle = run_recipe(learned, tmp_path / "learned", console=QUIET)
    with pytest.raises(ConfigError, match=r"model\.context = 48, but .* has learned 24 positions"):
        prepare(tuned(tmp_path, "classify", bundle, model={"context": 48}), None, lambda message: None)
    longer = tuned(tmp_path, "classify", bundles["mlm"], model={"context": 48}, data={"max_length": 48})  # sines go on for ever
    assert prepare(longer, None, lambda message: None).config.context == 48


def test_what_no_weight_depends_on_may_change(tmp_path: Path, bundles: dict[str, Path]) -> None:
    wanted = tuned(tmp_path, "classify", bundles["mlm"], model={"dropout": 0.3, "pooling": "first", "width": 32})
    config = prepare(wanted, None, lambda message: None).config
    assert (config.dropout, config.pooling) == (0.3, "first")  # type: ignore[union-attr]


def test_one_label_is_none(tmp_path: Path, bundles: dict[str, Path]) -> None:
    one = tmp_path / "one.tsv"
    one.write_text("cats\tthe big cat\ncats\ta cat and a dog\n" * 20)
    with pytest.raises(TrainingError, match=r"needs two labels or more to choose from, but the data has \['cats'\]"):
        prepare(tuned(tmp_path, "classify", bundles["mlm"], data={"train": [str(one)]}), None, lambda message: None)
    dev = tmp_path / "dev.tsv"
    dev.write_text("mice\tthe big cat\n")
    with pytest.raises(TrainingError, match=r"dev\.tsv, line 1: the label 'mice' stands in no training data"):
        prepare(tuned(tmp_path, "classify", bundles["mlm"], data={"dev": [str(dev)]}), None, lambda message: None)


def test_stopped_and_resumed_is_the_same_to_the_last_bit(tmp_path: Path, bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = tuned(tmp_path, "classify", bundles["mlm"], {"ema": 0.9, "layer_decay": 0.7, "r_drop": 1.0}, model={"dropout": 0.2})
    run_recipe(wanted, tmp_path / "whole", console=QUIET)
    update = Trainer._update

    def interrupted(self: Trainer, *arguments: Any) -> Any:
        if self.progress.step == 7:
            raise StoppedError("as if it had been killed")
        return update(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_update", interrupted)
        with pytest.raises(StoppedError):
            run_recipe(wanted, tmp_path / "stopped", console=QUIET)
    again = recipe_of(tmp_path / "stopped")
    assert Path(str(again.begins_from)).is_absolute()
    run_recipe(again, tmp_path / "stopped", resume=True, console=QUIET)
    assert same_weights(tmp_path / "whole", tmp_path / "stopped")


def test_lower_layers_learn_more_slowly() -> None:
    from regard.config import EncoderConfig
    from regard.models import build
    from regard.recipe import TrainingSettings
    from regard.training.optim import make_optimizer

    model = build(
        EncoderConfig(vocabulary=9, layers=3, width=8, heads=2, feedforward=8, labels=("a", "b"), positions="learned", embedding_norm=True)
    )
    optimizer = make_optimizer(model, TrainingSettings(layer_decay=0.5), fused=False)
    optimizer.set_lr(1.0)
    rates = {optimizer.names[parameter]: group["lr"] for group in optimizer.param_groups for parameter in group["params"]}
    assert {name.split(".")[2]: rate for name, rate in rates.items() if ".layers." in name} == {"0": 0.125, "1": 0.25, "2": 0.5}
    others = {name: rate for name, rate in rates.items() if ".layers." not in name}
    assert {name for name, rate in others.items() if rate == 1.0} == {"classifier.weight", "classifier.bias"}
    assert {name for name, rate in others.items() if rate == 0.0625} == others.keys() - {"classifier.weight", "classifier.bias"}


def test_long_texts_are_cut_as_in_training(tmp_path: Path, bundles: dict[str, Path]) -> None:
    """The end, or the middle; and what classify reads of a text is what training read of it."""
    assert shortened([1, 2, 3], 3, "middle") == [1, 2, 3]
    assert shortened(range(10), 4, "end") == range(4)
    assert shortened(range(10), 4, "middle") == [0, 1, 8, 9]
    assert shortened(range(10), 5, "middle") == [0, 1, 2, 8, 9]
    long = "cats\t" + " ".join(["one two red blue cat dog"] * 12) + "\n"
    file = tmp_path / "long.tsv"
    file.write_text(long + long.replace("cats", "dogs").replace("one", "big"))
    for cut in ("end", "middle"):
        data = {"train": [str(file)], "cut": cut, "max_length": 16, "dev_share": 0.0}
        wanted = tuned(tmp_path, "classify", bundles["mlm"], data=data)
        stored = prepare(wanted, None, lambda message: None).train
        model = load(run_recipe(wanted, tmp_path / cut, console=QUIET))
        said: list[str] = []
        model.warn = said.append
        from regard.door.reading import text_ids

        [ids] = text_ids(model, [long.split("\t")[1].strip()], 0)
        assert ids == stored.target[0].tolist()
        assert len(ids) == 16
        assert "72 tokens" in said[0]


def test_a_share_is_kept_apart_for_the_test(tmp_path: Path) -> None:
    """By its text: the same rows for the same seed, none of them in training, and another seed keeps others."""
    rows = write_data(tmp_path, "classify").read_text().splitlines()
    unique = {row.split("\t")[1] for row in rows}
    kept = {}
    for seed in (0, 1, 2):
        wanted = recipe(tmp_path, "classify", {"steps": 2, "validate_every": 2}, data={"test_share": 0.2, "split_seed": seed})
        out = tmp_path / str(seed)
        said = Console(record=True, width=200, file=io.StringIO())
        run_recipe(wanted, out, console=said)
        prepared = prepare(wanted, None, lambda message: None)
        texts = [line.split("\t")[1] for line in (out / "test.tsv").read_text().splitlines()]
        kept[seed] = set(texts)
        assert len(prepared.train) + len(prepared.dev) + len(texts) == len(rows)
        learned = {tuple(prepared.train.target[index].tolist()) for index in range(len(prepared.train))}
        assert prepared.test is not None
        assert not learned & {tuple(prepared.test.target[index].tolist()) for index in range(len(prepared.test))}
        assert len(texts) == pytest.approx(0.2 * len(rows), rel=0.5)
        found = load(out).evaluate(out / "test.tsv")
        shown = f"test: accuracy {found.figures['accuracy']:.2%} · macro-F1 {found.figures['macro_f1']:.2%} · {found.examples:,} examples"
        assert shown in said.export_text()
        assert shown.removeprefix("test: ") in (out / "bundle" / "README.md").read_text()
    assert kept[0] != kept[1] != kept[2]
    assert all(texts < unique for texts in kept.values())


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"test_share": 0.1, "test": "b.tsv"}, r"data\.test_share takes a part .* give one of the two"),
        ({"test_share": 0.5, "dev_share": 0.5}, "together leave nothing to train on"),
    ],
)
def test_shares_that_make_no_sense(data: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_recipe({"task": "classify", "data": {"train": "a.tsv"} | data})


def test_from_the_command_line(tmp_path: Path, bundles: dict[str, Path]) -> None:
    """With files alone: the steps are those of a model that has learned already."""
    file, out = write_data(tmp_path, "classify"), tmp_path / "run"
    done = run("train", "--task", "classify", "--from", bundles["mlm"], "--train", file, "--out", out, "--set", "training.steps=3")
    assert done.code == 0
    assert f"picked for this data: the vocabulary of {bundles['mlm']}, 3 steps" in done.err
    assert "lr 5e-05" in done.err
    assert load_bundle(out / "bundle").config.width == 32
    assert recipe_of(out).data.max_length == 24  # no longer than the bundle reads
    refused = run("train", "--resume", "--from", bundles["mlm"], "--out", out)
    assert refused.code == 2
    assert "goes on from its own checkpoint" in " ".join(refused.err.replace("│", "").split())
    wrong = run("train", "--task", "classify", "--from", bundles["lm"], "--train", file, "--out", tmp_path / "no")
    assert wrong.code == 1
    assert "can't learn to classify" in wrong.err


def test_tags_of_a_bundle(tmp_path: Path) -> None:
    train = [{"path": str(write_data(tmp_path, "translate")), "to": "it"}]
    tagged = run_recipe(
        recipe(tmp_path, training={"steps": 2, "validate_every": 2}, data={"train": train}), tmp_path / "tagged", console=QUIET
    )
    with pytest.raises(ConfigError, match=r"is told what to write by a tag; give each file one, as to = 'it'"):
        prepare(tuned(tmp_path, "translate", tagged), None, lambda message: None)
    assert len(prepare(tuned(tmp_path, "translate", tagged, data={"train": train}), None, lambda message: None).train)
    with pytest.raises(RegardError, match=r"to = 'at', but .* has no such tag; known: it"):
        prepare(tuned(tmp_path, "translate", tagged, data={"train": [train[0] | {"to": "at"}]}), None, lambda message: None)


def test_the_body_learns_from_where_it_stood(tmp_path: Path, bundles: dict[str, Path]) -> None:
    """Frozen, it stays what the bundle had, and only the head moves."""
    wanted = tuned(tmp_path, "classify", bundles["mlm"], {"freeze": ["encoder", "embed"], "lr": 0.05})
    after, old = weights(run_recipe(wanted, tmp_path / "run", console=QUIET)), weights(bundles["mlm"])
    assert all(torch.equal(after[name], old[name]) for name in old.keys() & after.keys())
    assert np.isfinite(after["classifier.weight"].numpy()).all()


def test_a_translator_goes_on_in_one_line(tmp_path: Path) -> None:
    """On pairs of one's own, with the language they are in: nothing else need be said. A recipe that says no more learns as gently."""
    train = [{"path": str(write_data(tmp_path, "translate")), "to": tag} for tag in ("de", "it")]
    wanted = recipe(tmp_path, training={"steps": 2, "validate_every": 2}, data={"train": train})
    tagged = run_recipe(wanted, tmp_path / "tagged", console=QUIET).parent
    begin = ["--from", tagged, "--to", "it", "--set", "training.steps=2", "--set", "decoding.examples=2"]
    (tmp_path / "other").mkdir()
    other = write_data(tmp_path / "other", "translate", count=30, seed=1)
    path = tmp_path / "recipe.toml"
    path.write_text(f'task = "translate"\n[data]\ntrain = "{train[0]["path"]}"\ndev = "{other}"\n')
    for number, asked in enumerate((["--task", "translate", "--train", train[0]["path"]], [path])):
        out = tmp_path / f"run{number}"
        done = run("train", *asked, *begin, "--out", out)
        assert done.code == 0, done.err
        made = recipe_of(out)
        assert (made.training.lr, made.training.warmup, made.training.schedule) == (1e-4, 10, "cosine")
        assert made.data.max_length == read_config(tagged / "bundle").context
        assert {file.to for file in (*made.data.train, *made.data.dev)} == {"it"}
        assert run("train", "--resume", "--out", out, "--set", "training.steps=3").code == 0
    without = run("train", path, "--from", tagged, "--out", tmp_path / "no")
    assert without.code == 1
    assert "is told what to write by a tag; give each file one, as to = 'de', or --to for all of them (known: de, it)" in without.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--task", "lm", "--train", "a.txt", "--to", "it"], "--to is the language to write"),
        (["--resume", "--to", "it"], "leave --to, --columns and --header out"),
        (["a.toml", "--header"], "a recipe says so for each file"),
        (["a.toml", "--columns", "1,0"], "a recipe says so for each file"),
        (["--resume", "--columns", "1,0"], "leave --to, --columns and --header out"),
    ],
)
def test_options_that_say_nothing_here(tmp_path: Path, arguments: list[str], says: str) -> None:
    done = run("train", *arguments, "--out", tmp_path / "no")
    assert done.code == 2
    assert says in " ".join(done.err.replace("│", "").split())


def test_what_a_recipe_sets_itself_is_kept() -> None:
    begun = {"task": "translate", "data": {"train": "a.tsv"}, "model": {"from": "translator"}}
    own = parse_recipe(begun | {"training": {"lr": 1e-3}})
    assert (own.training.lr, own.training.schedule) == (1e-3, "inverse-sqrt")
    assert parse_recipe(begun).training.lr == 1e-4
    assert parse_recipe({key: value for key, value in begun.items() if key != "model"}).training.lr == 7e-4

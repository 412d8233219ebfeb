"""Numbers that are no surprise to a person but to Python: every setting and every option has a range, and says so in a sentence."""

from __future__ import annotations

import datetime
import math
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import typer
from typer.models import ArgumentInfo, OptionInfo

from regard.bundle import save_bundle
from regard.cli import app
from regard.config import KINDS, RotaryScaling, Settings, parse_model
from regard.decoding.settings import GREEDY, Beam, Rules, Sampling
from regard.door.options import Options, chosen
from regard.errors import ConfigError, RegardError, shown
from regard.evaluation.lengths import spans_of
from regard.limits import MOST_SEED, within
from regard.models import build
from regard.recipe import DataFile, FilterSettings, Recipe, TokenizerSettings, load_recipe, merged, parse_change, parse_recipe
from regard.serve.settings import Limits
from regard.serve.settings import Settings as ServerSettings
from regard.text.tokenizer import Tokenizer
from regard.training.folder import check_recipe
from regard.training.run import run_recipe
from regard.training.trainer import Trainer
from regard.view.walkthrough import walkthrough
from tests.cli.running import Done, run
from tests.training.test_run import QUIET

DIGITS, HUGE = "9" * 5000, "1" + "0" * 30
DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]
NASTY: list[Any] = [
    0, -1, 1, 2**31, 10**30, -(10**30), 10**5000, 0.5, 1e300, -1e300, 5e-324, math.inf, -math.inf, math.nan, True, "", "²", "a\0b",
    "\udce9", "x" * 100_000, "1" * 5000, [], [0, 0], [10**30, 10**30], DEEP, {}, datetime.date(1979, 5, 27),
]  # fmt: skip
ARGUMENTS = [
    *("0", "-1", HUGE, DIGITS, "inf", "nan", "1e300"),
    *("", "[]", "[" * 3000, "²", "true", "x" * 100_000, "999999999x", "*"),
]
SHAPE = {"width": 16, "heads": 2, "layers": 1, "feedforward": 16}
SMALL = {"data": {"max_length": 16, "dev_share": 0.1}, "tokenizer": {"kind": "char"}, "training": {"batch_tokens": 64, "warmup": 1}}
TASKS = {"seq2seq": "translate", "lm": "lm", "encoder": "mlm", "rnn": "translate"}
SECTIONS = ("data", "tokenizer", "training", "decoding")
MOST_SAID = 1000  # letters of a message


def a_sentence(message: str) -> bool:
    return "\n" not in message and len(message) < MOST_SAID


def settings() -> Iterator[tuple[str, dict[str, Any], str, Any]]:
    """Every setting of a recipe: its name, the recipe it is of, where in it the setting stands, and its type."""
    whole: dict[str, Any] = {"task": "lm", "data": {"train": [{"path": "lines.txt"}]}, "model": SHAPE}
    for section in SECTIONS:
        kind: Any = Recipe.model_fields[section].annotation
        for name, field in kind.model_fields.items():
            yield f"{section}.{name}", whole, f"{section}.{name}", field
    for name, field in FilterSettings.model_fields.items():
        yield f"data.filter.{name}", whole, f"data.filter.{name}", field
    for name, field in DataFile.model_fields.items():
        yield f"data.train.{name}", whole, f"data.train.0.{name}", field
    for family, task in TASKS.items():
        data = {"train": [{"path": "pairs.tsv" if task == "translate" else "lines.txt"}]}
        model = {"task": task, "data": data, "model": {"kind": family, "width": 16} if family == "rnn" else {"kind": family, **SHAPE}}
        for name, field in KINDS[family].model_fields.items():
            if name != "kind":
                yield f"model.{name} of {family}", model, f"model.{name}", field
    for name, field in RotaryScaling.model_fields.items():
        rotary = {**whole, "model": {**SHAPE, "positions": "rotary", "rotary_scaling": {"kind": "llama3", "factor": 2.0}}}
        yield f"model.rotary_scaling.{name}", rotary, f"model.rotary_scaling.{name}", field


SETTINGS = {name: rest for name, *rest in settings()}
GROUPS = sorted({name.partition(".")[0] for name in SETTINGS})


def changed(recipe: Any, where: str, value: Any) -> Any:
    """A recipe with one setting changed."""
    key, _, rest = where.partition(".")
    if isinstance(recipe, list):
        return [changed(recipe[int(key)], rest, value)]
    return {**recipe, key: changed(recipe.get(key, {}), rest, value) if rest else value}


def numeric(annotation: Any) -> bool:
    """Whether a setting of this type is a number, or may be or hold one."""
    return annotation in (int, float) or any(map(numeric, get_args(annotation)))


def refusal(ask: Callable[..., object], *given: Any, **named: Any) -> str | None:
    """The sentence that is said against it; None where it is accepted."""
    try:
        ask(*given, **named)
    except RegardError as error:
        said = str(error)
    else:
        return None
    assert a_sentence(said), said[:200]
    return said


# Settings of a recipe


def made(recipe: dict[str, Any]) -> None:
    check_recipe(parse_recipe(recipe))


@pytest.mark.parametrize("group", GROUPS)
def test_a_setting_is_refused_in_a_sentence_or_read_back(group: str) -> None:
    for (name, (recipe, where, _)), value in product(SETTINGS.items(), NASTY):
        if name.startswith(group):
            refusal(made, changed(recipe, where, value))


def test_every_number_of_a_setting_has_bounds() -> None:
    for (name, (recipe, where, field)), value in product(SETTINGS.items(), (10**30, -(10**30), math.nan, -math.inf)):
        if numeric(field.annotation) and (name, value) != ("training.clip", 10**30):  # however large, even inf: no clipping
            assert refusal(made, changed(recipe, where, value)) is not None, (name, value)


@pytest.mark.parametrize("value", [DIGITS, "[" * 5000, "[" * 100_000, "{a=" * 5000], ids=shown)
def test_what_no_toml_can_be(tmp_path: Path, value: str) -> None:
    (tmp_path / "recipe.toml").write_text(f"task = 'lm'\ndata.train = ['a.txt']\ntraining.steps = {value}\n")
    for said in (refusal(load_recipe, tmp_path / "recipe.toml"), refusal(parse_change, f"training.steps={value}")):
        assert said is not None
        assert said.endswith(("so lower it", "take brackets out"))


@pytest.mark.parametrize("change", ["a." * 5000 + "b=1", ".=1", "training..lr=1", "=", "=1", "x" * 100_000], ids=shown)
def test_what_no_change_can_be(change: str) -> None:
    said = refusal(parse_change, change)
    assert said is not None
    assert "write it as section.key=value" in said


def test_what_the_data_decides_is_not_set() -> None:
    for key in ("labels", "pad_token", "stop_tokens", "task"):
        wanted = {"task": "lm", "data": {"train": ["a.txt"]}, "model": {key: [1]}}
        assert refusal(parse_recipe, wanted) == f"the recipe: model.{key} is decided by the task and the data; take it out"


# Options of the command line and of Python


@pytest.mark.parametrize("name", sorted(set(Options.__annotations__) - {"speculate", "split", "ban", "require"}))
def test_an_option_of_writing_is_refused_in_a_sentence(name: str) -> None:
    def ask(value: Any) -> None:
        for method in (GREEDY, Sampling()):
            chosen({name: value}, method, Rules(), lambda word: [[ord(letter) for letter in word]])  # type: ignore[misc]

    for value in NASTY:
        refusal(ask, value)
    assert refusal(ask, 10**30) is not None


@pytest.mark.parametrize("kind", [Beam, Sampling, Rules])
def test_every_number_of_decoding_has_bounds(kind: type[Settings]) -> None:
    for name, field in kind.model_fields.items():
        if numeric(field.annotation):
            assert all(refusal(kind, **{name: value}) for value in (10**30, -1, math.inf, math.nan)), name


def test_limits_of_a_server_have_bounds() -> None:
    for name in Limits.__dataclass_fields__:
        for value in (0, -1, 10**30, math.inf, math.nan, 10**5000):
            assert refusal(Limits, **{name: value}) is not None, name
    for value in (0, -1, 10**6):
        assert refusal(ServerSettings, workers=value) is not None


@pytest.mark.parametrize("value", [-1, MOST_SEED + 1, 10**30, 10**5000, 1.5, True, "1"], ids=shown)
def test_numbers_that_python_gives(value: Any) -> None:
    for said in (refusal(walkthrough, seed=value), refusal(spans_of, None, value), refusal(within, "limit", value, "how many rows", 2)):
        assert said is not None
        assert "a whole number from" in said


@dataclass(frozen=True)
class Option:
    """What may be given to a verb, as its function declares it."""

    verb: str
    name: str  # as it is typed
    kinds: set[Any]
    info: ArgumentInfo | OptionInfo

    @property
    def ranged(self) -> bool:
        return self.info.min is not None or self.info.max is not None


def options(group: typer.Typer = app, before: str = "") -> Iterator[Option]:
    """Every option and argument of every verb but switches."""
    for command in group.registered_commands:
        assert command.callback is not None
        verb = before + (command.name or command.callback.__name__)
        for name, hint in get_type_hints(command.callback, include_extras=True).items():
            if name == "return" or bool in (kinds := set(_kinds(hint))):
                continue
            [info] = [each for each in hint.__metadata__ if isinstance(each, ArgumentInfo | OptionInfo)]
            typed = next((own for own in info.param_decls or () if own.startswith("--")), f"--{name.replace('_', '-')}")
            yield Option(verb, typed, kinds, info)
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        yield from options(inner.typer_instance, f"{before}{inner.name} ")


def _kinds(annotation: Any) -> Iterator[Any]:
    """Every type within a type."""
    yield annotation
    for part in get_args(annotation):
        yield from _kinds(part)


OPTIONS = list(options())
BASE = {
    "translate": ("a b", "-m", "seq2seq"), "generate": ("a b", "-m", "lm", "--max-length", "3"), "classify": ("a b", "-m", "encoder"),
    "fill": ("a [MASK]", "-m", "encoder"), "embed": ("a b", "-m", "encoder"), "score": ("a", "b", "-m", "seq2seq"),
    "evaluate": ("--data", "pairs.tsv", "-m", "seq2seq"), "lengths": ("--data", "pairs.tsv", "-m", "seq2seq"),
    "train": ("--task", "lm", "--train", "lines.txt", "--out", "run", "--set", "training.steps=1", "--set", "tokenizer.size=300"),
    "check": ("lm",), "data check": ("pairs.tsv",), "models": (), "info": ("gpt2",), "view": ("a b", "-m", "seq2seq", "--out", "p.html"),
    "pianoroll": ("tune.mid", "--output", "tune.png"), "import": ("nothing", "out"), "export": ("lm", "out", "--to", "ctranslate2"),
    "serve": ("--host", "a..b"), "demo": (), "doctor": (),
}  # fmt: skip


def test_every_number_of_a_verb_has_bounds() -> None:
    """Those of writing have theirs where they are chosen; what else is a number says its range itself."""
    assert {verb for verb in BASE if verb not in ("models", "doctor")} == {each.verb for each in OPTIONS} - {"models", "doctor"}
    numbers = [each for each in OPTIONS if {int, float} & each.kinds and each.name[2:].replace("-", "_") not in Options.__annotations__]
    assert len(numbers) > 10
    for each in numbers:
        assert each.info.min is not None, each
        assert each.info.max is not None, each


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundles of three families that have learned nothing."""
    root = tmp_path_factory.mktemp("models")
    tokenizer = Tokenizer.train(["a b c d e f g"] * 10, TokenizerSettings(kind="char", size=40))
    tokenizer.save(root / "tokenizer.json")
    ids = {"vocabulary": len(tokenizer), "pad_token": tokenizer.pad_id, "start_token": tokenizer.start_id, "end_token": tokenizer.end_id}
    for family in ("seq2seq", "lm", "encoder"):
        heads = {"masked_words": True, "labels": ("a", "b")} if family == "encoder" else {}
        save_bundle(
            build(parse_model({"kind": family, **SHAPE, **ids, "context": 64, **heads})), root / family, tokenizer=root / "tokenizer.json"
        )
    return root


@pytest.fixture
def here(tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the commands of `BASE` name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(models / "cache"))
    monkeypatch.setattr("regard.training.report._board", lambda folder: None)  # its thread goes on writing into what is removed
    for name in ("seq2seq", "lm", "encoder"):
        (tmp_path / name).symlink_to(models / name)
    (tmp_path / "lines.txt").write_text("a line of text\n" * 60)
    (tmp_path / "pairs.tsv").write_text("a b c\td e f\n" * 6)
    return tmp_path


def command(each: Option, value: str) -> list[str]:
    """A command in which one option or argument is this value."""
    verb, given = each.verb.split(), list(BASE[each.verb])
    if isinstance(each.info, ArgumentInfo):
        return [*verb, value, *given[1:]]
    name = "-m" if each.name == "--model" else each.name
    if name in given:
        del given[given.index(name) : given.index(name) + 2]
    return [*verb, *given, name, value]


def ends_well(arguments: list[str]) -> Done:
    """With what was asked for, or with a sentence; usage is explained in a box."""
    done = run(*arguments)
    told = done.err.splitlines()
    assert done.code in (0, 1, 2), told
    assert "Traceback" not in done.err
    if done.code == 1 and arguments[:2] != ["data", "check"]:  # which prints what it found
        assert told[-1].startswith("regard: "), told
    if done.code == 2:
        assert "Usage: " in done.err
    return done


@pytest.mark.parametrize("verb", BASE)
def test_a_number_of_a_verb_is_refused_before_any_work(here: Path, verb: str) -> None:
    for each in OPTIONS:
        if each.verb == verb and each.ranged:
            for value in ("-1", HUGE, "²", ""):
                done = run(*command(each, value))
                assert (done.code, done.out) == (2, ""), (each.name, value[:30])
                assert "Usage: " in done.err


TRAIN = "train --task lm --train lines.txt --out run"
WERE_TRACEBACKS = [
    "translate a -m seq2seq --device meta", "translate a -m seq2seq --max-length DIGITS", "demo --seed HUGE", "serve --host a..b",
    "evaluate --data pairs.tsv -m seq2seq --columns ²", "evaluate --data pairs.tsv -m seq2seq --columns DIGITS",
    "evaluate --data pairs.tsv -m seq2seq --only DIGITS=a", "serve --timeout inf",
    "translate a -m seq2seq --beam-size 1000000", "translate a -m seq2seq --samples 100000", "generate a -m lm --mbr 100000",
    "generate a -m lm --n-best HUGE", "pianoroll t.mid --output t.png --bars ²", "pianoroll t.mid --output t.png --bars DIGITS",
    f"{TRAIN} --set model.width=1048576 --set tokenizer.kind=char",
    f"{TRAIN} --set model.vocabulary=5 --set tokenizer.kind=char", f"{TRAIN} --set decoding.beam_size=1000000",
    f"{TRAIN} --set tokenizer.size=1000000000000", f"{TRAIN} --set training.steps=DIGITS", f"{TRAIN} --set training.seed=HUGE",
    f"{TRAIN} --set training.betas=[2,2]", f"{TRAIN} --set training.epsilon=-1", f"{TRAIN} --set model.preset=[1]",
    "train --task translate --train pairs.tsv --set model.source_vocabulary=5 --set tokenizer.kind=char",
]  # fmt: skip


@pytest.mark.parametrize("asked", WERE_TRACEBACKS)
def test_what_was_a_traceback_is_a_sentence(here: Path, asked: str) -> None:
    done = ends_well(asked.replace("DIGITS", DIGITS).replace("HUGE", HUGE).split())
    assert (done.code, done.out) in ((1, ""), (2, ""))
    assert not (here / "run" / "checkpoints").exists()


# The terminal


@pytest.mark.parametrize("columns", ["0", "-5", HUGE, DIGITS, "²", "wide", "", "1"], ids=shown)
def test_a_terminal_of_no_size(here: Path, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("LINES", columns)
    done = run("info", "gpt2")
    assert done.code == 0, done.err
    assert len(done.out.split()) > 50
    assert run("info", "--help").code == 0


# The whole product


@pytest.mark.slow
@pytest.mark.parametrize("verb", BASE)
def test_any_value_of_any_option(here: Path, verb: str) -> None:
    for each, value in product(OPTIONS, ARGUMENTS):
        if each.verb == verb:
            ends_well(command(each, value))
            for made in ("run", "runs", "out"):
                shutil.rmtree(here / made, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_accepted_trains(here: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Two steps of it, or a sentence."""
    monkeypatch.setattr(Trainer, "_anyone", lambda trainer, asked: trainer.progress.step >= 2)
    recipe, where, _ = SETTINGS[name]
    for value in NASTY:
        try:
            wanted = parse_recipe(changed(merged(SMALL, recipe), where, value))
        except ConfigError:
            continue
        with suppress(OSError):  # a name that is too long for the system, which the command line puts into words
            refusal(run_recipe, wanted, here / "run", console=QUIET)
        shutil.rmtree(here / "run", ignore_errors=True)

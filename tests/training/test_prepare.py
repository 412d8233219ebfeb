"""From files to examples: filtered, balanced, segmented anew, and two sides in one stack."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from regard.bundle import load_bundle
from regard.data.plan import make_plan
from regard.errors import ConfigError, CorpusError, TrainingError
from regard.recipe import parse_recipe
from regard.storage import read_tensors
from regard.training import prepare as module
from regard.training.prepare import Prepared, prepare
from regard.training.run import run_recipe

WORDS = {"one": "uno", "two": "due", "red": "rosso", "blue": "blu", "cat": "gatto", "dog": "cane", "and": "e", "the": "il", "big": "grande"}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def pairs(count: int, seed: int = 0, suffix: str = "") -> list[tuple[str, str]]:
    chance = random.Random(seed)
    sentences = [[chance.choice(list(WORDS)) for _ in range(chance.randrange(3, 9))] for _ in range(count)]
    return [(" ".join(words), " ".join(WORDS[word] + suffix for word in words)) for words in sentences]


def write(path: Path, rows: list[tuple[str, str]]) -> str:
    path.write_text("".join(f"{source}\t{target}\n" for source, target in rows))
    return str(path)


def prepared(said: list[str] | None = None, **settings: Any) -> Prepared:
    whole = {
        "task": "translate",
        "tokenizer": {"size": 330},
        "model": {"preset": "transformer-tiny"},
        "decoding": {"examples": 4},
    } | settings
    return prepare(parse_recipe(whole), None, (said if said is not None else []).append)


def test_what_is_left_out_is_counted_and_said(tmp_path: Path) -> None:
    dev, test = pairs(3, seed=1), pairs(2, seed=2)
    rows = [
        *pairs(50), *pairs(50)[:5],  # five of them twice
        *[(source.upper() + "!", "anything else") for source, _ in (*dev, *test)],
        ("the same on both sides of it", "the same on both sides of it"), ("", "nothing"), ("short", "s" * 70),
        ("zzzyyy " * 60, "zzzyyy " * 60),
    ]  # fmt: skip
    said: list[str] = []
    data = {
        "train": write(tmp_path / "train.tsv", rows),
        "dev": write(tmp_path / "dev.tsv", dev),
        "test": write(tmp_path / "test.tsv", test),
        "filter": {"drop_same": True, "drop_duplicates": True, "ratio": 4, "longest": 300},
    }
    made = prepared(said, data=data)
    assert len(made.train) == 50
    assert made.train.left_out == {
        "a duplicate": 5,
        "in dev or test": 5,
        "source and target the same": 1,
        "an empty side": 1,
        "one side over 4 times as long": 1,
        "over 300 characters": 1,
    }
    assert any("5 left out (in dev or test)" in line for line in said)
    assert len(made.dev) == 3
    assert not any("zzz" in piece for piece in made.vocabularies.target.pieces(range(len(made.vocabularies.target))))
    assert len(prepared(data=data | {"keep_apart": False}).train) == 55


def test_without_filters_all_is_as_it_was(tmp_path: Path) -> None:
    rows = [*pairs(40), *pairs(40), ("same words here and there", "same words here and there")]
    made = prepared(data={"train": write(tmp_path / "train.tsv", rows), "dev": write(tmp_path / "dev.tsv", [("not there", "assente")])})
    assert len(made.train) == 81
    assert made.train.left_out == {}


def test_nothing_left_and_nothing_there(tmp_path: Path) -> None:
    train = write(tmp_path / "train.tsv", pairs(20))
    with pytest.raises(TrainingError, match=r"no example is left to train on; look at data\.filter"):
        prepared(data={"train": train, "filter": {"shortest": 1000}})
    with pytest.raises(CorpusError, match=r"there is no file .*test\.tsv"):
        prepared(data={"train": train, "test": str(tmp_path / "test.tsv")})
    assert len(prepared(data={"train": train, "test": str(tmp_path / "test.tsv"), "keep_apart": False}).train) > 0


def test_a_header_row_is_left_out_and_that_is_said(tmp_path: Path) -> None:
    """Of each file that has one; nothing is said of a file that has none."""
    data = {
        "train": write(tmp_path / "train.tsv", [("source", "target"), *pairs(30)]),
        "dev": write(tmp_path / "dev.tsv", pairs(3, seed=1)),
    }
    said: list[str] = []
    assert len(prepared(said, data=data).train) == 30
    assert [line for line in said if "names of the columns" in line] == [
        f"{tmp_path}/train.tsv, line 1: 'source' and 'target' are taken for the names of the columns and left out; "
        "if it is a row, say --no-header, or header = false in a recipe"
    ]


def balanced(tmp_path: Path, **data: Any) -> dict[str, Any]:
    files = [
        {"path": write(tmp_path / "a.tsv", pairs(400)), "to": "it"},
        {"path": write(tmp_path / "b.tsv", pairs(200, seed=3)), "to": "it", "weight": 0.5},
        {"path": write(tmp_path / "c.tsv", pairs(20, seed=4, suffix="zz")), "to": "zz"},
    ]
    return {"train": files, "dev": write(tmp_path / "dev.tsv", [("not there", "assente")])} | data


def test_balance(tmp_path: Path) -> None:
    """500 of one language, 20 of the other: with the square root the small one is visited five times."""
    said: list[str] = []
    made = prepared(said, data=balanced(tmp_path, balance=0.5))
    assert "visits an epoch: it 1.00 × 400, it 0.50 × 200, zz 5.00 × 20" in said
    plan = make_plan(made.train.lengths, batch_tokens=256, seed=1, epoch=4, groups=made.train.groups, weights=[1.0, 0.5, 1.0])
    visited = np.bincount(np.concatenate(plan.batches), minlength=620)
    assert (visited[:400] == 1).all()
    assert visited[400:600].sum() == 100
    assert (visited[600:] == 5).all()
    plain = prepared(data=balanced(tmp_path))
    assert plain.key != made.key  # another order of batches: a run can't go on with it
    assert plain.train.groups is not None
    assert plain.train.groups.balance == 1.0


def test_a_vocabulary_is_learned_from_what_is_visited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The small language has its pieces, also where there is more text than is needed and it comes last."""

    def pieces(**data: Any) -> int:
        made = prepared(data=balanced(tmp_path, **data), tokenizer={"size": 290}).vocabularies.target
        return sum("zz" in piece for piece in made.pieces(range(len(made))))

    assert pieces(balance=0.0) > pieces(balance=1.0)
    monkeypatch.setattr(module, "TOKENIZER_ROWS", 100)
    assert pieces(balance=0.1) > 0


FORGETTING = {"bpe_dropout": 0.3, "bpe_dropout_copies": 3}


def texts(made: Prepared, store: Any, index: int) -> tuple[str, str]:
    decode = made.vocabularies.target.decode
    return decode(store.source[index].tolist()), decode(store.target[index].tolist())


@pytest.mark.parametrize("task", ["translate", "classify"])
def test_segmentations(tmp_path: Path, task: str) -> None:
    """Several of each example, the same text in each, the same again for the same seed; dev is in one piece."""
    rows = pairs(60) if task == "translate" else [(f"label {number % 2}", source) for number, (source, _) in enumerate(pairs(60))]
    data = {"train": write(tmp_path / "train.tsv", rows), "dev": write(tmp_path / "dev.tsv", rows[:10]), "keep_apart": False}
    model = {"preset": "transformer-tiny" if task == "translate" else "bert-small"}
    said: list[str] = []
    made = prepared(said, task=task, data=data, training=FORGETTING, model=model)
    plain = prepared(task=task, data=data, model=model)
    assert len(made.train) == len(plain.train) == 60
    assert len(made.train.target) == 180
    assert any("60 examples in 3 segmentations" in line for line in said)
    for index in range(180):
        decode = made.vocabularies.target.decode
        assert decode(made.train.target[index].tolist()) == decode(plain.train.target[index // 3].tolist())
    lengths = made.train.target.lengths.reshape(60, 3)
    assert (lengths != lengths[:, :1]).any()
    assert lengths.sum() > 3 * plain.train.target.lengths.sum()
    assert np.array_equal(made.dev.target.tokens, plain.dev.target.tokens)
    module.cache_folder().rename(tmp_path / "elsewhere")
    again = prepared(task=task, data=data, training=FORGETTING, model=model)
    assert np.array_equal(again.train.target.tokens, made.train.target.tokens)
    other = prepared(task=task, data=data, training=FORGETTING | {"seed": 2}, model=model)
    assert not np.array_equal(other.train.target.tokens, made.train.target.tokens)
    assert len({made.key, plain.key, other.key}) == 3


def test_a_segmentation_that_is_too_long_gives_way(tmp_path: Path) -> None:
    data = {"train": write(tmp_path / "train.tsv", pairs(80)), "max_length": 10}
    plain = prepared(data=data)
    made = prepared(data=data, training=FORGETTING | {"bpe_dropout": 0.8})
    assert len(made.train) == len(plain.train)
    assert made.train.left_out == plain.train.left_out
    assert made.train.lengths.max() <= 11


def test_one_stack_holds_both_sides(tmp_path: Path) -> None:
    rows = pairs(30)
    data = {"train": write(tmp_path / "train.tsv", rows), "max_length": 64}
    made = prepared(data=data, model={"kind": "lm", "mask": "prefix", "width": 32, "heads": 4}, decoding={"max_length": 20})
    tokenizer = made.vocabularies.target
    assert made.train.source is None
    assert made.train.given is not None
    whole, given = made.train.target[0].tolist(), int(made.train.given[0])
    assert whole[given - 1] == whole[-1] == tokenizer.end_id
    assert (tokenizer.decode(whole[:given]), tokenizer.decode(whole[given:])) in rows
    assert made.config.context >= 64 + 20
    with pytest.raises(ConfigError, match=r"one vocabulary; set tokenizer\.joint = true"):
        prepared(data=data, model={"kind": "lm"}, tokenizer={"joint": False})


@pytest.mark.parametrize("mask", ["prefix", "causal"])
def test_one_stack_learns_to_translate(tmp_path: Path, mask: str) -> None:
    settings = {
        "task": "translate",
        "data": {"train": write(tmp_path / "train.tsv", pairs(400)), "max_length": 32, "dev_share": 0.1},
        "tokenizer": {"kind": "word", "size": 60},
        "model": {"kind": "lm", "mask": mask, "positions": "rotary", "width": 32, "heads": 4, "layers": 2, "feedforward": 64}
        | {"norm_place": "before", "dropout": 0.0},
        "training": {"steps": 160, "batch_tokens": 1024, "lr": 1e-2, "warmup": 20, "label_smoothing": 0.0, "validate_every": 60},
        "decoding": {"max_length": 12, "examples": 10, "beam_size": 2},
    }
    bundle = run_recipe(parse_recipe(settings), tmp_path / "run", console=Console(quiet=True))
    card = (bundle / "README.md").read_text()
    assert load_bundle(bundle).config.kind == "lm"
    bleu = next(float(line.split()[-1]) for line in card.splitlines() if line.startswith("- bleu"))
    assert bleu > 40  # words follow one another by chance: nothing but the source tells which


def test_balanced_and_forgetful_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """Stopped half-way and resumed, in the middle of an epoch that visits one language five times: the same weights to the last bit."""
    settings = {
        "task": "translate",
        "data": balanced(tmp_path, balance=0.5, max_length=40),
        "tokenizer": {"size": 330},
        "model": {"preset": "transformer-tiny", "width": 16, "heads": 2, "layers": 1, "feedforward": 32},
        "training": {"batch_tokens": 512, "schedule": "constant", "warmup": 0, "validate_every": 1000, "checkpoint_every": 15} | FORGETTING,
        "decoding": {"examples": 2, "max_length": 8},
    }

    def run(out: str, steps: int, resume: bool = False) -> dict[str, torch.Tensor]:
        training = settings["training"] | {"steps": steps}  # type: ignore[operator]
        run_recipe(parse_recipe(settings | {"training": training}), tmp_path / out, resume=resume, console=Console(quiet=True))
        return read_tensors(tmp_path / out / "checkpoints" / f"step-{steps}")

    whole = run("whole", 60)
    run("halves", 30)
    resumed = run("halves", 60, resume=True)
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_a_long_text_is_a_stream(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"line {number}\n" for number in range(300)))
    made = prepared(
        task="lm",
        data={"train": str(tmp_path / "a.txt"), "unit": "file", "max_length": 32},
        tokenizer={"kind": "char"},
        model={"preset": "gpt-small"},
    )
    assert (made.train.stream, made.dev.stream) == (32, 0)
    assert (made.train.target.lengths[:-1] == 33).all()

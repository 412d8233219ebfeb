"""Pairs in one stack: a language model that reads the source in both directions and goes on with the target, through the door."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from regard.bundle import load_bundle, save_bundle
from regard.config import LanguageModelConfig, change
from regard.data.batch import Tokens
from regard.door import Model, load
from regard.errors import RegardError, ShapeError
from regard.models import LanguageModel, build
from tests.cli.running import run
from tests.door import trained


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits turned round, by a language model with a prefix mask."""
    root = tmp_path_factory.mktemp("stack")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(root / "cache"))
        patch.setattr(torch.cuda, "is_available", lambda: False)
        lines = [f"{' '.join(line)}\t{' '.join(line[::-1])}" for line in trained.digits(5000, seed=1)]  # fewer would be learned by heart
        train = [trained._write(root / "back.tsv", lines)]
        shape = {"kind": "lm", "mask": "prefix", "positions": "rotary", "layers": 2}
        return trained._train(root, "translate", {"train": train}, {"kind": "word", "size": 40}, shape, steps=400, batch_tokens=2048)


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load(folder, device="cpu")


def test_the_bundle_says_what_it_was_trained_for(folder: Path, model: Model) -> None:
    assert json.loads((folder / "config.json").read_text())["task"] == "translate"
    assert model.verbs == ("translate", "score", "evaluate")
    with pytest.raises(RegardError, match=r"it can translate, score and evaluate, but not generate; choose a model trained with --task lm"):
        model.generate("1 2 3")


def test_a_bundle_from_before_tasks_were_written_down_still_generates(folder: Path, tmp_path: Path) -> None:
    old = load_bundle(folder).save(tmp_path / "old")
    settings = json.loads((old / "config.json").read_text())
    del settings["task"]
    (old / "config.json").write_text(json.dumps(settings))
    assert load(old, device="cpu").verbs == ("generate", "score", "evaluate")


def test_it_translates(model: Model) -> None:
    answers = model.translate(["1 2 3 4", "", "7 5"])
    assert [answer.text for answer in answers] == ["4 3 2 1", "", "5 7"]
    assert answers[0].source[:4] == ("1", "2", "3", "4")
    assert answers[0].ended
    alone = model.translate("1 2 3 4", beam_size=1)
    assert alone.text == "4 3 2 1"


def test_the_source_is_read_in_both_directions(model: Model) -> None:
    """The weights behind a translation: within the source every word looks at every word, and no word of the target ahead."""
    answer = model.translate("1 2 3 4", attention=True)
    assert answer.attention is not None
    assert answer.attention.decoder is not None
    given, weights = len(answer.source), answer.attention.decoder  # (layers, heads, text, text)
    assert (weights[:, :, :given, :given] > 0).all()
    assert (weights[:, :, :given, given:] == 0).all()
    assert (weights[:, :, given:, given:].triu(1) == 0).all()
    assert answer.alignment is not None
    assert answer.alignment.shape == (len(answer.tokens) + 1, given)
    assert ((answer.alignment.sum(1) > 0) & (answer.alignment.sum(1) <= 1 + 1e-5)).all()  # the rest goes to what it has written itself
    torch.testing.assert_close(answer.alignment[0].sum(), torch.tensor(1.0))  # and the first word has nothing before it but the source


@torch.no_grad()
def test_decoding_uses_the_prefix_mask(folder: Path, model: Model) -> None:
    """What the search says of its words, by cache and step by step, is what one explicit pass with the source seen whole says; with a
    causal mask over the same weights it is something else.
    """
    answer = model.translate("3 1 4 1 5", beam_size=3)
    network = model.network
    assert isinstance(network, LanguageModel)
    assert isinstance(model.config, LanguageModelConfig)
    source = [*model.tokenizer.encode("3 1 4 1 5"), model.config.end_token]
    whole = [*source, *answer.ids, model.config.end_token]
    text = Tokens(torch.tensor([whole[:-1]]))
    causal = build(change(model.config, mask="causal"))
    causal.load_state_dict(load_bundle(folder).model.state_dict())
    assert isinstance(causal, LanguageModel)
    for logits, same in ((network(text, torch.tensor([len(source)])), True), (causal.eval()(text), False)):
        logs = logits.log_softmax(-1)[0]
        found = [float(logs[place - 1, whole[place]]) for place in range(len(source), len(whole))]
        assert (found == pytest.approx(answer.log_probabilities, abs=1e-4)) is same


def test_it_scores_pairs(model: Model) -> None:
    answer = model.translate("1 2 3 4")
    scored = model.score("1 2 3 4", "4 3 2 1")
    assert scored.log_probability == pytest.approx(answer.log_probability, abs=1e-4)
    assert scored.log_probability > model.score("1 2 3 4", "1 2 3 4").log_probability + 1
    with pytest.raises(RegardError, match="scores targets for sources; give both"):
        model.score("1 2 3 4")
    half = " ".join("1" * (model.config.context // 2 + 1))
    with pytest.raises(ShapeError, match=rf"source and target have .* reads {model.config.context} in all"):
        model.score(half, half)


def test_a_long_source_is_translated_in_parts(model: Model) -> None:
    """There is room for a part and for what is written from it."""
    said: list[str] = []
    model.warn = said.append
    digits = " ".join("123" * (model.config.context // 4))
    assert model.translate(digits).text
    assert "tokens, and" in said[0]
    assert "it was translated in 2 parts" in said[0]


def test_bleu_from_the_command_line(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{' '.join(line)}\t{' '.join(line[::-1])}\n" for line in trained.digits(40, seed=9)))
    found = load(folder, device="cpu").evaluate(pairs)
    assert found.scores is not None
    assert found.scores.bleu.value > 80
    assert found.figures["exact"] > 0.8
    done = run("evaluate", "--model", folder, "--data", pairs, "--format", "json")
    assert json.loads(done.out)["bleu"]["value"] == pytest.approx(found.scores.bleu.value)
    assert run("translate", "1 2 3 4", "--model", folder).out == "4 3 2 1\n"
    assert float(run("score", "1 2 3 4", "4 3 2 1", "--model", folder).out) > -1


def test_a_network_without_a_task_is_saved_without_one(tmp_path: Path) -> None:
    network = build(LanguageModelConfig(vocabulary=20, layers=1, width=16, heads=2, feedforward=16))
    assert load_bundle(save_bundle(network, tmp_path / "plain")).config.task is None

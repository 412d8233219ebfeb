"""Scores and figures, against the same by hand and by sacreBLEU itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from pathlib import Path

import pytest
import sacrebleu
import torch
from sklearn.metrics import f1_score

from regard.data.batch import Tokens
from regard.door import Model
from regard.errors import ConfigError, CorpusError, RegardError, ShapeError
from regard.recipe import DataFile
from tests.door.trained import POEM, digits, reviews

Models = Callable[[str], Model]


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{' '.join(line)}\t{' '.join(line[::-1])}\n" for line in digits(30, seed=8)))
    return path


@torch.inference_mode()
def by_hand(model: Model, text: str) -> list[float]:
    """The log-probability of each token of a text and of its end, one pass for each, with windows where it is longer than the context.

    Up to the context, a token is foretold from all before it; from then on, by blocks of half a window, from the window that ends with its
    block.
    """
    context = model.config.context
    whole = [model.config.start_token, *model.tokenizer.encode(text), model.config.end_token]
    logs = []
    for place in range(1, len(whole)):
        start = 0
        if place > context:
            size = (context + 1) // 2
            block = (place - context - 1) // size
            start = min(len(whole), context + 1 + (block + 1) * size) - context - 1
        logits = model.network(Tokens(torch.tensor([whole[start:place]])))[0, -1]
        logs.append(float(logits.log_softmax(-1)[whole[place]]))
    return logs


# Scores


@pytest.mark.parametrize("name", ["writer", "speller"])
def test_scores_of_texts(model: Models, name: str) -> None:
    loaded = model(name)
    texts = [*POEM, "", "x", " ".join(POEM[:3])]
    if name == "writer":
        assert len(loaded.tokenizer.encode(texts[-1])) + 2 < 48
    for text, scored in zip(texts, loaded.score(texts), strict=True):
        expected = by_hand(loaded, text)
        assert list(scored.log_probabilities) == pytest.approx(expected, abs=1e-4)
        assert scored.log_probability == pytest.approx(sum(expected), abs=1e-3)
        assert scored.perplexity == pytest.approx(math.exp(-sum(expected) / len(expected)), rel=1e-4)
        assert scored.tokens[-1] == "<end>"
        assert str(scored) == f"{scored.log_probability:.6f}"
    with pytest.raises(RegardError, match="is a language model: give it texts to score, without targets"):
        loaded.score("a", "b")


def test_scores_of_pairs(model: Models) -> None:
    translator = model("translator")
    sources, targets = ["1 2 3", "", "9"], ["3 2 1", "4", ""]
    for source, target, scored in zip(sources, targets, translator.score(sources, targets, to="back"), strict=True):
        read = Tokens(torch.tensor([[*translator.tokenizer.encode(source, "back"), 2]]))
        wanted = [*translator.tokenizer.encode(target), 2]
        with torch.inference_mode():
            logs = translator.network(read, Tokens(torch.tensor([[1, *wanted[:-1]]])))[0].log_softmax(-1)
        expected = [float(logs[place, id]) for place, id in enumerate(wanted)]
        assert list(scored.log_probabilities) == pytest.approx(expected, abs=1e-4)
        assert scored.as_json()["log_probability"] == pytest.approx(sum(expected), abs=1e-4)


def test_scores_that_cannot_be_given(model: Models) -> None:
    translator = copy(model("translator"))
    with pytest.raises(RegardError, match="scores targets for sources; give both"):
        translator.score("1 2")
    with pytest.raises(RegardError, match="2 sources for 1 targets; each target needs its own source"):
        translator.score(["1", "2"], ["1"], to="back")
    with pytest.raises(RegardError, match="both one text, or both many"):
        translator.score("1", ["1"], to="back")  # type: ignore[call-overload]
    with pytest.raises(ShapeError, match=r"text 2: the target has 40 tokens and .* reads 32; shorten it"):
        translator.score(["1", "2"], ["1", " ".join("1" * 39)], to="back")


# Figures


def test_translations_are_measured_as_sacrebleu_does(model: Models, pairs: Path) -> None:
    translator = model("translator")
    found = translator.evaluate(pairs, to="back")
    rows = [line.split("\t") for line in pairs.read_text().splitlines()]
    outputs = [translator.translate(source, "back").text for source, _ in rows]
    assert list(found.outputs) == outputs
    references = [target for _, target in rows]
    assert found.scores is not None
    assert found.scores.bleu.value == pytest.approx(sacrebleu.corpus_bleu(outputs, [references]).score)
    assert found.scores.chrf.value == pytest.approx(sacrebleu.corpus_chrf(outputs, [references]).score)
    assert found.scores.ter is not None
    assert found.scores.ter.value == pytest.approx(sacrebleu.corpus_ter(outputs, [references]).score)
    assert found.figures["exact"] == sum(a == b for a, b in zip(outputs, references, strict=True)) / 30
    assert "tok:13a" in found.as_json()["bleu"]["signature"]
    plain = translator.evaluate(pairs, to="back", tokenize="char", limit=10, beam_size=1)
    assert plain.examples == 10
    assert plain.scores is not None
    assert plain.scores.bleu.value == pytest.approx(sacrebleu.corpus_bleu(list(plain.outputs), [references[:10]], tokenize="char").score)
    named = translator.evaluate(DataFile(path=pairs.name, to="back"), root=pairs.parent)
    assert named.outputs == found.outputs


def test_a_tokenizer_that_sacrebleu_does_not_have(model: Models, pairs: Path) -> None:
    with pytest.raises(ConfigError, match=r"sacreBLEU has no tokenizer '13b'; did you mean '13a'\?"):
        model("translator").evaluate(pairs, to="back", tokenize="13b")


def test_two_translators_compared(model: Models, pairs: Path) -> None:
    one, other = (model(name).evaluate(pairs, to="back", tokenize="char") for name in ("translator", "other_translator"))
    compared = one.compared_with(other)
    assert one.scores is not None
    assert other.scores is not None
    assert compared["BLEU"].a.value == pytest.approx(one.scores.bleu.value)
    assert compared["BLEU"].difference == pytest.approx(other.scores.bleu.value - one.scores.bleu.value)
    assert compared["BLEU"].real
    assert compared.names == (one.model, other.model)
    shorter = model("translator").evaluate(pairs, to="back", limit=10)
    with pytest.raises(RegardError, match="were not evaluated on the same examples"):
        one.compared_with(shorter)


def test_rows_with_an_empty_side_are_left_out_and_that_is_said(model: Models, tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("1 2\t2 1\n\t3\n4 5\t \n6\t6\n")
    translator, said = copy(model("translator")), []
    translator.warn = said.append
    assert translator.evaluate(tmp_path / "pairs.tsv", to="back").examples == 2
    assert said == [f"{tmp_path}/pairs.tsv: rows left out because one side is empty: 2"]
    (tmp_path / "empty.tsv").write_text("\t\n")
    with pytest.raises(CorpusError, match=r"empty.tsv has no examples with text in them"):
        translator.evaluate(tmp_path / "empty.tsv", to="back")


def test_a_header_row_is_left_out_and_that_is_said(model: Models, tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("source\ttarget\n1 2\t2 1\n")
    translator, said = copy(model("translator")), []
    translator.warn = said.append
    assert translator.evaluate(tmp_path / "pairs.tsv", to="back").examples == 1
    assert said == [
        f"{tmp_path}/pairs.tsv, line 1: 'source' and 'target' are taken for the names of the columns and left out; "
        "if it is a row, say --no-header, or header = false in a recipe"
    ]


def test_a_row_that_is_too_long_is_named_by_file_and_line(model: Models, tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("1 2\t2 1\n\t3\n" + " ".join("1" * 40) + "\t2\n")
    translator, said = copy(model("translator")), []
    translator.warn = said.append
    translator.evaluate(tmp_path / "pairs.tsv", to="back")
    assert any(message.startswith(f"{tmp_path}/pairs.tsv, line 3: 41 tokens") for message in said)


def test_accuracy(model: Models, tmp_path: Path) -> None:
    rows = reviews(25, seed=4)
    rows[3] = ("good" if rows[3][0] == "bad" else "bad", rows[3][1])  # a wrong one
    path = tmp_path / "films.tsv"
    path.write_text("".join(f"{label}\t{text}\n" for label, text in rows))
    found = model("critic").evaluate(path)
    f1 = f1_score([label for label, _ in rows], found.outputs, average="macro")
    assert found.figures == {"accuracy": 24 / 25, "macro_f1": pytest.approx(f1)}
    assert found.confusion is not None
    for right in ("bad", "good"):
        for taken in ("bad", "good"):
            count = sum((label, output) == (right, taken) for (label, _), output in zip(rows, found.outputs, strict=True))
            assert found.confusion.counts[found.confusion.labels.index(right)][found.confusion.labels.index(taken)] == count
    compared = found.compared_with(found)
    assert compared["accuracy"].difference == 0
    path.write_text("good\tlovely\nbad\tdull\nbaad\tdull\n")
    with pytest.raises(CorpusError, match=r"films.tsv, line 3: .* knows no label 'baad'; did you mean 'bad'\?"):
        model("critic").evaluate(path)


@pytest.mark.parametrize("name", ["writer", "speller"])
def test_perplexity(model: Models, tmp_path: Path, name: str) -> None:
    path = tmp_path / "poem.txt"
    path.write_text("\n".join([*POEM, "", " ".join(POEM)]) + "\n", encoding="utf-8")
    loaded = model(name)
    found = loaded.evaluate(path)
    texts = [*POEM, " ".join(POEM)]
    logs = [by_hand(loaded, text) for text in texts]
    total, count = -sum(map(sum, logs)), sum(map(len, logs))
    assert found.examples == 7
    assert found.figures["loss"] == pytest.approx(total / count, rel=1e-4)
    assert found.figures["perplexity"] == pytest.approx(math.exp(total / count), rel=1e-4)
    assert found.figures["perplexity_per_word"] == pytest.approx(math.exp(total / sum(len(text.split()) + 1 for text in texts)), rel=1e-4)
    assert found.figures["bits_per_character"] == pytest.approx(total / math.log(2) / sum(len(text) + 1 for text in texts), rel=1e-4)
    assert found.counts == tuple(map(len, logs))
    with pytest.raises(ConfigError, match="'beam_size' is an option of translation; leave it out"):
        loaded.evaluate(path, beam_size=2)


def test_perplexities_over_other_tokens_are_not_compared(model: Models, tmp_path: Path) -> None:
    path = tmp_path / "poem.txt"
    path.write_text("\n".join(POEM[:4]) + "\n")
    one, other = model("writer").evaluate(path), model("speller").evaluate(path)
    with pytest.raises(RegardError, match="cut the texts into different tokens, so their perplexities can't be compared"):
        one.compared_with(other)
    assert one.compared_with(one).differences[0].difference == 0


def test_hidden_words_are_measured_the_same_each_time(model: Models, tmp_path: Path) -> None:
    path = tmp_path / "poem.txt"
    path.write_text("\n".join(f"{line}." for line in POEM[:5]) + "\n")
    guesser = model("guesser")
    found = guesser.evaluate(path)
    assert found == guesser.evaluate(path)
    assert all(count >= 1 for count in found.counts)
    assert found.figures["perplexity"] == pytest.approx(math.exp(sum(found.surprises) / sum(found.counts)))
    assert found.figures["perplexity"] < 5  # it knows them by heart; by chance it would be some 330
    path.write_text("\n".join(f"{line}." for line in reversed(POEM[:5])) + "\n")
    assert guesser.evaluate(path).examples == 5


def test_progress_is_told(model: Models, pairs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.door.judging.AT_ONCE", 12)
    told: list[tuple[int, int]] = []
    found = model("translator").evaluate(pairs, to="back", progress=lambda done, total: told.append((done, total)))
    assert told == [(0, 30), (12, 30), (24, 30)]
    monkeypatch.setattr("regard.door.judging.AT_ONCE", 1024)
    assert model("translator").evaluate(pairs, to="back").outputs == found.outputs

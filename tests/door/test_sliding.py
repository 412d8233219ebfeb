"""Perplexity by a window that slides over a text, as Hugging Face's page on perplexity works it out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

from regard.door import Model, load
from regard.door.judging import sliding_windows
from regard.errors import ConfigError, CorpusError
from regard.interop.huggingface import import_folder
from tests.interop import ggufs

CONTEXT = 48


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Model]:
    """Their model and tokenizer, and ours."""
    folder, words = tmp_path_factory.mktemp("sliding"), ggufs.byte_level()
    theirs = ggufs.llama(len(words["tokens"]), max_position_embeddings=CONTEXT)
    theirs.save_pretrained(folder / "theirs")
    (folder / "library.json").write_text(words["library"].to_str())
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_file=str(folder / "library.json"), bos_token="<|im_start|>", eos_token="<|im_end|>")
    tokenizer.save_pretrained(folder / "theirs")
    import_folder(folder / "theirs", folder / "ours")
    return theirs, tokenizer, load(folder / "ours", device="cpu")


@torch.no_grad()
def their_perplexity(model: Any, ids: list[int], stride: int) -> float:
    """The loop of their page. They weigh each window's mean by all its labels but one, which is one too few where it has a beginning
    that is not counted; here each token counts once."""
    total, tokens, before = 0.0, 0, 0
    for begin in range(0, len(ids), stride):
        end = min(begin + CONTEXT, len(ids))
        labels = torch.tensor([ids[begin:end]])
        labels[:, : -(end - before)] = -100
        counted = int((labels[:, 1:] != -100).sum())
        if counted:
            total += float(model(torch.tensor([ids[begin:end]]), labels=labels).loss) * counted
            tokens += counted
        before = end
        if end == len(ids):
            break
    return math.exp(total / tokens)


@pytest.mark.parametrize("stride", [1, 7, 24, 47, 48])
def test_as_their_page_says(stride: int, both: tuple[Any, Any, Model], tmp_path: Path) -> None:
    theirs, tokenizer, ours = both
    (tmp_path / "text.txt").write_text(ggufs.TEXT)
    text = ggufs.TEXT.removesuffix("\n")
    ids = tokenizer(text).input_ids
    assert len(ids) > 5 * CONTEXT
    found = ours.evaluate(tmp_path / "text.txt", stride=stride)
    assert found.figures["perplexity"] == pytest.approx(their_perplexity(theirs, ids, stride), rel=1e-5)
    lost = math.ceil(len(ids) / CONTEXT) if stride == CONTEXT else 1  # the first of each window, or of the text
    assert sum(found.counts) == len(ids) - lost
    total = sum(found.surprises)
    assert found.figures["perplexity_per_word"] == pytest.approx(math.exp(total / len(text.split())))
    assert found.figures["bits_per_character"] == pytest.approx(total / len(text) / math.log(2))


def test_more_before_each_token_is_better_on_average(both: tuple[Any, Any, Model], tmp_path: Path) -> None:
    """And a text that fits the context is the same for every stride."""
    _, _, ours = both
    (tmp_path / "short.txt").write_text("Once upon a time\n")
    assert len({ours.evaluate(tmp_path / "short.txt", stride=stride).figures["perplexity"] for stride in (1, 10, CONTEXT)}) == 1


def test_every_token_once() -> None:
    for length in range(1, 40):
        for stride in range(1, 9):
            counted = [place for _, fresh, stop in sliding_windows(length, 8, stride) for place in range(fresh, stop)]
            begins = set(range(8, length, 8)) if stride == 8 else set()
            assert counted == [place for place in range(1, length) if place not in begins]
            assert all(stop - start <= 8 and start < fresh for start, fresh, stop in sliding_windows(length, 8, stride))


def test_two_models_are_compared_by_windows(both: tuple[Any, Any, Model], tmp_path: Path) -> None:
    _, _, ours = both
    (tmp_path / "text.txt").write_text(ggufs.TEXT)
    found = ours.evaluate(tmp_path / "text.txt", stride=24)
    assert found.examples == len(found.counts) > 5
    assert found.compared_with(found).as_json()


def test_what_a_stride_is_not_for(both: tuple[Any, Any, Model], tmp_path: Path) -> None:
    _, _, ours = both
    (tmp_path / "text.txt").write_text("Once upon a time\n")
    for stride in (0, CONTEXT + 1):
        with pytest.raises(ConfigError, match=rf"stride = {stride} should be between 1 and the 48 tokens"):
            ours.evaluate(tmp_path / "text.txt", stride=stride)
    with pytest.raises(ConfigError, match="'beam_size' is an option of translation; leave it out with a stride"):
        ours.evaluate(tmp_path / "text.txt", stride=8, beam_size=2)
    with pytest.raises(ConfigError, match="a stride is for language models; leave it out for translator"):
        load("translator", device="cpu").evaluate(tmp_path / "text.txt", stride=8)
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(CorpusError, match="has no text in it"):
        ours.evaluate(tmp_path / "empty.txt", stride=8)

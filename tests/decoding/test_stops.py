"""Several tokens may end what is written: the end of a text, of a turn. Hugging Face's `generate` with a list of them is the oracle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from regard.config import change
from regard.data.batch import Tokens
from regard.decoding.runner import decode, stream
from regard.decoding.settings import GREEDY, Beam, Length, Method, Rules, Sampling
from regard.errors import ConfigError
from regard.models import LanguageModel
from tests.interop.test_generate import PAD, SOURCES, pair

LONGEST = 12


@pytest.fixture
def both() -> Iterator[tuple[Any, LanguageModel, list[int]]]:
    """Theirs, ours, and the tokens that end a text: the one there was, and three more that the model likes to say."""
    found = pair("llama")
    ours = found.ours
    assert isinstance(ours, LanguageModel)
    single = ours.config
    said = [token for row in decode(ours, Tokens.pad(SOURCES), GREEDY, Rules(max_length=Length(plus=LONGEST))) for token in row[0].tokens]
    liked = sorted(set(said) - {single.end_token}, key=said.count)[-3:]
    changed = change(single, stop_tokens=liked)
    ours.config = changed  # type: ignore[assignment]
    yield found.theirs, ours, [single.end_token, *liked]
    ours.config = single


def theirs_of(model: Any, source: list[int], ends: list[int], **options: Any) -> list[int]:
    """With the token that ended it left out, as a hypothesis has it."""
    written = model.generate(
        torch.tensor([source]), do_sample=False, max_new_tokens=LONGEST, pad_token_id=PAD, eos_token_id=ends, **options
    )[0, len(source) :].tolist()
    return written[: next((place for place, token in enumerate(written) if token in ends), LONGEST)]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_as_in_transformers(size: int, both: tuple[Any, LanguageModel, list[int]]) -> None:
    theirs, ours, ends = both
    options = {"num_beams": size, "length_penalty": 1.0, "early_stopping": "never"} if size > 1 else {}
    found = decode(ours, Tokens.pad(SOURCES), Beam(size=size, length_penalty=1.0), Rules(max_length=Length(plus=LONGEST)))
    assert [list(best[0].tokens) for best in found] == [theirs_of(theirs, source, ends, **options) for source in SOURCES]
    assert sum(best[0].ended for best in found) > len(SOURCES) / 2
    assert not any(set(best[0].tokens) & set(ends) for best in found)
    assert all(len(best[0].log_probabilities) == len(best[0].tokens) + best[0].ended for best in found)


@pytest.mark.parametrize("method", [GREEDY, Sampling(seed=3)])
def test_a_stream_is_what_is_decoded(method: Method, both: tuple[Any, LanguageModel, list[int]]) -> None:
    _, ours, _ = both
    rules = Rules(max_length=Length(plus=LONGEST))
    for source in SOURCES:
        [best] = decode(ours, Tokens.pad([source]), method, rules)[0]
        sampling = method if isinstance(method, Sampling) else Sampling(temperature=0)
        assert list(stream(ours, Tokens(torch.tensor([source])), sampling, rules)) == list(best.tokens)


@pytest.mark.parametrize("method", [GREEDY, Beam(size=3), Sampling(seed=1)])
def test_none_of_them_comes_too_early(method: Method, both: tuple[Any, LanguageModel, list[int]]) -> None:
    _, ours, _ = both
    free = decode(ours, Tokens.pad(SOURCES), method, Rules(max_length=Length(plus=LONGEST)))
    assert any(len(best[0].tokens) < 6 for best in free)
    found = decode(ours, Tokens.pad(SOURCES), method, Rules(max_length=Length(plus=LONGEST), min_length=Length(plus=6)))
    assert all(len(best[0].tokens) >= 6 for best in found)


def test_they_are_tokens(both: tuple[Any, LanguageModel, list[int]]) -> None:
    _, ours, _ = both
    with pytest.raises(ConfigError, match=r"stop_tokens = \(4, 61\) are not all in a vocabulary of 61"):
        change(ours.config, stop_tokens=(4, 61))

"""Small random models that are worth decoding: their outputs differ, and end by themselves, each at a length of its own.

Random weights as they come mostly say one word for ever. Here sub-layers speak more quietly, so that a word is heard through all of them,
every word has another that it calls for, and the end token gets as much of a push as makes half of the outputs end in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

from regard.data.batch import Tokens
from regard.decoding.runner import decode
from regard.decoding.search import Hypothesis
from regard.decoding.settings import Method, Rules
from regard.models import Generator
from tests.families import VOCABULARY, sentences, small

END, LONGEST = 2, 16


class Kind(NamedTuple):
    preset: str
    settings: dict[str, Any]
    noise: float
    push: float  # to the end
    seed: int


KINDS = {
    "after": Kind("transformer-base", {}, 0.0, 1, 7),
    "before": Kind("transformer-base", {"norm_place": "before"}, 0.3, 2, 6),
    "rotary": Kind("transformer-base", {"positions": "rotary"}, 0.0, 2, 1),
    "alibi": Kind("transformer-base", {"positions": "alibi"}, 0.0, 1, 1),
    "relative": Kind("t5-small", {}, 0.3, 2, 3),
    "learned": Kind("transformer-base", {"positions": "learned"}, 0.0, 2, 2),
    "gpt2": Kind("gpt2", {}, 0.3, 1, 2),
    "window": Kind("llama-tiny", {"window": 4}, 0.3, 2, 3),
    "prefix": Kind("llama-tiny", {"mask": "prefix"}, 0.3, 2, 3),
    "rnn-attention": Kind("rnn-attention", {}, 0.5, 2, 3),
    "rnn-plain": Kind("rnn-plain", {}, 0.7, 1, 2),
}
ONE_OF_EACH = ["before", "gpt2", "rnn-attention"]  # an encoder-decoder, a language model, a recurrent one
SOURCES = sentences(*(1 + number % 17 for number in range(64)), seed=4)


@cache
def lively(kind: str, dtype: torch.dtype = torch.float64) -> Generator:
    """The model of that kind; shared by all tests, so left as it is."""
    return made_lively(KINDS[kind]).to(dtype)


def made_lively(kind: Kind) -> Generator:
    preset, settings, noise, push, seed = kind
    if not preset.startswith("rnn"):
        settings = settings | {"output_bias": True, "logit_scale": 1.0}
    model = small(preset, tied=False, **settings)
    generator = torch.Generator().manual_seed(seed)

    def normal(like: torch.Tensor) -> torch.Tensor:
        return torch.randn(like.shape, generator=generator, dtype=like.dtype)

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(normal(parameter) * noise)
            if name.endswith(("join.weight", "join.bias", "narrow.weight", "narrow.bias")):
                parameter.mul_(0.5)
        called_for_by = torch.randperm(VOCABULARY, generator=generator)
        model.deembed.weight.copy_(normal(model.deembed.weight) * 0.5 + F.normalize(model.embed.weight, dim=1)[called_for_by])
        model.deembed.bias.copy_(push * F.one_hot(torch.tensor(END), VOCABULARY))
    assert isinstance(model, Generator)
    return model


def decoded(
    model: Generator, sources: Sequence[Sequence[int]], method: Method, rules: Rules | None = None, **more: Any
) -> list[list[Hypothesis]]:
    """What the model writes, 16 words at most unless the rules say otherwise."""
    return decode(model, Tokens.pad(sources, device=model.device), method, rules or Rules(max_length=LONGEST), **more)


def assert_lively(outputs: Sequence[Hypothesis]) -> None:
    """Many end, some don't, and they differ: or else a test on them shows nothing."""
    assert 0.2 < sum(output.ended for output in outputs) / len(outputs) < 1
    assert len({len(output.tokens) for output in outputs}) >= 5
    assert len({output.tokens for output in outputs}) > len(outputs) / 3


def assert_same(ours: Sequence[Sequence[Hypothesis]], theirs: Sequence[Sequence[Hypothesis]], within: float = 1e-9) -> None:
    """The same words, scores and log-probabilities, source by source and place by place."""
    assert [[output.tokens for output in outputs] for outputs in ours] == [[output.tokens for output in outputs] for outputs in theirs]
    for one, other in zip((o for row in ours for o in row), (o for row in theirs for o in row), strict=True):
        assert one.ended == other.ended
        assert abs(one.score - other.score) <= within
        assert max(abs(a - b) for a, b in zip(one.log_probabilities, other.log_probabilities, strict=True)) <= within

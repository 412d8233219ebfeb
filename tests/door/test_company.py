"""The law of company, as models are loaded by default and in each precision: one file in any order and any batches gives the same."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product
from typing import Any, Literal, TypeVar

import pytest
import torch

from regard.decoding.products import FloatProduct, Int8Product, available
from regard.decoding.reading import uses_int8
from regard.door import Model, load
from regard.models import Encoder
from regard.recipe import TokenizerSettings
from regard.text.tokenizer import Tokenizer
from tests.closeness import assert_close
from tests.families import small

SUBJECTS = ("I", "My old neighbour", "The children next door", "Nobody in this village", "Tom")
DOINGS = ("have never seen such a big dog", "went home", "would like to know what time it is", "can't swim")
ENDS = (".", " and neither can you.", ", because it was raining all day long.", " yesterday!", ", I think.", "?")
TEXTS = [f"{subject} {doing}{end}" for subject in SUBJECTS for doing in DOINGS for end in ENDS]  # 120

PRECISIONS = [
    pytest.param("int8", marks=pytest.mark.skipif(not available(Int8Product), reason="this PyTorch has no int8 kernels for this CPU")),
    pytest.param("float32", marks=pytest.mark.skipif(not available(FloatProduct), reason="this PyTorch has no packed products")),
]
Precision = Literal["int8", "float32"]
A = TypeVar("A")


def written(model: Model, texts: list[str], beam: int) -> list[tuple[str, float | None]]:
    """The words, and in int8 how likely they are, to the last bit: a bit may be all that is between two whole numbers."""
    exactly = uses_int8(model.writer)
    return [(answer.text, answer.log_probability if exactly else None) for answer in model.translate(texts, "de", beam_size=beam)]


def in_company(texts: list[str], order: list[int], size: int, work: Callable[[list[str]], list[A]]) -> list[A]:
    """What is made of texts in that order and so many at once, each in the place of its text."""
    found: dict[int, A] = {}
    for start in range(0, len(order), size):
        part = order[start : start + size]
        found |= zip(part, work([texts[place] for place in part]), strict=True)
    return [found[place] for place in range(len(texts))]


def shuffled(texts: list[str], seed: int) -> list[int]:
    return random.Random(seed).sample(range(len(texts)), len(texts))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("beam", [1, 4], ids=["greedy", "beam"])
def test_some_texts_in_any_company(precision: Precision, beam: int) -> None:
    model, texts = load("translator", precision=precision), TEXTS[::17]
    wanted = written(model, texts, beam)
    for seed, size in enumerate([1, 3]):
        assert in_company(texts, shuffled(texts, seed), size, lambda some: written(model, some, beam)) == wanted


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("beam", [1, 4], ids=["greedy", "beam"])
def test_a_file_in_ten_orders_and_five_batch_sizes(precision: Precision, beam: int) -> None:
    """Every order in every size."""
    model, texts = load("translator", precision=precision), TEXTS[::3]
    wanted = written(model, texts, beam)
    for seed, size in product(range(10), [1, 3, 7, 20, len(texts)]):
        assert in_company(texts, shuffled(texts, seed), size, lambda some: written(model, some, beam)) == wanted, (seed, size)


# As it is loaded by default, whatever that is here

PROMPTS = ["I would", "Yesterday", "The man in", "Do you", "My sister has never", "It", "When we were young, we", "Nobody knows why the"]


@pytest.fixture(scope="module")
def everyday() -> Model:
    return load("everyday", device="cpu")


def continued(model: Model, prompts: list[str], **options: Any) -> list[tuple[str, float | None]]:
    exactly = uses_int8(model.writer)
    return [(answer.text, answer.log_probability if exactly else None) for answer in model.generate(prompts, max_length=12, **options)]


def test_prompts_in_any_company(everyday: Model) -> None:
    wanted = continued(everyday, PROMPTS, beam_size=1)
    assert len(set(wanted)) > len(PROMPTS) // 2
    for seed, size in enumerate([1, 3, len(PROMPTS)]):
        assert in_company(PROMPTS, shuffled(PROMPTS, seed), size, lambda some: continued(everyday, some, beam_size=1)) == wanted


def test_what_is_drawn_goes_by_the_number_of_the_prompt(everyday: Model) -> None:
    wanted = continued(everyday, PROMPTS, seed=3)
    assert wanted != continued(everyday, PROMPTS, seed=4)
    for size in (1, 3, 5):
        parts = range(0, len(PROMPTS), size)
        assert [found for first in parts for found in continued(everyday, PROMPTS[first : first + size], seed=3, first=first)] == wanted
    order = shuffled(PROMPTS, 1)
    found = continued(everyday, [PROMPTS[place] for place in order], seed=3, numbers=order)
    assert found == [wanted[place] for place in order]


def test_texts_that_are_read_in_any_company() -> None:
    """Equal but for rounding, which in float32 goes by how much is added up at once."""
    tokenizer = Tokenizer.train(TEXTS, TokenizerSettings(kind="char", size=60))
    network = small("bert-base", vocabulary=tokenizer.size).float()
    assert isinstance(network, Encoder)
    texts, model = [text[: 5 + 7 * number] for number, text in enumerate(TEXTS[5::17])], Model(network, tokenizer, precision="auto")

    def read(some: list[str]) -> list[torch.Tensor]:
        chances = torch.tensor([list(answer.probabilities.values()) for answer in model.classify(some)])
        return [*torch.cat([model.embed(some), chances], 1)]

    wanted = read(texts)
    for seed, size in product(range(3), [1, 2, 3, len(texts)]):
        order = shuffled(texts, seed)
        for start in range(0, len(order), size):
            part = order[start : start + size]
            assert_close(torch.stack(read([texts[place] for place in part])), torch.stack([wanted[place] for place in part]), network)

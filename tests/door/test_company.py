"""The law of company, for the model that ships, in int8 and float32: one file in any order and any batches gives the same words."""

from __future__ import annotations

import random
from typing import Literal

import pytest

from regard.decoding.products import FloatProduct, Int8Product, available
from regard.door import Model, load

SUBJECTS = ("I", "My old neighbour", "The children next door", "Nobody in this village", "Tom")
DOINGS = ("have never seen such a big dog", "went home", "would like to know what time it is", "can't swim")
ENDS = (".", " and neither can you.", ", because it was raining all day long.", " yesterday!", ", I think.", "?")
TEXTS = [f"{subject} {doing}{end}" for subject in SUBJECTS for doing in DOINGS for end in ENDS]  # 120

PRECISIONS = [
    pytest.param("int8", marks=pytest.mark.skipif(not available(Int8Product), reason="this PyTorch has no int8 kernels for this CPU")),
    pytest.param("float32", marks=pytest.mark.skipif(not available(FloatProduct), reason="this PyTorch has no packed products")),
]
Precision = Literal["int8", "float32"]


def written(model: Model, texts: list[str], beam: int) -> list[str]:
    return [answer.text for answer in model.translate(texts, "de", beam_size=beam)]


def assert_the_same_in_any_company(model: Model, texts: list[str], orders: int, sizes: list[int], beam: int) -> None:
    wanted = written(model, texts, beam)
    for seed in range(orders):
        order = random.Random(seed).sample(range(len(texts)), len(texts))
        size = sizes[seed % len(sizes)]
        for start in range(0, len(order), size):
            part = order[start : start + size]
            assert written(model, [texts[place] for place in part], beam) == [wanted[place] for place in part]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("beam", [1, 4], ids=["greedy", "beam"])
def test_some_texts_in_any_company(precision: Precision, beam: int) -> None:
    model = load("translator", precision=precision)
    assert_the_same_in_any_company(model, TEXTS[::17], 2, [1, 3], beam)


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("beam", [1, 4], ids=["greedy", "beam"])
def test_a_file_in_ten_orders_and_five_batch_sizes(precision: Precision, beam: int) -> None:
    model = load("translator", precision=precision)
    assert_the_same_in_any_company(model, TEXTS, 10, [1, 3, 10, 50, len(TEXTS)], beam)

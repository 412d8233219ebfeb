"""An answer, the tree of its search and what a trace shows are of one precision: by their numbers, not by what they say of themselves."""

from __future__ import annotations

import json
import math
from itertools import cycle
from statistics import quantiles
from typing import Any

import pytest
import torch

from regard.decoding.ready import WrittenIn, precision_of
from regard.door import Model, load
from regard.view.trace_json import as_json
from tests.closeness import blocks, tolerance

TEXTS = (
    "The old man has not been seen since Tuesday.",
    "Where did you put the keys to my car?",
    "I would rather stay at home than go out in this rain.",
    "She bought three kilos of apples and a bottle of red wine at the market.",
    "Nobody told us that the train had already left.",
    "If it snows tomorrow, the school will be closed.",
    "My brother's friend works in a small hospital near the river.",
    "Please don't forget to switch off the lights!",
    "The children were playing football in the street when it started to get dark.",
    "How many people live in your village?",
    "Yesterday we watched a film about the history of the sea.",
    "He speaks four languages, but he can't cook.",
)
# What stands between two whole numbers falls to either by the last bit, and is then carried on. That makes some tokens differ by as much as
# int8 itself does from float32, which is by far more than the rounding of float32 for nearly every token.
MOSTLY, FLIPPED = 0.75, 0.5  # of the tokens; in nats


@pytest.fixture(scope="module")
def documents() -> Any:
    """What the page gets for every text, by precision and beam, each made once."""
    models: dict[str, Model] = {}
    made: dict[tuple[str, int], list[dict[str, Any]]] = {}

    def of(precision: WrittenIn, beam: int) -> tuple[Model, list[dict[str, Any]]]:
        if precision not in models:
            models[precision] = load("translator", device="cpu", precision=precision)
        model = models[precision]
        if (precision, beam) not in made:
            traces = (
                model.trace(text, to, parts=("output", "search"), beam_size=beam)
                for text, to in zip(TEXTS, cycle(("it", "de", "fr")), strict=False)
            )
            made[precision, beam] = [json.loads(json.dumps(as_json(trace))) for trace in traces]
        return model, made[precision, beam]

    return of


def allowed(model: Model, documents: list[dict[str, Any]]) -> float:
    """How far two log-probabilities may be apart by the order of sums in float32: as far as logits may."""
    logits = [word["logit"] for document in documents for word in document["output"]["chosen"]]
    return tolerance(torch.tensor(logits), blocks(model.network))


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("precision", ["auto", "float32"])
def test_what_is_shown_is_what_the_answer_was_chosen_by(precision: WrittenIn, beam: int, documents: Any) -> None:
    model, found = documents(precision, beam)
    kind, most = precision_of(model.writer), allowed(model, found)
    assert most < 2e-3  # or it would not tell one precision from another
    apart: list[float] = []
    for document in found:
        assert document["model"]["written_in"] == document["model"]["traced_in"] == kind
        answer, output = document["answer"], document["output"]
        own = [abs(math.log(word["probability"]) - log) for word, log in zip(output["chosen"], answer["log_probabilities"], strict=True)]
        if beam == 1:
            for (first, *_), word, off in zip(output["logits"], output["chosen"], own, strict=True):
                assert word["rank"] == 0 or first - word["logit"] <= 2 * max(off, most)
        apart += own
    if kind == "int8":
        assert quantiles(apart, n=100)[round(100 * MOSTLY) - 1] <= most
        assert max(apart) <= FLIPPED
    else:
        assert max(apart) <= most


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("precision", ["auto", "float32"])
def test_what_the_tree_took_is_the_answer(precision: WrittenIn, beam: int, documents: Any) -> None:
    for document in documents(precision, beam)[1]:
        answer, search = document["answer"], document["search"]
        nodes, number, taken = search["nodes"], search["best"], []
        assert nodes[number]["total"] == pytest.approx(answer["log_probability"])
        while number is not None and nodes[number]["parent"] is not None:
            taken.append(nodes[number])
            number = nodes[number]["parent"]
        assert [node["log_probability"] for node in reversed(taken)] == pytest.approx(answer["log_probabilities"], rel=1e-4, abs=1e-6)

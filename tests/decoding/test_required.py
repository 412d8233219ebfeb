"""Words that must be written, and rules that can't all be kept to."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from regard.decoding.settings import GREEDY, Beam, Method, Rules, Sampling
from regard.errors import ConfigError
from tests.decoding.lively import END, LONGEST, ONE_OF_EACH, SOURCES, assert_same, decoded, lively
from tests.decoding.plain import log_probabilities
from tests.decoding.test_rules import FEW, has, with_end

REQUIRED: dict[str, list[list[int]]] = {
    "one": [[5]],
    "pair": [[5, 6]],
    "two": [[5], [9, 10]],
    "overlapping": [[5, 6], [6, 7], [20]],
    "long": [[5, 5, 6], [11, 12, 13]],
}


@pytest.mark.parametrize("asked", REQUIRED)
def test_every_output_has_the_required_words(asked: str) -> None:
    rules = Rules(max_length=LONGEST, required=REQUIRED[asked])
    sources = [[word + 20 if word in (5, 6, 7, 9, 10) else word for word in source] for source in SOURCES[:8]]
    for kind, size in product(ONE_OF_EACH, (2, 5)):
        model = lively(kind)
        for source, outputs in zip(sources, decoded(model, sources, Beam(size=size, n_best=2), rules), strict=True):
            assert all(has(output, rules.required) for output in outputs)
            for output in outputs:
                own = log_probabilities(model, source, output.tokens)
                want = [float(own[place, word]) for place, word in enumerate(with_end(output))]
                assert output.log_probabilities == pytest.approx(want, abs=1e-9)


def test_required_words_are_wanted_in_the_output_not_in_the_prompt() -> None:
    found = decoded(lively("gpt2"), [[7, 5, 9], [8, 5]], Beam(size=4), Rules(max_length=LONGEST, required=[[5]]))
    assert all(has(output[0], ((5,),)) for output in found)


@pytest.mark.parametrize("method", [GREEDY, Sampling()], ids=["greedy", "sampling"])
def test_required_words_need_a_beam(method: Method) -> None:
    with pytest.raises(ConfigError, match="required words need a beam"):
        decoded(lively("gpt2"), FEW, method, Rules(required=[[5]]))


# Rules that can't all be kept to

EVERY_WORD = [[word] for word in range(31)]
CONTRADICTIONS: dict[str, dict[str, Any]] = {
    "nothing is allowed": {"banned": EVERY_WORD},
    "nothing is ever chosen": {"never": range(31)},
    "it runs out of words": {"no_repeat": 1, "banned": EVERY_WORD[1:2] + EVERY_WORD[4:], "min_length": 8},
}
PREFERRED: dict[str, tuple[dict[str, Any], list[int]]] = {
    "it begins with what is banned": ({"banned": [[5]]}, [5]),
    "it begins with a banned pair": ({"banned": [[5, 6]]}, [7, 5, 6]),
    "it ends early": ({"min_length": 3}, [4, END]),
    "it repeats itself": ({"no_repeat": 1}, [6, 6]),
}


@pytest.mark.parametrize("asked", CONTRADICTIONS)
@pytest.mark.parametrize("method", [GREEDY, Beam(size=3), Sampling(), Sampling(top_k=2, top_p=0.9, min_p=0.1)])
def test_rules_that_leave_nothing_to_write_are_said(asked: str, method: Method) -> None:
    rules = Rules(max_length=LONGEST, **CONTRADICTIONS[asked])
    with pytest.raises(ConfigError, match="source 1: the rules leave no word that may be written; lift one of them"):
        decoded(lively("before"), FEW[:2], method, rules)
    assert decoded(lively("before"), FEW[:2], method, rules, partial=True) == [[], []]


@pytest.mark.parametrize("asked", PREFERRED)
@pytest.mark.parametrize("method", [GREEDY, Beam(size=3), Sampling()])
def test_a_forced_prefix_comes_before_the_other_rules(asked: str, method: Method) -> None:
    """Whoever gives it wants it; what follows keeps to the rules, or has no output, and that of other sources is there all the same."""
    asked_for, forced = PREFERRED[asked]
    rules = Rules(max_length=LONGEST, **asked_for)
    found = decoded(lively("before"), FEW[:2], method, rules, prefixes=[forced, []], partial=True)
    words = [word for word in forced if word != END]
    assert all(list(output.tokens[: len(words)]) == words for output in found[0])
    assert_same(found[1:], decoded(lively("before"), FEW[1:2], method, rules, numbers=[1]))


def test_required_words_may_begin_alike() -> None:
    """What two of them share is written for both, and counts once."""
    rules = Rules(max_length=40, required=[[3, 13], [3, 10]])
    for outputs in decoded(lively("before"), FEW, Beam(size=4), rules):
        assert has(outputs[0], rules.required)


@pytest.mark.parametrize("asked", [{"banned": [[5]]}, {"banned": [[6]]}, {"no_repeat": 1}, {"max_length": 2}])
def test_required_words_that_can_not_be_written_are_said(asked: dict[str, Any]) -> None:
    """Rather than an output without them."""
    with pytest.raises(ConfigError, match="required"):
        decoded(lively("before"), FEW[:2], Beam(size=4), Rules(**({"max_length": LONGEST, "required": [[5, 6, 5]]} | asked)))


@pytest.mark.parametrize("asked", [{"banned": [[]]}, {"required": [[3], []]}])
def test_words_of_nothing_are_said(asked: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="a banned or required word has no tokens; leave it out"):
        Rules(**asked)


@pytest.mark.parametrize("asked", [{"banned": [[-1]]}, {"required": [[3, -2]]}])
def test_words_that_are_no_words_are_said(asked: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="greater than or equal to 0"):
        Rules(**asked)


@pytest.mark.parametrize("asked", [{"banned": [[31]]}, {"banned": [[3, 99]]}, {"required": [[31]]}])
def test_words_that_the_model_does_not_have_are_said(asked: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="vocabulary"):
        decoded(lively("before"), FEW[:1], Beam(size=2), Rules(**asked))

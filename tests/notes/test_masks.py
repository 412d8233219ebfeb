"""Masks: who may see whom, and why the future must not be seen."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from regard.config import EncoderConfig, LanguageModelConfig
from regard.data.batch import Tokens
from regard.models import Encoder, LanguageModel
from regard.nn.attention import Attention
from regard.nn.backends import attend
from regard.nn.masks import Causal, Full, Mask, Padding, Prefix, Rule, Window

SIZES = {"vocabulary": 10, "layers": 2, "width": 16, "heads": 2, "feedforward": 32, "dropout": 0.0}


def words(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def seen(rule: Rule, length: int) -> list[list[int]]:
    """Which words each of them really looks at, through attention: 1 where it has any weight."""
    x = words(1, length, 8)
    weights = attend(x, x, x, mask=rule.build(length)).weights
    return (weights.flatten(0, -3)[0] > 0).int().tolist()


def test_full_attention_goes_both_ways() -> None:
    assert seen(Full(), 3) == [[1, 1, 1], [1, 1, 1], [1, 1, 1]]


def test_causal_attention_sees_no_future() -> None:
    assert seen(Causal(), 4) == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]


def test_padding_is_not_looked_at() -> None:
    rule = Padding(torch.tensor([[True, True, False]]))
    assert seen(rule, 3) == [[1, 1, 0], [1, 1, 0], [1, 1, 0]]


def test_prefix_attention_sees_what_was_given_both_ways() -> None:
    assert seen(Prefix(torch.tensor([2])), 4) == [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]


def test_a_fixed_window_is_all_the_context_there_is() -> None:
    assert seen(Causal() & Window(2), 4) == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]


def test_masks_combine() -> None:
    rule = Causal() & Padding(torch.tensor([[True, True, False]]))
    assert seen(rule, 3) == [[1, 0, 0], [1, 1, 0], [1, 1, 0]]


# Three words of Hindi, each made of all three: two of them unknown when the first is to be written.
LEAK = torch.tensor([[0.8, 0.1, 0.1], [0.15, 0.75, 0.1], [0.1, 0.2, 0.7]], dtype=torch.float64)


@pytest.mark.parametrize("masked", [False, True])
def test_without_a_mask_the_future_leaks(masked: bool) -> None:
    values = words(3, 4).requires_grad_()
    mask = Causal().build(3) if masked else Full().build(3)
    output = attend(LEAK.log(), torch.eye(3, dtype=torch.float64), values, scale=1.0, mask=mask).output.squeeze()
    output[0].sum().backward()
    weights = values.grad[:, 0]
    torch.testing.assert_close(weights, torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64) if masked else LEAK[0])


def reach(states: Tensor, embedded: Tensor) -> list[bool]:
    """Which words the output at the first position depends on."""
    return (torch.autograd.grad(states[0, 0].square().sum(), embedded)[0][0].norm(dim=-1) > 0).tolist()


def test_a_crude_language_model_must_not_see_its_answer() -> None:
    """A gradient flows from the future into an encoder's first word, and none into a decoder's."""
    torch.manual_seed(1)
    tokens = Tokens(torch.tensor([[3, 4, 5]]))
    leaky, causal = Encoder(EncoderConfig.model_validate(SIZES)).double(), LanguageModel(LanguageModelConfig.model_validate(SIZES)).double()
    found = []
    for model in (leaky, causal):
        embedded: list[Tensor] = []
        model.embed.register_forward_hook(lambda module, given, output, kept=embedded: kept.append(output))
        states = model(tokens)
        found.append(reach(states, embedded[0]))
    assert found == [[True, True, True], [True, False, False]]


def test_padding_changes_nothing() -> None:
    torch.manual_seed(1)
    model = Encoder(EncoderConfig.model_validate(SIZES)).double()
    alone, together = Tokens.pad([[3, 4, 5]]), Tokens.pad([[3, 4, 5], [6, 7, 8, 9, 3, 4]])
    torch.testing.assert_close(model(together)[:1, :3], model(alone))


def test_a_word_that_may_see_nothing_gets_zeros() -> None:
    module = Attention(8, 2, bias="none").double()
    nothing = Padding(torch.zeros(1, 3, dtype=torch.bool)).build(3)
    assert module(words(1, 3, 8), mask=nothing).abs().max() == 0
    assert module(words(1, 3, 8), mask=Mask()).abs().max() > 0

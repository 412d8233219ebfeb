"""Attention: from a weighted sum without parameters to softmax(QKᵀ/√d)V with three learned matrices."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from regard.nn.attention import Attention
from regard.nn.backends import attend
from regard.nn.masks import Causal, Mask
from regard.nn.tap import record

# YOUR CAT IS A LOVELY CAT, as the notes print it.
TABLE = torch.tensor(
    [
        [0.268, 0.119, 0.134, 0.148, 0.179, 0.152],
        [0.124, 0.278, 0.201, 0.128, 0.154, 0.115],
        [0.147, 0.132, 0.262, 0.097, 0.218, 0.145],
        [0.210, 0.128, 0.206, 0.212, 0.119, 0.125],
        [0.146, 0.158, 0.152, 0.143, 0.227, 0.174],
        [0.195, 0.114, 0.203, 0.103, 0.157, 0.229],
    ],
    dtype=torch.float64,
)


def words(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_self_attention_without_parameters_has_three_stages() -> None:
    x = words(5, 8)
    attended = attend(x, x, x, scale=1.0)
    for i in range(5):
        e = torch.stack([x[i] @ x[j] for j in range(5)])  # similarity to every word
        alpha = e.exp() / e.exp().sum()  # normalised
        torch.testing.assert_close(attended.scores[i], e)
        torch.testing.assert_close(attended.weights[i], alpha)
        torch.testing.assert_close(attended.output[i], sum(a * word for a, word in zip(alpha, x, strict=True)))


def test_attention_is_the_formula_of_the_paper() -> None:
    query, key, value = words(3, 1, 2, 6, 64)
    torch.testing.assert_close(attend(query, key, value).output, F.scaled_dot_product_attention(query, key, value))


def test_six_words_of_512_give_a_table_of_6_by_6() -> None:
    x = words(6, 512)
    attended = attend(x, x, x)
    assert attended.weights.shape == (6, 6)
    assert attended.output.shape == (6, 512)


def test_weights_of_the_table_are_positive_and_sum_to_1() -> None:
    attended = attend(TABLE.log(), torch.eye(6, dtype=torch.float64), words(6, 512), scale=1.0)
    torch.testing.assert_close(attended.weights, TABLE, atol=5e-4, rtol=0)  # printed with three digits
    torch.testing.assert_close(attended.weights.sum(-1), torch.ones(6, dtype=torch.float64))
    assert attended.weights.min() > 0


def test_each_word_looks_most_at_itself() -> None:
    x = words(6, 512)
    weights = attend(x, x, x).weights
    assert weights.argmax(-1).tolist() == list(range(6))
    assert TABLE.argmax(-1).tolist() == list(range(6))


def test_minus_infinity_before_the_softmax_forbids_a_look() -> None:
    x = words(6, 8)
    allowed = TABLE > 0.13
    attended = attend(x, x, x, mask=Mask(allowed[None, None]))
    expected = (x @ x.T / 8**0.5).masked_fill(~allowed, float("-inf")).softmax(-1)
    torch.testing.assert_close(attended.weights, expected)
    assert (attended.weights[~allowed] == 0).all()
    # In practice: exp(e) replaced with 0 inside the softmax.
    exponents = attended.scores.exp() * allowed
    torch.testing.assert_close(attended.weights, exponents / exponents.sum(-1, keepdim=True))


def test_the_table_above_its_diagonal_becomes_zero() -> None:
    """YOUR CAT IS A LOVELY CAT in a decoder: what is left of each row is shared out anew."""
    masked = attend(TABLE.log(), torch.eye(6, dtype=torch.float64), words(6, 4), scale=1.0, mask=Causal().build(6)).weights
    assert (masked.triu(1) == 0).all()
    left = TABLE.tril()
    torch.testing.assert_close(masked, left / left.sum(-1, keepdim=True))


def test_a_forbidden_look_teaches_nothing() -> None:
    key = words(6, 8).requires_grad_()
    x, allowed = words(6, 8, seed=2), torch.ones(6, 6, dtype=torch.bool)
    allowed[:, 4] = False
    attend(x, key, key, mask=Mask(allowed[None, None])).output.sum().backward()
    assert key.grad[4].abs().max() == 0
    assert key.grad[3].abs().max() > 0


def test_permuted_words_give_permuted_outputs() -> None:
    x, order = words(6, 8), [3, 1, 5, 0, 2, 4]
    torch.testing.assert_close(attend(x[order], x[order], x[order]).output, attend(x, x, x).output[order])
    assert (attend(x[order], x[order], x[order]).output - attend(x, x, x).output).abs().max() > 0.1


def test_dot_product_measures_similarity() -> None:
    x = words(5, 8)
    scores = attend(x, x, x, scale=1.0).scores
    cosines = F.cosine_similarity(x[:, None], x[None, :], dim=-1)
    torch.testing.assert_close(scores, cosines * x.norm(dim=-1)[:, None] * x.norm(dim=-1)[None, :])


def test_all_words_are_done_in_parallel() -> None:
    """No word waits for another's result: one pass for all equals a pass for each."""
    torch.manual_seed(1)
    module, x = Attention(8, 2).double(), words(1, 5, 8)
    one_by_one = [module(x[:, i : i + 1], x) for i in range(5)]
    torch.testing.assert_close(module(x), torch.cat(one_by_one, 1))


def test_the_same_matrices_serve_all_words() -> None:
    torch.manual_seed(1)
    module, x = Attention(8, 2).double(), words(1, 5, 8)
    with record(module) as taps:
        module(x)
    for name, matrix, bias in zip(
        ("query", "key", "value"), module.project.weight.detach().chunk(3), module.project.bias.detach().chunk(3), strict=True
    ):
        for i in range(5):
            torch.testing.assert_close(taps[name][0, :, i].flatten(), matrix @ x[0, i] + bias)


def test_one_product_for_query_key_and_value_equals_three() -> None:
    torch.manual_seed(1)
    module, x = Attention(16, 4, bias="none").double(), words(2, 5, 16)
    of_query, of_key, of_value = module.project.weight.chunk(3)
    query, key, value = ((x @ matrix.T).view(2, 5, 4, 4).transpose(1, 2) for matrix in (of_query, of_key, of_value))
    expected = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2) @ module.join.weight.T
    torch.testing.assert_close(module(x), expected)


def test_only_learned_matrices_can_learn_a_task() -> None:
    """ "Piece of cake" should come to mean something else: that takes weights, and attention without any has none to change."""
    torch.manual_seed(1)
    piece_of_cake, easy = torch.randn(2, 1, 3, 8)
    assert not attend(piece_of_cake, piece_of_cake, piece_of_cake).output.requires_grad
    module = Attention(8, 2)
    before = F.mse_loss(module(piece_of_cake), easy)
    before.backward()
    for matrix in module.project.weight.grad.chunk(3):
        assert matrix.abs().max() > 0  # W_q, W_k and W_v alike
    optimiser = torch.optim.Adam(module.parameters(), lr=0.02)
    for _ in range(150):
        optimiser.zero_grad()
        loss = F.mse_loss(module(piece_of_cake), easy)
        loss.backward()
        optimiser.step()
    assert loss < 0.05 * before


LIBRARY = {"title": 1.0, "author": 2.0, "year": 3.0}


@pytest.mark.parametrize("name", LIBRARY)
def test_sharp_keys_make_a_dictionary(name: str) -> None:
    keys = torch.eye(3, dtype=torch.float64)
    values = torch.tensor([[value] for value in LIBRARY.values()], dtype=torch.float64)
    query = keys[list(LIBRARY).index(name)][None]
    sharp = attend(query, keys, values, scale=100.0)
    assert sharp.output.item() == pytest.approx(LIBRARY[name])  # kept intact, the others drowned out
    soft = attend(query, keys, values, scale=1.0)
    assert soft.weights.argmax() == list(LIBRARY).index(name)
    assert soft.weights.max() < 0.6  # but a soft look-up finds a little of everything


def variance_of_scores(width: int, scale: float | None) -> float:
    query, key = words(2, 50_000, 1, width)
    return attend(query, key, key, scale=scale).scores.var().item()


def test_variance_of_a_dot_product_grows_with_the_dimension() -> None:
    one = variance_of_scores(1, scale=1.0)
    for width in (2, 3, 16):
        assert variance_of_scores(width, scale=1.0) == pytest.approx(width * one, rel=0.06)


def test_dividing_by_the_root_keeps_the_variance() -> None:
    one = variance_of_scores(1, scale=None)
    for width in (2, 3, 16):
        assert variance_of_scores(width, scale=None) == pytest.approx(one, rel=0.06)


def test_a_factor_counts_twice_in_the_variance() -> None:
    x = words(40, 4)
    variance = attend(x, x, x, scale=1.0).scores.var()
    for c in (0.5, 2**-0.5, 3.0):
        torch.testing.assert_close(attend(x, x, x, scale=c).scores.var(), c**2 * variance)


def test_large_scores_leave_the_softmax_without_gradient() -> None:
    query, key = words(2, 20, 512)

    def gradient(scale: float | None) -> Tensor:
        nudge = torch.zeros(20, 20, dtype=torch.float64, requires_grad=True)  # added to the scores
        weights = attend(query, key, key, bias=nudge, scale=scale).weights
        (weights * words(20, 20, seed=2)).sum().backward()
        return nudge.grad.norm(dim=-1).median()

    assert gradient(1.0) < 1e-2 * gradient(None)


def test_heads_of_64_divide_their_scores_by_8() -> None:
    torch.manual_seed(1)
    module, x = Attention(512, 8, backend="explicit"), torch.randn(1, 2, 512)  # Thinking Machines
    with record(module) as taps:
        module(x)
    assert taps["query"].shape == (1, 8, 2, 64)
    torch.testing.assert_close(taps["scores"], taps["query"] @ taps["key"].transpose(-2, -1) / 8)


def test_attention_is_linear_in_its_values() -> None:
    """W_v Σ α h = Σ α W_v h: however many layers of it, with given weights they are one linear map."""
    query, key, h = words(3, 5, 8)
    first, second = words(2, 8, 8, seed=2)
    attended = attend(query, key, h @ first)
    torch.testing.assert_close(attended.output, attend(query, key, h).output @ first)
    above = attend(key, query, attended.output @ second)
    torch.testing.assert_close(above.output, (above.weights @ attended.weights) @ h @ (first @ second))


def test_twice_the_words_cost_four_times_as_much() -> None:
    def cost(length: int) -> int:
        x = words(1, length, 16)
        with FlopCounterMode(display=False) as counter:
            attend(x, x, x)
        return counter.get_total_flops()

    assert cost(64) == 4 * cost(32)

"""Several heads, and attention to another sequence."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from regard.config import Seq2SeqConfig
from regard.nn.attention import Attention
from regard.nn.backends import attend
from regard.nn.layers import Stack
from regard.nn.masks import Causal
from regard.nn.tap import record


def words(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def make(width: int, heads: int, head_width: int | None = None, backend: str = "explicit") -> Attention:
    torch.manual_seed(1)
    return Attention(width, heads, head_width=head_width, backend=backend).double()


def test_heads_are_attentions_side_by_side_joined_by_a_matrix() -> None:
    """MultiHead = Concat(head₁ … head_h) W^O, head_i = Attention(X W_i^Q, X W_i^K, X W_i^V), head by head."""
    module, x = make(32, 4), words(1, 5, 32)
    matrices = [matrix.view(4, 8, 32) for matrix in module.project.weight.chunk(3)]
    biases = [bias.view(4, 8) for bias in module.project.bias.chunk(3)]
    heads = []
    for i in range(4):
        query, key, value = (x[0] @ matrix[i].T + bias[i] for matrix, bias in zip(matrices, biases, strict=True))
        heads.append((query @ key.T / 8**0.5).softmax(-1) @ value)
    expected = torch.cat(heads, -1) @ module.join.weight.T + module.join.bias
    torch.testing.assert_close(module(x)[0], expected)


def test_512_numbers_are_8_heads_of_64() -> None:
    module = make(512, 8)
    with record(module) as taps:
        output = module(words(1, 3, 512))
    assert module.head_width == 512 // 8 == 64
    assert taps["query"].shape == taps["key"].shape == taps["value"].shape == (1, 8, 3, 64)
    assert taps["heads"].shape == (1, 3, 512)  # eight matrices of 3 × 64, side by side
    assert output.shape == (1, 3, 512)


def test_more_heads_cost_no_more() -> None:
    def cost(heads: int) -> tuple[int, int]:
        module = make(64, heads)
        with FlopCounterMode(display=False) as counter:
            module(words(1, 10, 64))
        return counter.get_total_flops(), sum(parameter.numel() for parameter in module.parameters())

    assert cost(1) == cost(2) == cost(8)


def test_heads_need_not_be_narrower_than_the_words() -> None:
    module = make(16, 2, head_width=48)
    with record(module) as taps:
        output = module(words(1, 3, 16))
    assert taps["query"].shape == (1, 2, 3, 48)
    assert output.shape == (1, 3, 16)


def test_each_head_has_a_perspective_of_its_own() -> None:
    """The man saw the astronomer with a telescope: who has the telescope may be two heads' two answers."""
    module = make(32, 4)
    with record(module) as taps:
        module(3 * words(1, 8, 32))
    weights = taps["weights"][0]  # (heads, query, key)
    torch.testing.assert_close(weights.sum(-1), torch.ones(4, 8, dtype=torch.float64))
    assert torch.pdist(weights.flatten(1)).min() > 0.1


def test_two_heads_see_two_words_where_one_sees_a_mixture() -> None:
    """One softmax has one whole to give: subject and object at once, each fully, takes two."""
    keys = 30 * torch.eye(4, dtype=torch.float64)
    subject, object_ = keys[0], keys[2]
    two = attend(torch.stack((subject, object_))[:, None], keys.expand(2, 4, 4), keys.expand(2, 4, 4)).weights
    assert two[0, 0, 0] > 0.99
    assert two[1, 0, 2] > 0.99
    one = attend((subject + object_)[None], keys, keys).weights
    torch.testing.assert_close(one[0, [0, 2]], torch.full((2,), 0.5, dtype=torch.float64))
    slightly = attend((1.1 * subject + object_)[None], keys, keys).weights
    assert slightly[0, 0] > 0.99  # and a small preference takes it all


def test_cross_attention_asks_with_the_target_and_reads_the_source() -> None:
    module, target, source = make(16, 2), words(1, 5, 16), words(1, 4, 16, seed=2)  # five words of Hindi, "I like eating ice-cream"
    with record(module) as taps:
        output = module(target, source)
    of_query, of_key, of_value = module.project.weight.detach().chunk(3)
    of_bias = module.project.bias.detach().chunk(3)
    torch.testing.assert_close(taps["query"][0].transpose(0, 1).flatten(1), target[0] @ of_query.T + of_bias[0])
    torch.testing.assert_close(taps["key"][0].transpose(0, 1).flatten(1), source[0] @ of_key.T + of_bias[1])
    torch.testing.assert_close(taps["value"][0].transpose(0, 1).flatten(1), source[0] @ of_value.T + of_bias[2])
    assert taps["weights"].shape == (1, 2, 5, 4)
    torch.testing.assert_close(taps["weights"].sum(-1), torch.ones(1, 2, 5, dtype=torch.float64))
    assert output.shape == target.shape


@pytest.mark.parametrize(("targets", "sources"), [(1, 7), (5, 4), (6, 1)])
def test_cross_attention_gives_one_output_for_each_target_word(targets: int, sources: int) -> None:
    assert make(16, 2)(words(1, targets, 16), words(1, sources, 16)).shape == (1, targets, 16)


def test_cross_attention_to_itself_is_self_attention() -> None:
    module, x = make(16, 2), words(1, 5, 16)
    torch.testing.assert_close(module(x, x), module(x))


def test_a_source_may_be_any_vectors() -> None:
    """Captions read an image: 49 patches that were never words, in no order that the decoder is told."""
    torch.manual_seed(1)
    config = Seq2SeqConfig(vocabulary=10, layers=2, width=16, heads=2, feedforward=32, dropout=0.0)
    decoder = Stack(config, causal=True, cross=True).double()
    caption, patches = words(1, 4, 16), words(1, 49, 16, seed=2).requires_grad_()
    positions, mask = torch.arange(4)[None], Causal().build(4)
    states = decoder(caption, patches, positions=positions, mask=mask)
    assert states.shape == (1, 4, 16)
    shuffled = patches[:, torch.randperm(49, generator=torch.Generator().manual_seed(3))]
    torch.testing.assert_close(decoder(caption, shuffled, positions=positions, mask=mask), states)
    states.square().sum().backward()
    assert (patches.grad.norm(dim=-1) > 0).all()

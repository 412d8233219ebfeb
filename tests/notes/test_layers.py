"""Feed-forward, residual paths, norms, and how they are stacked."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from regard.config import EncoderConfig, LanguageModelConfig, Seq2SeqConfig
from regard.data.batch import Tokens
from regard.models import Encoder, Seq2Seq
from regard.nn.attention import Attention
from regard.nn.layers import AddNorm, Block, FeedForward, Stack, make_norm
from regard.nn.masks import Causal
from regard.nn.tap import record


def words(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def small(place: str = "after") -> EncoderConfig:
    return EncoderConfig.model_validate(
        {"vocabulary": 10, "layers": 2, "width": 16, "heads": 2, "feedforward": 32, "norm_place": place, "dropout": 0.0}
    )


def test_feed_forward_is_3_by_512_to_2048_and_back() -> None:
    torch.manual_seed(1)
    module, x = FeedForward(512, 2048).double(), words(1, 3, 512)
    with record(module) as taps:
        output = module(x)
    assert module.widen.weight.shape == (2048, 512)
    assert module.narrow.weight.shape == (512, 2048)
    assert taps["inner"].shape == (1, 3, 2048)  # four times as wide
    assert output.shape == (1, 3, 512)
    inner = torch.maximum(torch.zeros(()), x @ module.widen.weight.T + module.widen.bias)
    torch.testing.assert_close(output, inner @ module.narrow.weight.T + module.narrow.bias)


def test_feed_forward_is_not_linear() -> None:
    torch.manual_seed(1)
    module, x = FeedForward(8, 32, bias=False).double(), words(1, 3, 8)
    assert (module(x) + module(-x)).abs().max() > 0.1  # a linear map would give 0


def test_widening_separates_what_no_line_can() -> None:
    """Cover's theorem by its smallest example: exclusive or, which no linear map fits, is learned four times as wide."""
    points = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    labels = torch.tensor([0.0, 1.0, 1.0, 0.0])
    line = torch.cat((points, torch.ones(4, 1)), 1)
    best = line @ torch.linalg.lstsq(line, labels[:, None]).solution
    torch.testing.assert_close(best[:, 0], torch.full((4,), 0.5))  # the best line knows nothing
    torch.manual_seed(1)
    module = FeedForward(2, 8)
    optimiser = torch.optim.Adam(module.parameters(), lr=0.05)
    for _ in range(200):
        optimiser.zero_grad()
        (module(points)[:, 0] - labels).square().mean().backward()
        optimiser.step()
    assert torch.equal(module(points)[:, 0] > 0.5, labels > 0.5)


def dependence(module: nn.Module, x: Tensor) -> Tensor:
    """Whether output i depends on word j: (i, j)."""
    jacobian = torch.autograd.functional.jacobian(lambda x: module(x).sum(-1)[0], x)  # (i, 1, j, width)
    return jacobian[:, 0].abs().sum(-1) > 0


def test_words_meet_in_attention_and_go_alone_through_feed_forward() -> None:
    torch.manual_seed(1)
    x = words(1, 4, 8)
    assert torch.equal(dependence(FeedForward(8, 32).double(), x), torch.eye(4, dtype=torch.bool))
    assert dependence(Attention(8, 2).double(), x).all()


def test_the_same_network_serves_every_position() -> None:
    torch.manual_seed(1)
    module, x = FeedForward(8, 32).double(), words(1, 4, 8)
    torch.testing.assert_close(module(x), torch.stack([module(x[:, i]) for i in range(4)], 1))


def test_each_layer_has_weights_of_its_own() -> None:
    stack = Stack(small())
    first, second = stack.layers
    theirs = dict(second.named_parameters())
    for name, parameter in first.named_parameters():
        assert parameter is not theirs[name]
        if parameter.dim() == 2:
            assert not torch.equal(parameter, theirs[name])


def test_residual_adds_the_input_to_the_output() -> None:
    """z' = z + x, and then the norm."""
    config = small()
    module, x = AddNorm(config).double(), words(1, 3, 16)
    with record(module) as taps:
        output = module(x, lambda z: 2 * z.sin())
    torch.testing.assert_close(taps["added"], x + 2 * x.sin())
    torch.testing.assert_close(output, nn.LayerNorm(16).double()(x + 2 * x.sin()))


def test_residual_keeps_a_path_open_where_a_layer_does_nothing() -> None:
    module, x = AddNorm(small("before")).double(), words(1, 3, 16)
    torch.testing.assert_close(module(x, torch.zeros_like), x)


def norm_of(width: int) -> nn.Module:
    return make_norm(EncoderConfig(vocabulary=10, width=width, heads=1, positions="none")).double()


ITEMS = torch.tensor(
    [[50.147, 3314.825, 8463.361, 8.021], [1242.223, 688.123, 434.944, 149.442], [9.370, 4606.674, 944.705, 21189.444]],
    dtype=torch.float64,
)


def test_layer_norm_of_three_items() -> None:
    """Each item by its own mean and variance, then times gamma plus beta."""
    norm = norm_of(4)
    gamma, beta = words(2, 4)
    norm.load_state_dict({"weight": gamma, "bias": beta})
    for item, normed in zip(ITEMS, norm(ITEMS), strict=True):
        mean, variance = item.mean(), (item - item.mean()).square().mean()
        torch.testing.assert_close(normed, gamma * (item - mean) / (variance + 1e-5).sqrt() + beta)


def test_gamma_and_beta_begin_neutral_and_learn() -> None:
    norm = norm_of(4)
    normed = norm(ITEMS)
    torch.testing.assert_close(normed.mean(-1), torch.zeros(3, dtype=torch.float64))
    torch.testing.assert_close(normed.var(-1, correction=0), torch.ones(3, dtype=torch.float64))
    (normed - 5.0).square().mean().backward()
    assert norm.weight.grad.abs().max() > 0
    assert (norm.bias.grad < 0).all()  # towards the 5 that was asked for


SAMPLES = torch.tensor([[2, 3, 7, 5, 4], [1, 1, 2, 3, 4], [5, 4, 1, 2, 3], [6, 1, 7, 5, 6], [7, 1, 3, 3, 4]], dtype=torch.float64)


def test_batch_norm_goes_down_the_columns_and_layer_norm_along_the_rows() -> None:
    layer, batch = norm_of(5), nn.BatchNorm1d(5).double()
    by_row = (SAMPLES - SAMPLES.mean(1, keepdim=True)) / (SAMPLES.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
    by_column = (SAMPLES - SAMPLES.mean(0)) / (SAMPLES.var(0, correction=0) + 1e-5).sqrt()
    torch.testing.assert_close(layer(SAMPLES), by_row)
    torch.testing.assert_close(batch(SAMPLES), by_column)
    assert (by_row - by_column).abs().max() > 0.5
    torch.testing.assert_close(layer(SAMPLES[:1]), layer(SAMPLES)[:1])  # a sample's norm is its own business


def test_padding_spoils_batch_norm_but_not_layer_norm() -> None:
    """A sentence of 3 words with 100 trailing zeros."""
    sentence = SAMPLES[:3]
    padded = torch.cat((sentence, torch.zeros(100, 5, dtype=torch.float64)))
    layer, batch = norm_of(5), nn.BatchNorm1d(5).double()
    torch.testing.assert_close(layer(padded)[:3], layer(sentence))
    assert (batch(padded)[:3] - batch(sentence)).abs().min() > 0.5


@pytest.mark.parametrize("place", ["after", "before"])
def test_encoder_block_in_its_order(place: str) -> None:
    """Self-attention, add, norm, feed-forward, add, norm; or with each norm before."""
    torch.manual_seed(1)
    block, x = Block(small(place), cross=False, backend="sdpa").double(), words(1, 4, 16)
    first, second = block.attention_add.norm, block.feedforward_add.norm
    if place == "after":
        z = first(x + block.attention(x))
        expected = second(z + block.feedforward(z))
    else:
        z = x + block.attention(first(x))
        expected = z + block.feedforward(second(z))
    torch.testing.assert_close(block(x), expected)


@pytest.mark.parametrize("place", ["after", "before"])
def test_decoder_block_in_its_order(place: str) -> None:
    """Masked self-attention, cross-attention, feed-forward, each with its add and norm."""
    torch.manual_seed(1)
    block = Block(small(place), cross=True, backend="sdpa").double()
    x, memory, mask = words(1, 4, 16), words(1, 6, 16, seed=2), Causal().build(4)
    first, second, third = block.attention_add.norm, block.cross_add.norm, block.feedforward_add.norm
    if place == "after":
        y = first(x + block.attention(x, mask=mask))
        y = second(y + block.cross(y, memory))
        expected = third(y + block.feedforward(y))
    else:
        y = x + block.attention(first(x), mask=mask)
        y = y + block.cross(second(y), memory)
        expected = y + block.feedforward(third(y))
    torch.testing.assert_close(block(x, memory, mask=mask), expected)


def test_norm_before_ends_with_a_norm() -> None:
    torch.manual_seed(1)
    states = Stack(small("before")).double()(words(1, 4, 16), positions=torch.arange(4)[None])
    torch.testing.assert_close(states.mean(-1), torch.zeros(1, 4, dtype=torch.float64))


def test_encoder_and_decoder_are_stacks_of_six_of_512() -> None:
    config = Seq2SeqConfig(vocabulary=10)
    assert (config.layers, config.width, config.heads, config.feedforward) == (6, 512, 8, 2048)
    model = Seq2Seq(config)
    assert len(model.encoder.layers) == len(model.decoder.layers) == 6
    assert [layer.cross is not None for layer in model.decoder.layers] == [True] * 6


def test_only_the_bottom_layer_reads_embeddings() -> None:
    torch.manual_seed(1)
    model = Encoder(small()).double()
    embedded: list[Tensor] = []
    model.embed.register_forward_hook(lambda module, given, output: embedded.append(output))
    seen: list[Tensor] = []
    for layer in model.encoder.layers:
        layer.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    with record(model) as taps:
        states = model(Tokens(torch.tensor([[3, 4, 5]])))
    assert len(embedded) == 1
    torch.testing.assert_close(seen[0], taps["encoder.placed"])
    torch.testing.assert_close(seen[1], taps["encoder.layers.0.output"])
    torch.testing.assert_close(states, taps["encoder.layers.1.output"])


def test_every_decoder_layer_reads_the_last_encoder_layer() -> None:
    torch.manual_seed(1)
    config = Seq2SeqConfig(vocabulary=10, layers=3, width=16, heads=2, feedforward=32, dropout=0.0)
    model = Seq2Seq(config).double()
    sources: list[Tensor] = []
    for layer in model.decoder.layers:
        layer.cross.register_forward_pre_hook(lambda module, given: sources.append(given[1]))
    with record(model) as taps:
        model(Tokens(torch.tensor([[3, 4, 5]])), Tokens(torch.tensor([[1, 6]])))
    assert len(sources) == 3
    for source in sources:
        torch.testing.assert_close(source, taps["encoder.layers.2.output"])


def test_a_decoder_alone_has_no_cross_attention() -> None:
    stack = Stack(LanguageModelConfig(vocabulary=10, layers=2, width=16, heads=2, feedforward=32), causal=True)
    assert [layer.cross for layer in stack.layers] == [None, None]

"""Attention and layers against PyTorch's own, with the same weights: outputs and gradients, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from regard.config import EncoderConfig, Seq2SeqConfig
from regard.nn.attention import Attention
from regard.nn.layers import Block
from regard.nn.masks import Causal, Mask, Padding

EXACT = {"rtol": 1e-10, "atol": 1e-10}
WIDTH, HEADS, INNER = 24, 4, 40
LENGTHS = torch.tensor([7, 3, 5])


@pytest.fixture(autouse=True)
def _float64() -> object:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def padding(length: int) -> Tensor:
    """True where a token stands."""
    return torch.arange(length)[None] < LENGTHS[:, None]


def copy_attention(theirs: nn.MultiheadAttention, ours: Attention) -> None:
    with torch.no_grad():
        ours.project.weight.copy_(theirs.in_proj_weight)
        ours.project.bias.copy_(theirs.in_proj_bias.normal_())
        ours.join.weight.copy_(theirs.out_proj.weight)
        ours.join.bias.copy_(theirs.out_proj.bias.normal_())


def copy_linear(theirs: nn.Module, ours: nn.Module) -> None:
    assert isinstance(theirs, nn.Linear | nn.LayerNorm)
    with torch.no_grad():
        theirs.weight.normal_()
        theirs.bias.normal_()
    ours.load_state_dict(theirs.state_dict())


def same(ours: Tensor, theirs: Tensor, real: Tensor, inputs: list[Tensor], pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Outputs where tokens stand, and the gradients of a random reading of them for every input and parameter."""
    torch.testing.assert_close(ours[real], theirs[real], **EXACT)
    reading = torch.randn_like(theirs[real])
    our_grads = torch.autograd.grad((ours[real] * reading).sum(), [*inputs, *(pair[0] for pair in pairs)])
    their_grads = torch.autograd.grad((theirs[real] * reading).sum(), [*inputs, *(pair[1] for pair in pairs)])
    for our_grad, their_grad in zip(our_grads, their_grads, strict=True):
        torch.testing.assert_close(our_grad, their_grad, **EXACT)


def attention_pairs(ours: Attention, theirs: nn.MultiheadAttention) -> list[tuple[Tensor, Tensor]]:
    return [
        (ours.project.weight, theirs.in_proj_weight),
        (ours.project.bias, theirs.in_proj_bias),
        (ours.join.weight, theirs.out_proj.weight),
        (ours.join.bias, theirs.out_proj.bias),
    ]


@pytest.mark.parametrize("backend", ["explicit", "sdpa"])
@pytest.mark.parametrize("causal", [False, True])
def test_self_attention_equals_torch(backend: str, causal: bool) -> None:
    theirs, ours = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), Attention(WIDTH, HEADS, backend=backend)
    copy_attention(theirs, ours)
    x, real = torch.randn(3, 7, WIDTH, requires_grad=True), padding(7)
    rule = Padding(real) & Causal() if causal else Padding(real)
    future = torch.ones(7, 7).triu(1).bool() if causal else None
    want, _ = theirs(x, x, x, key_padding_mask=~real, attn_mask=future)
    same(ours(x, mask=rule.build(7)), want, real, [x], attention_pairs(ours, theirs))


@pytest.mark.parametrize("backend", ["explicit", "sdpa"])
def test_cross_attention_equals_torch(backend: str) -> None:
    theirs, ours = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), Attention(WIDTH, HEADS, backend=backend)
    copy_attention(theirs, ours)
    x, source, real = torch.randn(3, 4, WIDTH, requires_grad=True), torch.randn(3, 7, WIDTH, requires_grad=True), padding(7)
    want, _ = theirs(x, source, source, key_padding_mask=~real)
    everything = torch.ones(3, 4, dtype=torch.bool)
    same(ours(x, source, mask=Padding(real).build(4, 7)), want, everything, [x, source], attention_pairs(ours, theirs))


def test_weights_equal_torch() -> None:
    """The weights themselves, for each head."""
    from regard.nn.tap import record

    theirs, ours = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), Attention(WIDTH, HEADS, backend="explicit")
    copy_attention(theirs, ours)
    x, real = torch.randn(3, 7, WIDTH), padding(7)
    _, want = theirs(x, x, x, key_padding_mask=~real, average_attn_weights=False)
    with record(ours) as taps:
        ours(x, mask=Padding(real).build(7))
    torch.testing.assert_close(taps["weights"], want, **EXACT)


def block_pairs(ours: Block, theirs: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer) -> list[tuple[Tensor, Tensor]]:
    decoder = isinstance(theirs, nn.TransformerDecoderLayer)
    copy_attention(theirs.self_attn, ours.attention)
    pairs = attention_pairs(ours.attention, theirs.self_attn)
    modules = [
        (ours.feedforward.widen, theirs.linear1),
        (ours.feedforward.narrow, theirs.linear2),
        (ours.attention_add.norm, theirs.norm1),
        (ours.feedforward_add.norm, theirs.norm3 if decoder else theirs.norm2),
    ]
    if decoder:
        assert ours.cross is not None
        assert ours.cross_add is not None
        copy_attention(theirs.multihead_attn, ours.cross)
        pairs += attention_pairs(ours.cross, theirs.multihead_attn)
        modules.append((ours.cross_add.norm, theirs.norm2))
    for our_module, their_module in modules:
        copy_linear(their_module, our_module)
        pairs += [(our_module.weight, their_module.weight), (our_module.bias, their_module.bias)]
    return pairs


SHAPE = {"vocabulary": 5, "width": WIDTH, "heads": HEADS, "feedforward": INNER}


@pytest.mark.parametrize("backend", ["explicit", "sdpa"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("place", ["before", "after"])
def test_encoder_layer_equals_torch(place: str, activation: str, backend: str) -> None:
    theirs = nn.TransformerEncoderLayer(
        WIDTH, HEADS, INNER, activation=activation, batch_first=True, norm_first=place == "before", dropout=0.0
    )
    ours = Block(EncoderConfig(**SHAPE, norm_place=place, activation=activation, dropout=0.0), cross=False, backend=backend)
    pairs = block_pairs(ours, theirs)
    x, real = torch.randn(3, 7, WIDTH, requires_grad=True), padding(7)
    want = theirs(x, src_key_padding_mask=~real)
    same(ours(x, mask=Padding(real).build(7)), want, real, [x], pairs)


@pytest.mark.parametrize("backend", ["explicit", "sdpa"])
@pytest.mark.parametrize("place", ["before", "after"])
def test_decoder_layer_equals_torch(place: str, backend: str) -> None:
    theirs = nn.TransformerDecoderLayer(WIDTH, HEADS, INNER, batch_first=True, norm_first=place == "before", dropout=0.0)
    ours = Block(Seq2SeqConfig(**SHAPE, norm_place=place, dropout=0.0), cross=True, backend=backend)
    pairs = block_pairs(ours, theirs)
    x, memory = torch.randn(3, 7, WIDTH, requires_grad=True), torch.randn(3, 9, WIDTH, requires_grad=True)
    real, source_real = padding(7), torch.arange(9)[None] < torch.tensor([9, 1, 4])[:, None]
    future = torch.ones(7, 7).triu(1).bool()
    want = theirs(x, memory, tgt_mask=future, tgt_key_padding_mask=~real, memory_key_padding_mask=~source_real)
    got = ours(x, memory, mask=(Causal() & Padding(real)).build(7), memory_mask=Padding(source_real).build(1, 9))
    same(got, want, real, [x, memory], pairs)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_whole_stacks_equal_torch() -> None:
    """Six layers of each, with their final norms, as nn.Transformer has them."""
    from regard.nn.layers import Stack

    config = Seq2SeqConfig(**SHAPE, layers=6, norm_place="before", positions="none", dropout=0.0)
    theirs = nn.Transformer(WIDTH, HEADS, 6, 6, INNER, dropout=0.0, batch_first=True, norm_first=True)
    encoder, decoder = Stack(config, backend="explicit"), Stack(config, causal=True, cross=True, backend="explicit")
    for ours, their_stack in ((encoder, theirs.encoder), (decoder, theirs.decoder)):
        for our_layer, their_layer in zip(ours.layers, their_stack.layers, strict=True):
            block_pairs(our_layer, their_layer)
        copy_linear(their_stack.norm, ours.norm)
    source, target = torch.randn(3, 5, WIDTH), torch.randn(3, 4, WIDTH)
    want = theirs(source, target, tgt_mask=torch.ones(4, 4).triu(1).bool())
    memory = encoder(source, positions=torch.arange(5)[None], mask=Mask())
    got = decoder(target, memory, positions=torch.arange(4)[None], mask=Causal().build(4))
    torch.testing.assert_close(got, want, **EXACT)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_grouped_query_is_multi_head_with_repeated_keys(kv_heads: int) -> None:
    ours = Attention(WIDTH, HEADS, kv_heads=kv_heads, backend="sdpa")
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    size = WIDTH // HEADS
    query, key, value = ours.project.weight.split((WIDTH, kv_heads * size, kv_heads * size))
    query_bias, key_bias, value_bias = ours.project.bias.split((WIDTH, kv_heads * size, kv_heads * size))

    def repeated(x: Tensor) -> Tensor:
        return x.unflatten(0, (kv_heads, size)).repeat_interleave(HEADS // kv_heads, 0).flatten(0, 1)

    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat((query, repeated(key), repeated(value))))
        theirs.in_proj_bias.copy_(torch.cat((query_bias, repeated(key_bias), repeated(value_bias))))
        theirs.out_proj.load_state_dict(ours.join.state_dict())
    x = torch.randn(2, 6, WIDTH)
    torch.testing.assert_close(ours(x), theirs(x, x, x)[0], **EXACT)

"""The recurrent parts against PyTorch's networks and Bahdanau's formula written out."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from regard.nn.masks import Mask, Padding
from regard.nn.recurrent import AdditiveAttention, RecurrentDecoder, RecurrentEncoder


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("layers", [1, 2])
@torch.no_grad()
def test_encoder_equals_torch_on_each_sentence_alone(cell: str, layers: int) -> None:
    encoder = RecurrentEncoder(8, layers, cell=cell).double()
    theirs = (nn.LSTM if cell == "lstm" else nn.GRU)(8, 4, layers, batch_first=True, bidirectional=True).double()
    theirs.load_state_dict(encoder.rnn.state_dict())
    x, lengths = torch.randn(3, 6, 8, dtype=torch.double), torch.tensor([6, 2, 4])
    states, last = encoder(x, lengths)
    assert states.shape == (3, 6, 8)
    assert last.state.shape == (layers, 3, 8)
    for row, length in enumerate(lengths.tolist()):
        want, final = theirs(x[row : row + 1, :length])
        torch.testing.assert_close(states[row, :length], want[0])
        state = final[0] if cell == "lstm" else final
        top = torch.cat((state[-2, 0], state[-1, 0]))  # the last layer: forwards at the last word, backwards at the first
        torch.testing.assert_close(last.state[-1, row], top)
        torch.testing.assert_close(top[:4], want[0, -1, :4])
        torch.testing.assert_close(top[4:], want[0, 0, 4:])


def test_two_directions_of_128_make_256() -> None:
    """The notes' own sizes."""
    states, _ = RecurrentEncoder(256, 1)(torch.randn(1, 3, 256), torch.tensor([3]))
    encoder = RecurrentEncoder(256, 1)
    assert encoder.rnn.hidden_size == 128
    assert states.shape[-1] == 256


@torch.no_grad()
def test_additive_attention_is_the_formula() -> None:
    attention = AdditiveAttention(4).double()
    query, memory = torch.randn(2, 4, dtype=torch.double), torch.randn(2, 5, 4, dtype=torch.double)
    lengths = torch.tensor([5, 3])
    context, found = attention(query, memory, attention.keys(memory), Padding.of_lengths(lengths, 5).build(1, 5))
    w, b, u, v = attention.of_query.weight, attention.of_query.bias, attention.of_key.weight, attention.score.weight[0]
    for row, length in enumerate(lengths.tolist()):
        scores = [float(v @ torch.tanh(w @ query[row] + b + u @ memory[row, j])) for j in range(length)]  # e_ij
        total = sum(math.exp(score) for score in scores)
        weights = [math.exp(score) / total for score in scores]  # α_ij
        want = sum(weight * memory[row, j] for j, weight in enumerate(weights))  # c_i
        torch.testing.assert_close(context[row], want)
        torch.testing.assert_close(found[row, :length], torch.tensor(weights, dtype=torch.double))


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@torch.no_grad()
def test_plain_decoder_is_told_nothing_but_the_last_state(cell: str) -> None:
    """Without attention, another source with the same last state gives the same output: one vector is all there is."""
    decoder = RecurrentDecoder(8, 1, cell=cell, attends=False).double().eval()
    _, last = RecurrentEncoder(8, 1, cell=cell).double()(torch.randn(1, 5, 8, dtype=torch.double), torch.tensor([5]))
    x = torch.randn(1, 3, 8, dtype=torch.double)
    outputs = [decoder(x, decoder.start(last), decoder.look(torch.randn(1, n, 8, dtype=torch.double), Mask()))[0] for n in (5, 9)]
    assert torch.equal(*outputs)
    attends = RecurrentDecoder(8, 1, cell=cell).double().eval()
    outputs = [attends(x, attends.start(last), attends.look(torch.randn(1, n, 8, dtype=torch.double), Mask()))[0] for n in (5, 9)]
    assert not torch.allclose(*outputs)


@torch.no_grad()
def test_a_source_of_nothing_is_no_error() -> None:
    attention = AdditiveAttention(4)
    memory = torch.randn(1, 2, 4)
    context, _ = attention(torch.randn(1, 4), memory, attention.keys(memory), Padding(torch.tensor([[False, False]])).build(1, 2))
    assert (context == 0).all()
    states, _ = RecurrentEncoder(4, 1)(memory, torch.tensor([0]))
    assert not states.isnan().any()


def test_the_alignment_of_every_word_is_recorded() -> None:
    """The picture that made attention famous: for each target word, which source words it was looking at."""
    from regard.data.batch import Tokens
    from regard.nn import record
    from tests.families import sentences, small

    model = small("rnn-attention")
    with record(model) as taps:
        model(Tokens.pad(sentences(5, 3)), Tokens.pad(sentences(4, 4)))
    weights = taps["decoder.attention.weights"]
    assert weights.shape == (2, 4, 5)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, dtype=torch.double))
    assert (weights[1, :, 3:] == 0).all()

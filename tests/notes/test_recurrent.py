"""What came before: recurrent networks, what is wrong with them, and the attention that was first added to them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from regard.config import RnnConfig, Seq2SeqConfig
from regard.data.batch import Tokens
from regard.models import RnnSeq2Seq, Seq2Seq
from regard.models.rnn import RnnMemory
from regard.nn.attention import Attention
from regard.nn.backends import attend
from regard.nn.masks import Mask
from regard.nn.recurrent import AdditiveAttention, RecurrentEncoder


def calls(module: nn.Module) -> list[None]:
    """One entry for each time the module is run."""
    log: list[None] = []
    module.register_forward_hook(lambda *_: log.append(None))
    return log


def test_recurrence_goes_word_by_word_and_attention_all_at_once() -> None:
    source, target = Tokens(torch.tensor([[3, 4, 5, 6]])), Tokens(torch.tensor([[1, 3, 4, 5, 6, 7, 8]]))
    rnn = RnnSeq2Seq(RnnConfig(vocabulary=10, width=8))
    one_by_one = calls(rnn.decoder.rnn)
    rnn(source, target)
    assert len(one_by_one) == 7
    transformer = Seq2Seq(Seq2SeqConfig(vocabulary=10, layers=1, width=8, heads=2, feedforward=16))
    at_once = calls(transformer.decoder.layers[0])
    transformer(source, target)
    assert len(at_once) == 1


@pytest.mark.parametrize(("factor", "fate"), [(0.5, "vanishes"), (2.0, "explodes")])
def test_gradients_through_time_vanish_or_explode(factor: float, fate: str) -> None:
    """Gates held open, each step multiplies the gradient by the same matrix: after 20 words it is factor^19 of what it was."""
    encoder = RecurrentEncoder(4, 1, cell="gru", bidirectional=False).double()
    with torch.no_grad():
        encoder.rnn.weight_hh_l0[:8] = 0
        encoder.rnn.weight_hh_l0[8:] = factor * torch.eye(4)
        encoder.rnn.weight_ih_l0[:8] = 0
        encoder.rnn.bias_hh_l0.zero_()
        encoder.rnn.bias_ih_l0.copy_(torch.tensor([100.0] * 4 + [-100.0] * 4 + [0.0] * 4))  # reset and update: let all pass
    x = torch.zeros(1, 20, 4, dtype=torch.float64, requires_grad=True)
    states, _ = encoder(x, torch.tensor([20]))
    states[0, -1].sum().backward()
    reach = x.grad[0].norm(dim=-1)
    torch.testing.assert_close(reach[0] / reach[-1], torch.tensor(factor**19, dtype=torch.float64))
    assert (reach[0] < 1e-5 * reach[-1]) if fate == "vanishes" else (reach[0] > 1e5 * reach[-1])


def influence(output: Tensor, x: Tensor) -> Tensor:
    """How much each word of x (1, length, width) matters to the output."""
    return torch.autograd.grad(output.sum(), x)[0][0].norm(dim=-1)


def test_words_long_ago_are_lost_to_recurrence_but_not_to_attention() -> None:
    torch.manual_seed(1)
    x = torch.randn(1, 30, 16, dtype=torch.float64, requires_grad=True)
    states, _ = RecurrentEncoder(16, 1, bidirectional=False).double()(x, torch.tensor([30]))
    remembered = influence(states[0, -1], x)
    assert remembered[0] < 1e-3 * remembered[-1]
    looked = influence(Attention(16, 2).double()(x)[0, -1], x)
    assert looked[0] > 0.1 * looked[1:-1].mean()


def rnn(attention: str) -> RnnSeq2Seq:
    torch.manual_seed(1)
    config = RnnConfig.model_validate({"vocabulary": 20, "width": 16, "attention": attention, "cell": "gru", "dropout": 0.0})
    return RnnSeq2Seq(config).eval().double()


def forget_words(model: RnnSeq2Seq, source: Tokens) -> tuple[Tensor, Tensor]:
    """The first logits, and those when every word's state is replaced but the last state kept."""
    memory = model.encode(source)
    assert isinstance(memory, RnnMemory)
    assert memory.states is not None
    _, first = model.start(memory, 5)
    _, other = model.start(replace(memory, states=torch.randn_like(memory.states)), 5)
    return first, other


def test_without_attention_the_whole_source_is_one_vector() -> None:
    model = rnn("none")
    short, long = Tokens(torch.tensor([[3, 4, 5]])), Tokens(torch.randint(3, 20, (1, 200)))
    assert model.encode(short).last.state.shape == model.encode(long).last.state.shape == (1, 1, 16)
    first, other = forget_words(model, long)
    torch.testing.assert_close(first, other)


def test_with_attention_every_word_can_be_looked_at() -> None:
    first, other = forget_words(rnn("additive"), Tokens(torch.randint(3, 20, (1, 200))))
    assert (first - other).abs().max() > 0.01


def test_two_directions_of_128_make_256() -> None:
    torch.manual_seed(1)
    encoder = RecurrentEncoder(256, 1, cell="gru")
    x = torch.randn(1, 5, 256, requires_grad=True)
    states, last = encoder(x, torch.tensor([5]))
    assert states.shape == (1, 5, 256)
    torch.testing.assert_close(last.state[0, 0], torch.cat((states[0, -1, :128], states[0, 0, 128:])))  # each direction's end
    assert encoder.rnn.hidden_size == 128
    forwards, backwards = influence(states[0, 2, :128], x), influence(encoder(x, torch.tensor([5]))[0][0, 2, 128:], x)
    assert (forwards > 0).tolist() == [True, True, True, False, False]
    assert (backwards > 0).tolist() == [False, False, True, True, True]


def additive(length: int) -> tuple[AdditiveAttention, Tensor, Tensor]:
    torch.manual_seed(1)
    module = AdditiveAttention(8).double()
    return module, torch.randn(3, 8, dtype=torch.float64), torch.randn(1, length, 8, dtype=torch.float64)


def test_bahdanau_attention_follows_its_formulas() -> None:
    """e_ij = v · tanh(W s_i + U h_j), α_ij = exp e_ij / Σ_k exp e_ik, c_i = Σ_j α_ij h_j, by loops."""
    module, states, memory = additive(length=4)
    context, weights = module(states, memory, module.keys(memory), Mask())
    scores = module.scores(states, module.keys(memory))[0]
    for i, s in enumerate(states):
        e = torch.stack([module.score(torch.tanh(module.of_query(s) + module.of_key(h))).squeeze() for h in memory[0]])
        alpha = e.exp() / e.exp().sum()
        torch.testing.assert_close(scores[i], e)
        torch.testing.assert_close(weights[i], alpha)
        torch.testing.assert_close(context[i], sum(a * h for a, h in zip(alpha, memory[0], strict=True)))


def test_each_output_has_its_own_weights_over_the_source() -> None:
    module, states, memory = additive(length=4)
    _, weights = module(states, memory, module.keys(memory), Mask())
    assert weights.shape == (3, 4)  # i counts outputs, j inputs
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, dtype=torch.float64))
    assert torch.pdist(weights).min() > 1e-3


def test_multiplicative_scores_grow_and_additive_scores_are_bounded() -> None:
    module, states, memory = additive(length=4)
    bound = module.score.weight.abs().sum()
    for size in (1.0, 10.0, 1000.0):
        assert module.scores(size * states, module.keys(memory)).abs().max() <= bound
        product = attend(size * states, memory[0], memory[0]).scores
        torch.testing.assert_close(product, size * attend(states, memory[0], memory[0]).scores)

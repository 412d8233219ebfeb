"""Encoder and decoder, each alone or both together, and what each is good for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.config import parse_model
from regard.data.batch import Tokens
from regard.errors import ShapeError
from regard.models import Encoder, Generator, LanguageModel, Seq2Seq, build
from regard.nn.positions import RelativeBias
from regard.presets import preset

SIZES: dict[str, Any] = {"vocabulary": 20, "layers": 2, "width": 16, "heads": 2, "feedforward": 32, "dropout": 0.0}


def make(kind: str, **settings: Any) -> Any:
    torch.manual_seed(1)
    return build(parse_model({"kind": kind} | SIZES | settings)).eval()


def influence(model: Any, run: Any, at: int) -> list[bool]:
    """Which input words the vector at one place depends on."""
    embedded: list[Tensor] = []
    hook = model.embed.register_forward_hook(lambda module, given, output: embedded.append(output))
    states = run()
    hook.remove()
    return (torch.autograd.grad(states[0, at].square().sum(), embedded[0])[0][0].norm(dim=-1) > 0).tolist()


def test_an_encoder_alone_reads_both_ways_in_one_step() -> None:
    model = make("encoder")
    assert isinstance(model, Encoder)
    assert not isinstance(model, Generator)  # it does not write
    text = Tokens(torch.tensor([[3, 4, 5, 6]]))
    assert influence(model, lambda: model(text), at=1) == [True, True, True, True]


def train(parameters: Any, loss: Any, steps: int) -> list[float]:
    optimiser, losses = torch.optim.Adam(parameters, lr=0.01), []
    for _ in range(steps):
        optimiser.zero_grad()
        value = loss()
        value.backward()
        optimiser.step()
        losses.append(value.item())
    return losses


def test_an_encoder_fills_in_a_masked_word_from_both_sides() -> None:
    """The same word to its left, different ones to its right: only who reads both ways can tell."""
    model, blank = make("encoder", masked_words=True), 19
    texts, answers = Tokens(torch.tensor([[3, blank, 4], [3, blank, 5]])), torch.tensor([6, 7])
    losses = train(model.parameters(), lambda: F.cross_entropy(model.fill(model(texts))[:, 1], answers), 40)
    assert losses[-1] < 0.1 * losses[0]
    assert model.fill(model(texts))[:, 1].argmax(-1).tolist() == [6, 7]


def test_an_encoder_classifies_and_gives_features() -> None:
    """Sentiment: one vector for a whole text, and a label from it."""
    model = make("encoder", labels=("bad", "good"))
    texts, labels = Tokens.pad([[3, 4, 5], [3, 6, 5, 7]]), torch.tensor([0, 1])
    losses = train(model.parameters(), lambda: F.cross_entropy(model.classify(model(texts), texts), labels), 40)
    assert losses[-1] < 0.1 * losses[0]
    assert model.classify(model(texts), texts).argmax(-1).tolist() == [0, 1]
    assert model.pool(model(texts), texts).shape == (2, 16)


def test_a_decoder_alone_reads_leftwards_and_writes() -> None:
    model = make("lm")
    assert isinstance(model, LanguageModel)
    assert isinstance(model, Generator)
    assert all(layer.cross is None for layer in model.decoder.layers)
    text = Tokens(torch.tensor([[3, 4, 5, 6]]))
    assert influence(model, lambda: model.states(text), at=1) == [True, True, False, False]


def test_a_prefix_model_reads_its_prompt_both_ways() -> None:
    model = make("lm", mask="prefix")
    text, given = Tokens(torch.tensor([[3, 4, 5, 6]])), torch.tensor([3])
    assert influence(model, lambda: model.states(text, given), at=0) == [True, True, True, False]
    assert influence(model, lambda: model.states(text, given), at=3) == [True, True, True, True]


def test_a_decoder_learns_to_continue_a_text() -> None:
    model, text = make("lm"), torch.tensor([[1, 3, 4, 5, 3, 6, 2]])
    losses = train(model.parameters(), lambda: F.cross_entropy(model(Tokens(text[:, :-1]))[0], text[0, 1:]), 60)
    assert losses[-1] < 0.1 * losses[0]
    state, logits = model.start(model.encode(Tokens(text[:, :1])), 8)
    written = []
    for _ in range(6):
        written.append(int(logits.argmax()))
        logits = model.step(torch.tensor([[written[-1]]]), state)[:, -1]
    assert written == text[0, 1:].tolist()


def test_encoder_and_decoder_together_condition_the_target_on_the_source() -> None:
    model = make("seq2seq")
    assert isinstance(model, Seq2Seq)
    assert all(layer.cross is not None for layer in model.decoder.layers)
    source, target = Tokens(torch.tensor([[3, 4, 5]])), Tokens(torch.tensor([[1, 3]]))
    assert influence(model, lambda: model.read(source), at=0) == [True, True, True]  # the source is read both ways
    one, other = (model(Tokens(torch.tensor([[word, 5]])), target) for word in (3, 4))
    assert (one - other).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("name", "kind", "positions", "causal_start"), [("bert-base", "encoder", "learned", 101), ("gpt2", "lm", "learned", 50256)]
)
def test_bert_and_gpt_are_shapes_of_the_two_halves(name: str, kind: str, positions: str, causal_start: int) -> None:
    config = preset(name)
    assert (config.kind, config.positions, config.start_token) == (kind, positions, causal_start)
    small = preset(name, layers=1, width=16, heads=2, feedforward=32, vocabulary=20, start_token=1, end_token=2, pad_token=0)
    assert type(build(small)) is {"encoder": Encoder, "lm": LanguageModel}[kind]


def test_t5_is_a_whole_transformer_with_relative_positions() -> None:
    model = build(preset("t5-small", layers=1, width=16, heads=2, head_width=8, feedforward=32, vocabulary=20))
    assert isinstance(model, Seq2Seq)
    assert isinstance(model.encoder.positions, RelativeBias)
    assert isinstance(model.decoder.positions, RelativeBias)


def test_a_context_ends_somewhere() -> None:
    model = make("lm", context=4)
    assert model(Tokens(torch.tensor([[3, 4, 5, 6]]))).shape == (1, 4, 20)
    with pytest.raises(ShapeError, match="context is 4"):
        model(Tokens(torch.tensor([[3, 4, 5, 6, 7]])))


@pytest.mark.parametrize("kind", ["seq2seq", "rnn"])
def test_transformers_are_used_as_recurrent_networks_were(kind: str) -> None:
    """The same calls translate with either; only what happens inside differs."""
    torch.manual_seed(1)
    config = parse_model({"kind": "seq2seq"} | SIZES) if kind == "seq2seq" else parse_model({"kind": "rnn", "vocabulary": 20, "width": 16})
    model = build(config).eval()
    assert isinstance(model, Generator)
    state, logits = model.start(model.encode(Tokens.pad([[3, 4, 5], [6, 7]])), 4)
    assert logits.shape == (2, 20)
    assert model.step(logits.argmax(-1, keepdim=True), state).shape == (2, 1, 20)

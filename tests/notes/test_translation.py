"""Training in one time step, inference in many: "I love you very much" to "Ti amo molto"."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from regard.config import LanguageModelConfig, RnnConfig, Seq2SeqConfig
from regard.data.batch import Tokens
from regard.decoding.runner import decode
from regard.decoding.settings import GREEDY, Beam, Length, Rules
from regard.models import Generator, LanguageModel, Memory, RnnSeq2Seq, Seq2Seq, State
from regard.models.state import StackState
from regard.training.loss import cross_entropy

PAD, START, END = 0, 1, 2
ME, LOVE, YOU, VERY, MUCH, TI, AMO, MOLTO = range(3, 11)
SOURCE = [START, ME, LOVE, YOU, VERY, MUCH, END]
TARGET = [TI, AMO, MOLTO]


def transformer(seed: int = 1) -> Seq2Seq:
    torch.manual_seed(seed)
    config = Seq2SeqConfig(vocabulary=12, layers=2, width=16, heads=2, feedforward=32, dropout=0.0)
    return Seq2Seq(config).eval().double()


def rnn(seed: int = 1) -> RnnSeq2Seq:
    torch.manual_seed(seed)
    return RnnSeq2Seq(RnnConfig(vocabulary=12, width=16, cell="gru", dropout=0.0)).eval().double()


def learn(model: Seq2Seq, sources: list[list[int]], targets: list[list[int]], steps: int = 60) -> list[float]:
    """Cross-entropy on all words of all pairs at once; the decoder reads each target shifted right by a start token."""
    source = Tokens.pad(sources, PAD)
    shifted = Tokens.pad([[START, *target] for target in targets], PAD)
    labels = Tokens.pad([[*target, END] for target in targets], PAD)
    optimiser, losses = torch.optim.Adam(model.parameters(), lr=0.01), []
    for _ in range(steps):
        optimiser.zero_grad()
        loss = cross_entropy(model(source, shifted), labels.ids, labels.real).mean
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def write(model: Generator, source: list[int], limit: int) -> list[int]:
    return list(decode(model, Tokens(torch.tensor([source])), GREEDY, Rules(max_length=Length(plus=limit)))[0][0].tokens)


def test_trained_in_one_time_step_it_writes_word_by_word() -> None:
    model = transformer()
    passes: list[Tensor] = []
    model.decoder.register_forward_hook(lambda module, given, output: passes.append(output))
    losses = learn(model, [SOURCE], [TARGET])
    assert len(passes) == len(losses)  # all words of the target in one pass
    assert losses[-1] < 0.05 * losses[0]
    passes.clear()
    assert write(model, SOURCE, limit=10) == TARGET
    assert len(passes) == 4  # <SOS>, Ti, amo, molto: a pass for each


def test_encoder_output_is_made_once_and_reused() -> None:
    model = transformer()
    passes: list[Tensor] = []
    model.encoder.register_forward_hook(lambda module, given, output: passes.append(output))
    state, _ = model.start(model.encode(Tokens(torch.tensor([SOURCE]))), 5)
    assert isinstance(state, StackState)
    keys = state.memory
    for word in TARGET:
        model.step(torch.tensor([[word]]), state)
    assert len(passes) == 1
    assert state.memory is keys  # not even its keys and values are computed again


@pytest.mark.parametrize("limit", [1, 3])
def test_writing_stops_at_the_longest_length(limit: int) -> None:
    model = transformer()
    learn(model, [SOURCE], [[AMO] * 8])
    assert write(model, SOURCE, limit) == [AMO] * limit


def test_writing_stops_at_the_end_token() -> None:
    model = transformer()
    learn(model, [SOURCE], [[]])
    assert write(model, SOURCE, limit=10) == []


@pytest.mark.parametrize("make", [transformer, rnn])
def test_all_at_once_equals_word_by_word(make: type[Seq2Seq | RnnSeq2Seq]) -> None:
    """What the second of two tokens predicts is the same whether the third was known or not: so training may be parallel."""
    model = make()
    source, shifted = Tokens(torch.tensor([SOURCE])), [START, *TARGET]
    at_once = model(source, Tokens(torch.tensor([shifted])))
    for length in range(1, 5):
        so_far = model(source, Tokens(torch.tensor([shifted[:length]])))
        torch.testing.assert_close(so_far[:, -1], at_once[:, length - 1])
    state, first = model.start(model.encode(source), 4)
    steps = [first] + [model.step(torch.tensor([[word]]), state)[:, -1] for word in TARGET]
    torch.testing.assert_close(torch.stack(steps, 1), at_once)


def test_a_language_model_trains_at_once_too() -> None:
    torch.manual_seed(1)
    config = LanguageModelConfig(vocabulary=12, layers=2, width=16, heads=2, feedforward=32, dropout=0.0)
    model = LanguageModel(config).eval().double()
    text = torch.tensor([[START, ME, LOVE, YOU]])
    state, first = model.start(model.encode(Tokens(text[:, :1])), 4)
    steps = [first] + [model.step(text[:, i : i + 1], state)[:, -1] for i in range(1, 4)]
    torch.testing.assert_close(torch.stack(steps, 1), model(Tokens(text)))


@pytest.mark.parametrize("make", [transformer, rnn])
def test_teacher_forcing_gives_the_true_word_whatever_was_guessed(make: type[Seq2Seq | RnnSeq2Seq]) -> None:
    model = make()
    source = Tokens(torch.tensor([SOURCE]))
    guesses = model(source, Tokens(torch.tensor([[START, *TARGET]])))[0].argmax(-1).tolist()
    assert guesses[:3] != TARGET  # an untrained model errs
    state, forced = model.start(model.encode(source), 4)
    free, own = model.start(model.encode(source), 4)
    for word in TARGET:
        forced = model.step(torch.tensor([[word]]), state)[:, -1]
        own = model.step(own.argmax(-1, keepdim=True), free)[:, -1]
    taught = model(source, Tokens(torch.tensor([[START, *TARGET]])))[:, -1]
    torch.testing.assert_close(forced, taught)
    assert (own - taught).abs().max() > 1e-3


def test_shifted_right_each_word_is_told_by_those_before_it() -> None:
    """We are friends: <start> and three words are four outputs, and none of them has read the word that it should say."""
    model, target = transformer(), [ME, LOVE, YOU]
    shifted = [START, *target]
    logits = model(Tokens(torch.tensor([SOURCE])), Tokens(torch.tensor([shifted])))
    assert logits.shape == (1, 4, 12)
    for place in range(3):
        other = shifted.copy()
        other[place + 1] = VERY  # the word that belongs at this place
        changed = model(Tokens(torch.tensor([SOURCE])), Tokens(torch.tensor([other])))
        torch.testing.assert_close(changed[:, : place + 1], logits[:, : place + 1])
        assert (changed[:, place + 1] - logits[:, place + 1]).abs().max() > 1e-3


def test_padding_makes_both_sequences_equally_long() -> None:
    model = transformer()
    padded = Tokens.pad([SOURCE, [START, *TARGET]], PAD)
    assert padded.ids.shape == (2, 7)  # as long as the longest
    source, target = Tokens(padded.ids[:1], padded.real[:1]), Tokens(padded.ids[1:], padded.real[1:])
    plain = model(Tokens(torch.tensor([SOURCE])), Tokens(torch.tensor([[START, *TARGET]])))
    torch.testing.assert_close(model(source, target)[:, :4], plain)


def test_three_pairs_of_different_lengths_are_learned_together() -> None:
    """How are you? Congratulations. Thank you: one batch, and each is translated alone as it was learned together."""
    sources, targets = [[3, 4, 5, END], [6, END], [7, 8, END]], [[9, 10, 11], [10, 9], [11]]
    model = transformer()
    losses = learn(model, sources, targets, steps=100)
    assert losses[-1] < losses[0]
    for source, target in zip(sources, targets, strict=True):
        assert write(model, source, limit=6) == target


def test_the_last_position_chooses_the_next_word() -> None:
    model = transformer()
    source = Tokens(torch.tensor([SOURCE]))
    state, _ = model.start(model.encode(source), 4)
    both = model.extend(torch.tensor([[TI, AMO]]), state)
    alone = model(source, Tokens(torch.tensor([[START, TI, AMO]])))
    torch.testing.assert_close(both, alone[:, 1:])
    assert (both[:, 0] - both[:, 1]).abs().max() > 1e-3


class Nothing(State):
    """The last word is all that such a model remembers, and it is told that anyway."""

    def select(self, parents: Tensor) -> None:
        pass

    def keep(self, sources: Tensor) -> None:
        pass


class Chain(Generator):
    """Each word's chances depend on the last word alone, and are written down."""

    config = RnnConfig(vocabulary=5)

    def __init__(self, chances: Tensor) -> None:
        super().__init__()
        self.chances = nn.Parameter(chances, requires_grad=False)  # (last word, next word)

    def encode(self, source: Tokens) -> Memory:
        return Memory(source)

    def start(self, memory: Memory, room: int, hypotheses: int = 1) -> tuple[State, Tensor]:
        rows = memory.tokens.ids.shape[0]
        return Nothing(), self.chances[START].log().expand(rows, -1)

    def step(self, ids: Tensor, state: State) -> Tensor:
        return self.chances[ids].log()

    extend = step


def test_beam_search_finds_what_greedy_misses() -> None:
    """The likelier first word leads to unlikely ones: 0.6 × 0.4 is less than 0.4 × 1."""
    first, second = 3, 4
    chances = torch.zeros(5, 5, dtype=torch.float64)
    chances[START, first], chances[START, second] = 0.6, 0.4
    chances[first, END], chances[first, first], chances[first, second] = 0.4, 0.3, 0.3
    chances[second, END] = 1.0
    model, source = Chain(chances).eval(), Tokens(torch.tensor([[first]]))
    rules = Rules(max_length=Length(plus=5))
    hasty = decode(model, source, GREEDY, rules)[0][0]
    best = decode(model, source, Beam(size=2, length_penalty=0.0), rules)[0][0]
    assert hasty.tokens == (first,)
    assert best.tokens == (second,)
    assert best.log_probability > hasty.log_probability

"""The laws that hold for every family: what a model says must not depend on how its input was laid out, or on what stood beside it."""

from __future__ import annotations

import copy
import os
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.data.batch import Tokens
from regard.decoding.runner import decode
from regard.decoding.settings import Beam, Length, Rules, Sampling
from regard.errors import RegardError
from regard.models import Encoder, Generator, LanguageModel, Seq2Seq
from regard.training.loss import cross_entropy
from tests.families import FAMILIES, LANGUAGE_MODELS, SEQ2SEQ, TRANSFORMERS, WRITERS, outputs, sentences, small

EXACT = {"rtol": 1e-9, "atol": 1e-9}
SOURCES, TARGETS = sentences(7, 1, 4, seed=1), sentences(5, 8, 1, seed=2)


def alone(model: Any, row: int) -> Tensor:
    return outputs(model, Tokens.pad([SOURCES[row]]), Tokens.pad([TARGETS[row]]))[0]


def left_padded(rows: list[list[int]]) -> Tokens:
    right = Tokens.pad(rows)
    assert right.real is not None
    return Tokens(
        torch.stack([torch.roll(ids, int(ids.shape[0] - real.sum())) for ids, real in zip(right.ids, right.real, strict=True)]),
        right.real.flip(1),
    )


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_batch_invariant(name: str) -> None:
    """A sentence in a batch gives what it gives alone, padding or not."""
    model = small(name)
    together = outputs(model, Tokens.pad(SOURCES), Tokens.pad(TARGETS))
    for row, target in enumerate(TARGETS):
        torch.testing.assert_close(together[row, : len(target)], alone(model, row), **EXACT)


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_padding_invariant(name: str) -> None:
    """More padding, and whatever ids stand in it, change nothing."""
    model = small(name)
    want = outputs(model, Tokens.pad(SOURCES), Tokens.pad(TARGETS))
    wider = [Tokens.pad([*rows, [0] * 15]) for rows in (SOURCES, TARGETS)]
    filled = []
    for tokens in wider:
        assert tokens.real is not None
        filled.append(Tokens(torch.where(tokens.real, tokens.ids, torch.randint_like(tokens.ids, 31))[:3], tokens.real[:3]))
    got = outputs(model, *filled)
    for row, target in enumerate(TARGETS):
        torch.testing.assert_close(got[row, : len(target)], want[row, : len(target)], **EXACT)


@pytest.mark.parametrize("name", TRANSFORMERS)
@torch.no_grad()
def test_padding_may_stand_on_the_left(name: str) -> None:
    model = small(name)
    got = outputs(model, left_padded(SOURCES), left_padded(TARGETS))
    for row, target in enumerate(TARGETS):
        torch.testing.assert_close(got[row, -len(target) :], alone(model, row), **EXACT)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_packed_equals_padded(name: str) -> None:
    """All in one row without padding, or padded: the same loss and the same gradients."""
    model = small(name)
    losses, gradients = [], []
    for layout in (Tokens.pad, Tokens.pack):
        source, target = layout(SOURCES), layout(TARGETS)
        logits = outputs(model, source, target)
        loss = cross_entropy(logits, target.ids.roll(1, 1) * 0 + 5, target.real, smoothing=0.1)
        used = [parameter for parameter in model.parameters() if parameter.requires_grad]
        losses.append((loss.total.detach(), loss.count))
        gradients.append(torch.autograd.grad(loss.total, used, allow_unused=True))
    torch.testing.assert_close(losses[0][0], losses[1][0], **EXACT)
    assert losses[0][1] == losses[1][1]
    for one, other in zip(*gradients, strict=True):
        if one is not None:
            torch.testing.assert_close(one, other, **EXACT)


@pytest.mark.parametrize("pooling", ["first", "mean"])
@torch.no_grad()
def test_packed_equals_padded_for_pooled_vectors(pooling: str) -> None:
    model = small("bert-base", pooling=pooling)
    assert isinstance(model, Encoder)
    layouts = (Tokens.pad(TARGETS), Tokens.pack(TARGETS), left_padded(TARGETS))
    pooled = [model.classify(model(tokens), tokens) for tokens in layouts]
    torch.testing.assert_close(pooled[0], pooled[1], **EXACT)
    torch.testing.assert_close(pooled[0], pooled[2], **EXACT)


@pytest.mark.parametrize("layout", [Tokens.pad, Tokens.pack])
@torch.no_grad()
def test_prefix_packed_equals_padded_equals_decoding(layout: Any) -> None:
    """The notes' fourth mask in all three ways that a prefix model is run."""
    model = small("llama-tiny", mask="prefix")
    assert isinstance(model, LanguageModel)
    given = torch.tensor([3, 6, 1])
    tokens = layout(TARGETS)
    got = model(tokens, given)
    flat = got[0] if tokens.packed else got[tokens.real]
    want = []
    for row, length in zip(TARGETS, given.tolist(), strict=True):
        state, first = model.start(model.encode(Tokens.pad([row[:length]])), len(row))
        want.append(first)
        if len(row) > length:
            want.append(model.extend(torch.tensor([row[length:]]), state)[0])
    starts = torch.tensor([0, 5, 13])
    after = torch.cat(
        [
            torch.arange(start + length - 1, start + len(row))
            for row, start, length in zip(TARGETS, starts.tolist(), given.tolist(), strict=True)
        ]
    )
    torch.testing.assert_close(flat[after], torch.cat(want), **EXACT)


@pytest.mark.parametrize("name", WRITERS)
def test_causal_no_gradient_from_the_future(name: str) -> None:
    """The output at each position has no gradient from any later target word: changing it can't change what was said before."""
    model = small(name)
    target = Tokens.pad(sentences(6))
    embedded: list[Tensor] = []

    def keep(_module: Any, _inputs: Any, output: Tensor) -> Tensor:
        embedded.append(output.detach().requires_grad_())
        return embedded[-1]

    handle = model.embed.register_forward_hook(keep)
    logits = outputs(model, Tokens.pad(sentences(4)), target)
    handle.remove()
    words = next(x for x in embedded if x.shape[1] == 6)
    for position in range(6):
        (gradient,) = torch.autograd.grad(logits[0, position].sum(), words, retain_graph=True)
        assert (gradient[0, position + 1 :] == 0).all()
        assert (gradient[0, : position + 1] != 0).any(-1).all()


def test_without_a_mask_the_future_leaks() -> None:
    """The same reading of an encoder, whose words do see each other: so the law above can fail."""
    model = small("bert-base")
    x = model.embed(torch.tensor(sentences(6))).detach().requires_grad_()
    states = model.encoder(x, positions=torch.arange(6)[None])
    (gradient,) = torch.autograd.grad(states[0, 0].sum() + states[0, 0, 0], x)
    assert (gradient[0, 1:] != 0).any()


@pytest.mark.parametrize("name", WRITERS)
@torch.no_grad()
def test_cached_equals_uncached(name: str) -> None:
    """Word by word with a cache, several at a time, or all at once."""
    model = small(name)
    assert isinstance(model, Generator)
    more = torch.tensor(sentences(6, 6, 6, seed=5))
    for pieces in ([1] * 6, [4, 2]):
        state, first = model.start(model.encode(Tokens.pad(SOURCES)), 20)
        steps = torch.cat([first[:, None], *(model.extend(piece, state) for piece in more.split(pieces, 1))], 1)
        for row, source in enumerate(SOURCES):
            words = more[row].tolist()
            if model.config.kind == "lm":
                want = model(Tokens.pad([[*source, *words]]))[0, len(source) - 1 :]
            else:
                want = model(Tokens.pad([source]), Tokens.pad([[1, *words]]))[0]
            torch.testing.assert_close(steps[row], want, **EXACT)


@pytest.mark.parametrize("name", WRITERS)
@torch.no_grad()
def test_hypotheses_go_on_as_if_they_had_always_been_there(name: str) -> None:
    """Hypotheses of a source are multiplied, swapped and dropped, sources too; each goes on as its own history says."""
    model = small(name)
    assert isinstance(model, Generator)
    state, _ = model.start(model.encode(Tokens.pad(SOURCES)), 20, hypotheses=2)
    histories: list[list[list[int]]] = [[[]], [[]], [[]]]
    owners = [0, 1, 2]

    def step(words: list[list[int]]) -> Tensor:
        for row, chosen in zip(histories, words, strict=True):
            for history, word in zip(row, chosen, strict=True):
                history.append(word)
        return model.step(torch.tensor(words), state)

    def select(parents: list[list[int]]) -> None:
        nonlocal histories
        state.select(torch.tensor(parents))
        histories = [[list(row[parent]) for parent in chosen] for row, chosen in zip(histories, parents, strict=True)]

    step([[4], [5], [6]])
    select([[0, 0], [0, 0], [0, 0]])  # two hypotheses for each source
    step([[7, 8], [9, 10], [11, 12]])
    select([[1, 0], [0, 0], [1, 0]])  # they swap places, and one takes another's
    step([[13, 14], [15, 16], [17, 18]])
    state.keep(torch.tensor([0, 2]))  # the second source is finished
    histories, owners = [histories[0], histories[2]], [0, 2]
    select([[1, 1], [0, 1]])
    got = step([[19, 20], [21, 22]])
    for row, owner in enumerate(owners):
        for place, history in enumerate(histories[row]):
            if model.config.kind == "lm":
                want = model(Tokens.pad([[*SOURCES[owner], *history]]))[0, -1]
            else:
                want = model(Tokens.pad([SOURCES[owner]]), Tokens.pad([[1, *history]]))[0, -1]
            torch.testing.assert_close(got[row, place], want, **EXACT)


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
@pytest.mark.parametrize("name", WRITERS)
def test_beam_of_one_is_greedy(name: str, length_penalty: float) -> None:
    """The best word at each position, found by asking the model step by step."""
    model = small(name)
    assert isinstance(model, Generator)
    beams = decode(model, Tokens.pad(SOURCES), Beam(size=1, length_penalty=length_penalty), Rules(max_length=Length(plus=12)))
    drawn = decode(model, Tokens.pad(SOURCES), Sampling(temperature=0), Rules(max_length=Length(plus=12)))
    assert [beam[0].tokens for beam in beams] == [found[0].tokens for found in drawn]
    for source, beam in zip(SOURCES, beams, strict=True):
        state, logits = model.start(model.encode(Tokens.pad([source])), 12)
        words: list[int] = []
        while len(words) < 12 and (word := int(logits[0].argmax())) != 2:
            words.append(word)
            logits = model.step(torch.tensor([[word]]), state)[:, -1]
        assert beam[0].tokens == tuple(words)


@pytest.mark.parametrize("name", [*LANGUAGE_MODELS, "transformer-base"])
@torch.no_grad()
def test_caches_longer_than_one_reach(name: str) -> None:
    """Views of a cache grow with its fill; the words before must stay in sight."""
    model = small(name, context=200)
    assert isinstance(model, Generator)
    words = torch.tensor(sentences(140, 140, seed=9))
    state, first = model.start(model.encode(Tokens.pad(SOURCES[:2])), 150)
    steps = torch.cat([first[:, None], *(model.step(words[:, i : i + 1], state) for i in range(140))], 1)
    for row in range(2):
        text = [*SOURCES[row], *words[row].tolist()]
        if model.config.kind == "lm":
            want = model(Tokens.pad([text]))[0, len(SOURCES[row]) - 1 :]
        else:
            want = model(Tokens.pad([SOURCES[row]]), Tokens.pad([[1, *words[row].tolist()]]))[0]
        torch.testing.assert_close(steps[row], want, **EXACT)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", WRITERS)
@torch.no_grad()
def test_half_precision_follows_float64(name: str, dtype: torch.dtype) -> None:
    """Logits, and the score that search reports, which is summed in float32 whatever the model's precision."""
    exact = small(name)
    rounded = copy.deepcopy(exact).to(dtype)
    exact.load_state_dict({key: tensor.double() for key, tensor in rounded.state_dict().items()})
    assert isinstance(rounded, Generator)
    source, target = Tokens.pad(SOURCES), Tokens.pad(TARGETS)
    got, want = outputs(rounded, source, target).double()[target.real], outputs(exact, source, target)[target.real]
    assert float((got - want).norm() / want.norm()) < 0.05
    for row, hypotheses in enumerate(decode(rounded, source, Beam(size=2, length_penalty=0.0), Rules(max_length=Length(plus=6)))):
        words = [*hypotheses[0].tokens, *([2] if hypotheses[0].ended else [])]
        state, logits = rounded.start(rounded.encode(Tokens.pad([SOURCES[row]])), 6)
        total = 0.0
        for word in words:
            total += float(logits[0].float().log_softmax(-1)[word])
            logits = rounded.step(torch.tensor([[word]]), state)[:, -1] if word != 2 else logits
        assert hypotheses[0].log_probability == pytest.approx(total, abs=0.05)


@pytest.mark.parametrize("name", FAMILIES)
def test_autocast_trains(name: str) -> None:
    if name.startswith("rnn") and os.environ.get("ONEDNN_MAX_CPU_ISA"):
        pytest.skip("PyTorch does not hear that oneDNN may not use this CPU's bfloat16, and asks it for an LSTM in it")
    model = small(name).float()
    with torch.autocast("cpu", torch.bfloat16):
        logits = outputs(model, Tokens.pad(SOURCES), Tokens.pad(TARGETS))
        loss = cross_entropy(logits, Tokens.pad(TARGETS).ids, Tokens.pad(TARGETS).real)
    loss.total.backward()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in model.parameters())
    assert loss.total.isfinite()


@pytest.mark.parametrize("name", WRITERS)
@torch.no_grad()
def test_rows_must_be_all_there(name: str) -> None:
    model = small(name)
    assert isinstance(model, Generator)
    state, _ = model.start(model.encode(Tokens.pad(SOURCES)), 5)
    with pytest.raises(RegardError, match="has 3 rows and 1 were given"):
        model.step(torch.tensor([[4]]), state)


def test_scores_that_are_not_numbers_are_an_error() -> None:
    model = small("gpt2")
    assert isinstance(model, Generator)
    with torch.no_grad():
        model.embed.weight.fill_(float("nan"))
    with pytest.raises(RegardError, match="scores that are not numbers"):
        decode(model, Tokens.pad(SOURCES))


@pytest.mark.parametrize("name", FAMILIES)
def test_accumulated_equals_the_whole_batch(name: str) -> None:
    """Sums and counts of parts, gradients added up, are those of the whole; means of means would not be."""
    model = small(name)

    def gradients(rows: list[int]) -> tuple[Tensor, int]:
        target = Tokens.pad([TARGETS[row] for row in rows])
        loss = cross_entropy(outputs(model, Tokens.pad([SOURCES[row] for row in rows]), target), target.ids, target.real, smoothing=0.1)
        loss.total.backward()
        return loss.total.detach(), int(loss.count)

    whole, count = gradients([0, 1, 2])
    want = {key: parameter.grad.clone() for key, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad()
    parts = [gradients([0]), gradients([1, 2])]
    torch.testing.assert_close(sum(part[0] for part in parts), whole, **EXACT)
    assert sum(part[1] for part in parts) == count
    for key, parameter in model.named_parameters():
        if key in want:
            torch.testing.assert_close(parameter.grad, want[key], **EXACT)


@pytest.mark.parametrize("name", ["transformer-base", "gpt2", "bert-base", "t5-small"])
def test_tied_weights_stay_tied(name: str) -> None:
    """One parameter, however a model is copied, moved, or trained: not two that start equal."""
    model = small(name)
    for version in (model, copy.deepcopy(model), copy.deepcopy(model).to(torch.float32), copy.deepcopy(model).to("cpu")):
        names = [key for key, value in version.named_parameters() if tuple(value.shape) == (31, 24)]
        assert names == ["embed.weight"]
        assert [key for key in version.state_dict() if "deembed.weight" in key] == []
        source, target = Tokens.pad([[3, 4]]), Tokens.pad([[5, 6]])
        before = outputs(version, source, target).detach()
        with torch.no_grad():
            version.embed.weight[9] += 1.0  # word 9 stands nowhere in the input, so that only its logit can feel it
        after = outputs(version, source, target).detach()
        others = torch.arange(31) != 9
        assert torch.equal(after[..., others], before[..., others])
        assert not torch.equal(after[..., 9], before[..., 9])


def test_untied_weights_are_two() -> None:
    model = small("gpt2", tied=False)
    assert [key for key, value in model.named_parameters() if tuple(value.shape) == (31, 24)] == ["embed.weight", "deembed.weight"]


@pytest.mark.parametrize("name", [*SEQ2SEQ[:1], *LANGUAGE_MODELS[1:], "bert-base"])
@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_compiled_never_recompiles_after_warm_up(name: str) -> None:
    """The same shapes with other words, lengths and documents run the code that the first batch compiled."""
    model = small(name)

    def batch(seed: int) -> tuple[Tokens, Tokens]:
        first, second = torch.randint(1, 8, (2,), generator=torch.Generator().manual_seed(seed)).tolist()
        return Tokens.pad(sentences(8, first, seed=seed)), Tokens.pad(sentences(8, second, seed=seed + 1))

    stacks = [stack for stack in (getattr(model, "encoder", None), getattr(model, "decoder", None)) if stack is not None]
    eager = [outputs(model, *batch(seed)).detach() for seed in range(4)]
    torch.compiler.reset()
    for stack in stacks:
        stack.compile(backend="eager", fullgraph=True, dynamic=False)
    torch.testing.assert_close(outputs(model, *batch(0)), eager[0], **EXACT)
    with torch.compiler.set_stance("fail_on_recompile"):
        for seed in range(1, 4):
            torch.testing.assert_close(outputs(model, *batch(seed)), eager[seed], **EXACT)


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("name", ["transformer-base", "t5-small", "gpt2", "llama-tiny", "bert-base"])
def test_a_whole_model_compiles_without_a_break(name: str) -> None:
    """Masks, positions and all, padded and packed, in one graph each; other words of the same shape run the same code."""
    model = small(name)
    batches = [(Tokens.pad(sentences(8, 3, seed=seed)), Tokens.pad(sentences(8, 5, seed=seed + 1))) for seed in range(3)]
    packs = [(Tokens.pack(sentences(8, 3, seed=seed)), Tokens.pack(sentences(8, 5, seed=seed + 1))) for seed in range(3)]
    torch.compiler.reset()
    compiled = torch.compile(lambda source, target: outputs(model, source, target), backend="eager", fullgraph=True, dynamic=False)
    for layout in (batches, packs):
        torch.testing.assert_close(compiled(*layout[0]), outputs(model, *layout[0]), **EXACT)
    with torch.compiler.set_stance("fail_on_recompile"):
        for batch in (*batches[1:], *packs[1:]):
            torch.testing.assert_close(compiled(*batch), outputs(model, *batch), **EXACT)


@torch.no_grad()
def test_separate_vocabularies() -> None:
    model = small("transformer-base", source_vocabulary=50)
    assert isinstance(model, Seq2Seq)
    assert model.embed_source is not None
    assert model.embed_source.weight.shape == (50, 24)
    assert model(Tokens(torch.tensor([[49, 48]])), Tokens(torch.tensor([[1, 3]]))).shape == (1, 2, 31)

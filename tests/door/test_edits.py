"""The network of a loaded model is its definition: whoever edits it finds the edit in everything that the model does."""

from __future__ import annotations

import copy
import pickle
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.bundle import load_bundle, save_bundle
from regard.data.batch import Tokens
from regard.decoding import follow, ready
from regard.decoding.fitting import products_of
from regard.decoding.follow import Watched
from regard.decoding.products import FloatProduct, available
from regard.decoding.reading import uses_int8
from regard.decoding.ready import WrittenIn
from regard.door import Model, load
from regard.errors import ConfigError
from regard.models import Encoder
from regard.shipped import shipped
from tests.closeness import assert_close

TEXT, ITALIAN = "I love you very much.", "Ti amo molto."
HEAD = slice(64, 128)  # the second of eight
Edit = Callable[[nn.Module], Any]


def join(network: nn.Module) -> nn.Linear:
    found = network.get_submodule("decoder.layers.2.cross.join")
    assert isinstance(found, nn.Linear)
    return found


@torch.no_grad()
def in_place(network: nn.Module) -> None:
    join(network).weight.zero_()


@torch.inference_mode()
def a_head(network: nn.Module) -> None:
    join(network).weight[:, HEAD] = 0


def through_data(network: nn.Module) -> None:
    join(network).weight.data[:, HEAD] *= 0


def with_other_data(network: nn.Module) -> None:
    join(network).weight.data = torch.zeros(512, 512)


def loaded_state(network: nn.Module) -> None:
    network.load_state_dict({"decoder.layers.2.cross.join.weight": torch.zeros(512, 512)}, strict=False)


def assigned_state(network: nn.Module) -> None:
    network.load_state_dict({"decoder.layers.2.cross.join.weight": torch.zeros(512, 512)}, strict=False, assign=True)


def another_module(network: nn.Module) -> None:
    torch.manual_seed(1)
    network.get_submodule("decoder.layers.2.cross").join = nn.Linear(512, 512)


def another_setting(network: nn.Module) -> None:
    network.get_submodule("decoder.layers.2.cross").scale = 0.0  # type: ignore[assignment]


def an_embedding(network: nn.Module) -> None:
    with torch.no_grad():
        network.get_parameter("embed.weight").mul_(0.9)


EDITS: list[Edit] = [
    in_place, a_head, through_data, with_other_data, loaded_state, assigned_state, another_module, another_setting, an_embedding,
]  # fmt: skip


def said(model: Model) -> tuple[Tensor, Tensor, Tensor]:
    """What it writes, judges and shows."""
    [written] = model.translate([TEXT], "it", beam_size=2)
    [scored] = model.score([TEXT], [ITALIAN], to="it")
    traced = model.trace(TEXT, "it", parts=("output",), beam_size=1)
    assert traced.output is not None
    shown = torch.tensor(traced.output.logsumexp)
    return torch.tensor(written.log_probabilities), torch.tensor(scored.log_probabilities), shown


@pytest.fixture(scope="module")
def loaded() -> Callable[[str], Model]:
    """Loaded once for all edits, each of which is taken back."""
    found: dict[str, Model] = {}
    return lambda precision: found.setdefault(precision, load("translator", device="cpu", precision=precision))  # type: ignore[arg-type]


@pytest.mark.parametrize("precision", ["float32", "auto"])
@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_is_followed_by_all_that_the_model_does(edit: Edit, precision: WrittenIn, loaded: Callable[[str], Model]) -> None:
    model = loaded(precision)
    whole = {name: tensor.clone() for name, tensor in model.network.state_dict().items()}
    before = said(model)
    edit(model.network)
    edited = said(model)
    fresh = Model(copy.deepcopy(model.network), model.tokenizer, precision=precision)
    for one, other, old in zip(edited, said(fresh), before, strict=True):
        assert_close(one, other, model.network)
        assert one.shape != old.shape or float((one - old).abs().max()) > 1e-3
    if edit is another_module:
        model.network.get_submodule("decoder.layers.2.cross").join = nn.Linear(512, 512, bias="decoder.layers.2.cross.join.bias" in whole)
    if edit is another_setting:
        model.network.get_submodule("decoder.layers.2.cross").scale = 0.125  # type: ignore[assignment]
    model.network.load_state_dict(whole)
    for one, old in zip(said(model), before, strict=True):
        assert_close(one, old, model.network)


@pytest.mark.parametrize("precision", ["float32", "auto"])
def test_hooks_are_called_and_obeyed(precision: WrittenIn, loaded: Callable[[str], Model]) -> None:
    model = loaded(precision)
    before = said(model)
    prepared = model.writer
    calls: list[int] = []

    def nothing(module: nn.Module, given: Any, made: Tensor) -> Tensor:
        calls.append(made.shape[1])
        return made * 0

    handle = join(model.network).register_forward_hook(nothing)
    assert model.writer is model.network
    hooked = said(model)
    assert len(calls) > 5
    handle.remove()
    edited = copy.deepcopy(model.network)
    with torch.no_grad():
        for parameter in join(edited).parameters():
            parameter.zero_()
    for one, other, old in zip(hooked, said(Model(edited, model.tokenizer)), before, strict=True):
        assert_close(one, other, model.network)
        assert one.shape != old.shape or float((one - old).abs().max()) > 1e-3
    for one, old in zip(said(model), before, strict=True):
        torch.testing.assert_close(one, old, rtol=0, atol=0)
    assert model.writer is prepared  # which was never gone
    handle = join(model.network).register_forward_pre_hook(lambda module, given: (given[0] * 0,))
    for one, other in zip(said(model), hooked, strict=True):
        assert one.shape != other.shape or not torch.equal(one, before[0] if one.shape == before[0].shape else one * 2)
    handle.remove()


@pytest.mark.parametrize("precision", ["float32", "auto"])
def test_hooks_hear_what_was_asked_and_are_gone_when_they_are_removed(precision: WrittenIn, loaded: Callable[[str], Model]) -> None:
    """Also where something was edited while they listened."""
    model = loaded(precision)
    before, weight = said(model), join(model.network).weight
    assert model.writer is not model.network or not available(FloatProduct)
    sizes: list[int] = []
    handle = model.network.get_submodule("encoder.layers.2").register_forward_hook(lambda module, given, made: sizes.append(len(made)))
    model.translate(TEXT, "it")
    alone = list(sizes)
    with torch.no_grad():
        weight.mul_(1.0)
    model.translate(TEXT, "it")
    assert sizes == 2 * alone  # and no random tokens of a comparison
    model.refresh()
    assert model.verify() is None
    assert sizes == 2 * alone
    handle.remove()
    for one, old in zip(said(model), before, strict=True):
        assert_close(one, old, model.network)
    assert sizes == 2 * alone
    assert model.writer is not model.network or not available(FloatProduct)


def test_what_is_written_while_a_copy_is_made_is_found(loaded: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch) -> None:
    """By another thread, at the worst moment."""
    model = loaded("auto")
    before, whole = said(model), {name: tensor.clone() for name, tensor in model.network.state_dict().items()}
    original = follow.Seen.__init__

    def late(self: follow.Seen, network: Any) -> None:
        a_head(model.network)
        original(self, network)

    an_embedding(model.network)
    with monkeypatch.context() as patch:
        patch.setattr(follow.Seen, "__init__", late)
        model.writer  # noqa: B018
    fresh = Model(copy.deepcopy(model.network), model.tokenizer, precision="auto")
    for one, other in zip(said(model), said(fresh), strict=True):
        assert_close(one, other, model.network)
    model.network.load_state_dict(whole)
    for one, old in zip(said(model), before, strict=True):
        assert_close(one, old, model.network)


def test_a_copy_at_work_is_not_changed_by_the_next(loaded: Callable[[str], Model]) -> None:
    """A thread may be in the middle of a text."""
    model = loaded("auto")
    at_work = model.writer
    ranges = [product.range for product in products_of(at_work)]
    an_embedding(model.network)
    now = model.writer
    assert now is not at_work
    assert [product.range for product in products_of(at_work)] == ranges
    assert not set(map(id, products_of(at_work))) & set(map(id, products_of(now)))
    with torch.no_grad():
        model.network.get_parameter("embed.weight").div_(0.9)


def test_a_copy_of_a_model_is_a_model(bundle: Callable[[str], Path]) -> None:
    model = load(bundle("translator"), precision="float32")
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.translate("1 2 3", "back") == model.translate("1 2 3", "back")
        with torch.no_grad():
            other.network.get_parameter("embed.weight").neg_()
        assert other.score("1 2 3", "3 2 1", to="back") != model.score("1 2 3", "3 2 1", to="back")


def test_a_head_that_is_switched_off_is_missed_by_writing_as_by_judging(loaded: Callable[[str], Model]) -> None:
    """Whoever asks what a head is for must not be told that it does nothing."""
    model = loaded("auto")
    weight = join(model.network).weight
    kept = weight.detach().clone()
    written = model.translate(TEXT, "it")
    with torch.no_grad():
        weight.zero_()
    again = model.translate(TEXT, "it")
    judged = model.score(TEXT, again.text, to="it")
    assert sum(again.log_probabilities) < sum(written.log_probabilities) - 1
    assert judged.log_probability == pytest.approx(sum(again.log_probabilities), abs=0.5)  # the rounding of int8
    with torch.no_grad():
        weight.copy_(kept)
    assert model.translate(TEXT, "it") == written


@pytest.mark.parametrize("precision", ["float32", "auto"])
def test_all_weights_are_there_and_are_ones_own(precision: WrittenIn, loaded: Callable[[str], Model], tmp_path: Path) -> None:
    network = loaded(precision).network
    plain = load_bundle(shipped()["translator"], dtype=torch.float32).model
    assert [name for name, _ in network.named_parameters()] == [name for name, _ in plain.named_parameters()]
    save_bundle(network, tmp_path / "saved")
    for other in (copy.deepcopy(network), pickle.loads(pickle.dumps(network)), load_bundle(tmp_path / "saved").model):
        assert {type(parameter) for parameter in other.parameters()} == {nn.Parameter}
        assert all(torch.equal(one, two) for one, two in zip(network.parameters(), other.parameters(), strict=True))
    loss = network(*(Tokens.pad([[5, 6, 7]]) for _ in range(2))).logsumexp(-1).sum()
    loss.backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
    network.zero_grad()


def test_a_network_that_is_moved_is_followed(bundle: Callable[[str], Path]) -> None:
    model = load(bundle("translator"), precision="auto")
    before = model.translate("1 2 3", "back").text
    model.network.to(torch.bfloat16)
    assert model.writer is model.network
    assert model.translate("1 2 3", "back").text == before
    assert model.score("1 2 3", "3 2 1", to="back").log_probability < 0
    model.network.float()
    assert model.writer is not model.network or not available(FloatProduct)
    assert model.translate("1 2 3", "back").text == before


def test_what_can_not_be_made_of_a_moved_network_is_said(loaded: Callable[[str], Model]) -> None:
    model = load("translator", device="cpu", precision="auto")
    model._followed.precision = "int8"
    model.network.to(torch.bfloat16)
    with pytest.raises(ConfigError, match="int8 is made from float32, and this model is in bfloat16; load it in float32"):
        model.translate(TEXT, "it")


@pytest.mark.parametrize("name", ["critic", "recurrent", "writer"])
def test_every_family_follows(name: str, bundle: Callable[[str], Path]) -> None:
    model = load(bundle(name), precision="float32")

    def answer() -> Any:
        if isinstance(model.network, Encoder):
            return model.classify("this film was awful").labels if hasattr(model.classify("x"), "labels") else model.embed("this film")
        return model.score("1 2 3", "1 2 3", to=None) if name == "recurrent" else model.score("the cat sat")

    before, edited = str(answer()), next(p for name, p in model.network.named_parameters() if "attention" in name or "rnn" in name)
    assert str(answer()) == before
    edited.data.mul_(1.5)
    fresh = Model(copy.deepcopy(model.network), model._tokenizer, model._source_tokenizer, name=model.name, precision="float32")
    after, model = str(answer()), fresh
    assert after != before
    assert str(answer()) == after


def test_data_is_looked_at_for_as_long_as_someone_holds_it(loaded: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch) -> None:
    model, summed = loaded("auto"), []
    original = follow.checksum
    monkeypatch.setattr(follow, "checksum", lambda tensor: summed.append(tensor) or original(tensor))  # type: ignore[func-returns-value]
    writer, weight = model.writer, join(model.network).weight
    assert isinstance(weight, Watched)
    held = weight.data
    assert model.writer is writer  # read, and not written
    assert len(summed) == 2
    part = held[:3]
    del held
    part[0, 0] += 1
    other = model.writer
    assert other is not writer
    part[0, 0] -= 1
    assert model.writer is not other  # though it was held since before the copy was made
    del part
    summed.clear()
    weight.data  # noqa: B018
    model.writer  # noqa: B018
    assert summed
    summed.clear()
    model.writer  # noqa: B018
    assert not summed


def test_what_can_not_be_seen_can_be_said(loaded: Callable[[str], Model]) -> None:
    model = loaded("auto")
    before, weight = said(model)[0], join(model.network).weight.detach().numpy()
    kept = weight.copy()
    weight[:] = 0
    model.refresh()
    assert not torch.equal(said(model)[0], before) if said(model)[0].shape == before.shape else True
    weight[:] = kept
    model.refresh()
    assert torch.equal(said(model)[0], before)


def test_only_what_was_edited_is_laid_out_anew(loaded: Callable[[str], Model]) -> None:
    model = loaded("auto")
    product = model.writer.get_submodule("decoder.layers.1.cross.join").product
    with torch.no_grad():
        join(model.network).weight.mul_(1.0)
    assert model.writer.get_submodule("decoder.layers.1.cross.join").product.laid is product.laid  # type: ignore[union-attr]
    assert model.writer.get_submodule("decoder.layers.2.cross.join").weight is join(model.network).weight


def test_asking_costs_next_to_nothing(loaded: Callable[[str], Model]) -> None:
    model = loaded("auto")

    def least(work: Callable[[], Any], times: int) -> float:
        found = []
        for _ in range(times):
            began = time.process_time()
            work()
            found.append(time.process_time() - began)
        return min(found)

    asked = least(lambda: [model._followed.prepared() for _ in range(20)], 5) / 20
    assert asked < 0.01 * least(lambda: model.translate(TEXT, "it"), 3)


def test_nothing_changes_by_being_used(bundle: Callable[[str], Path]) -> None:
    """Or else it would be prepared anew at every call."""
    for name in ("translator", "writer", "recurrent", "critic"):
        model = load(bundle(name))
        now = model._followed._now
        if isinstance(model.network, Encoder):
            model.embed(["a", "b c"])
        else:
            model.score(*(["1 2", "3"] for _ in range(1 if name == "writer" else 2)), **({"to": "back"} if name == "translator" else {}))
        model.trace("1 2") if name == "writer" else None
        assert model._followed.prepared() is now[1]


def test_what_was_verified_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    compared: list[object] = []
    original = ready.Walked.__init__
    monkeypatch.setattr(ready.Walked, "__init__", lambda self, *given, **more: (compared.append(given), original(self, *given, **more))[1])
    monkeypatch.setattr(follow, "LONG", 0.0)
    first = load("everyday", device="cpu")
    assert compared
    assert len(list((tmp_path / "cache").rglob("*.json"))) == 1
    compared.clear()
    second = load("everyday", device="cpu")
    assert not compared
    assert uses_int8(second.writer) == uses_int8(first.writer)
    assert type(second.writer.decoder) is type(first.writer.decoder)
    assert [str(model.generate("I would", seed=1, max_length=5)) for model in (first, second)].count(
        str(first.generate("I would", seed=1, max_length=5))
    ) == 2
    load("everyday", device="cpu", precision="float32")  # is something else
    assert compared
    compared.clear()
    monkeypatch.setattr("regard.nn.attention.Attention._heads", lambda self, x, heads: x.unflatten(-1, (heads, -1)).transpose(1, 2))
    load("everyday", device="cpu")  # other code
    assert compared
    found = second.verify()
    assert found is not None
    assert found.passed


def test_a_cache_that_can_not_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(follow, "LONG", 0.0)
    assert load("everyday", device="cpu").verify()


@pytest.fixture
def wrong_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flat decoder has a mistake."""
    from regard.decoding.lean import LeanAttention

    original = LeanAttention.leave
    monkeypatch.setattr(LeanAttention, "leave", lambda self, x, made: original(self, x, made * 1.01))


@pytest.mark.usefixtures("wrong_copy")
def test_what_differs_is_said_on_the_command_line_as_all_else_is(bundle: Callable[[str], Path]) -> None:
    from tests.cli.running import run

    for arguments in (("translate", "1 2 3", "--to", "back", "--precision", "float32", "-m"), ("check",)):
        done = run(*arguments, bundle("translator"))
        [line] = done.err.splitlines()
        assert line.startswith("regard: ")
        assert "the flat decoder differs from the definition at prefill by " in line


@pytest.mark.usefixtures("wrong_copy")
def test_what_differs_is_said_when_loaded(bundle: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        model = load(bundle("translator"), precision="float32")
    [message] = [str(each.message) for each in heard]
    assert "the flat decoder differs from the definition at prefill by " in message
    assert message.startswith(model.name)
    monkeypatch.undo()
    assert model.translate("1 2 3", "back").text == load(bundle("translator"), device="cpu").translate("1 2 3", "back").text

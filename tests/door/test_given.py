"""What is given instead of a text is named by its place and its type in one sentence, whatever the verb."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from regard.door import Model
from regard.errors import ConfigError, RegardError

Models = Callable[[str], Model]
MANY: dict[str, tuple[str, Callable[[Model, Any], Any]]] = {
    "translate": ("translator", lambda model, texts: model.translate(texts, "back")),
    "score": ("translator", lambda model, texts: model.score(texts, ["1", "2", "3"], to="back")),
    "generate": ("writer", lambda model, texts: model.generate(texts)),
    "classify": ("critic", lambda model, texts: model.classify(texts)),
    "embed": ("critic", lambda model, texts: model.embed(texts)),
    "fill": ("guesser", lambda model, texts: model.fill(texts)),
}
ONE: dict[str, tuple[str, Callable[[Model, Any], Any]]] = {
    "stream": ("writer", lambda model, text: model.stream(text)),
    "trace": ("translator", lambda model, text: model.trace(text, "back")),
    "vectors": ("critic", lambda model, text: model.vectors(text)),
}
STRANGE = [(None, "None"), (7, "int"), (2.5, "float"), (float("nan"), "nan"), (b"one", r"bytes \(decode them first\)"), (["one"], "list")]


@pytest.mark.parametrize("verb", MANY)
@pytest.mark.parametrize(("strange", "named"), STRANGE)
def test_one_of_many_is_no_text(model: Models, verb: str, strange: object, named: str) -> None:
    name, ask = MANY[verb]
    with pytest.raises(RegardError, match=rf'^{verb}: texts\[1\] is {named}, not a text; leave it out, or give "" in its place$'):
        ask(model(name), ["1 2 [MASK]", strange, "3"])


@pytest.mark.parametrize("verb", MANY)
@pytest.mark.parametrize(("strange", "named"), [each for each in STRANGE if not isinstance(each[0], list)])
def test_what_is_given_is_neither_a_text_nor_several(model: Models, verb: str, strange: object, named: str) -> None:
    name, ask = MANY[verb]
    with pytest.raises(RegardError, match=rf"^{verb} takes a text or several as texts; got {named}$"):
        ask(model(name), strange) if verb != "score" else model(name).score(strange, None, to="back")  # type: ignore[call-overload]


@pytest.mark.parametrize("verb", ONE)
@pytest.mark.parametrize(("strange", "named"), STRANGE)
def test_one_text_is_wanted(model: Models, verb: str, strange: object, named: str) -> None:
    name, ask = ONE[verb]
    with pytest.raises(RegardError, match=f"^{verb} takes one text; got {named}$"):
        ask(model(name), strange)


def test_targets_and_data_are_looked_at_too(model: Models) -> None:
    with pytest.raises(RegardError, match=r"^score: targets\[0\] is None, not a text; "):
        model("translator").score(["1"], [None], to="back")  # type: ignore[list-item]
    for strange, named in ((None, "None"), (["1\t1"], "list")):
        with pytest.raises(RegardError, match=f"^evaluate takes a file of examples, by its path or as a DataFile; got {named}$"):
            model("translator").evaluate(strange, to="back")  # type: ignore[arg-type]


def test_nothing_and_texts_of_nothing_are_fine(model: Models) -> None:
    for verb, (name, ask) in MANY.items():
        assert verb == "score" or len(ask(model(name), [])) == 0
    assert model("translator").score([], [], to="back") == []
    assert str(model("translator").translate(["", "1 2"], "back")[0]) == ""


@pytest.mark.parametrize("to", [3, [3, "back"], b"back"])
def test_what_is_no_language_is_named(model: Models, to: Any) -> None:
    with pytest.raises(ConfigError, match=r"can't write (3|98|b'back'); known: back, same"):
        model("translator").translate(["1", "2"], to)

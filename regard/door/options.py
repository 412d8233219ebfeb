"""What a person may ask of writing, by name: sorted into how words are chosen and what rules hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from regard.decoding.settings import Beam, Length, Method, Rules, Sampling
from regard.errors import ConfigError, nearest, shown
from regard.limits import MOST_HYPOTHESES, within

if TYPE_CHECKING:
    from regard.door import Model


class Options(TypedDict, total=False):
    """See `Beam`, `Sampling` and `Rules` for what each does and its default."""

    beam_size: int
    length_penalty: float
    n_best: int
    coverage: float
    groups: int
    diversity: float
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    samples: int
    seed: int
    mbr: int  # choose among so many samples the one most like all others, by chrF
    max_length: int | str
    min_length: int | str
    no_repeat: int
    repetition_penalty: float
    ban: Sequence[str] | str
    require: Sequence[str] | str
    split: Literal["sentences", "length", "none"]  # what is translated on its own: each sentence, or a text, in parts if too long, or never
    speculate: str | Path | Model  # guess words ahead: by "ngram", by a draft model or its bundle, or "off"


BEAM = {"beam_size": "size"} | {name: name for name in ("length_penalty", "n_best", "coverage", "groups", "diversity")}
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "samples", "seed")
RULES = ("max_length", "min_length", "no_repeat", "repetition_penalty")


def chosen(options: Options, method: Method, rules: Rules, words: Callable[[str], Sequence[Sequence[int]]]) -> tuple[Method, Rules]:
    """The method and rules that options ask for; what they leave out is as given. `words` turns a word into tokens, in every spelling."""
    for name in options:
        if name not in Options.__annotations__:
            raise ConfigError(f"there is no option {name!r}; {nearest(name, Options.__annotations__)}")
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    beam = {BEAM[name]: given[name] for name in BEAM if name in given}
    sampling = {name: given[name] for name in SAMPLING if name in given}
    if "mbr" in given:
        sampling |= _of_samples(given)
    drawn = [name for name in ("mbr", *SAMPLING) if name in given and name != "seed"]  # a seed alone asks for no chance
    if beam and drawn:
        one = next(name for name in BEAM if name in given)
        raise ConfigError(f"{one} belongs to beam search and {drawn[0]} to sampling; choose one of the two")
    try:
        if beam:
            method = Beam(**((method.model_dump() if isinstance(method, Beam) else {}) | _widened(beam)))
        elif drawn or isinstance(method, Sampling):
            method = Sampling(**((method.model_dump() if isinstance(method, Sampling) else {}) | sampling))
    except ConfigError as error:
        raise ConfigError(re.sub(r"\bsize\b", "beam_size", str(error))) from None
    changes: dict[str, Any] = {name: given[name] for name in RULES if name in given}
    for name in ("max_length", "min_length"):
        if name in changes:
            changes[name] = Length.parse(_written(changes[name]))
    if changes.get("max_length") == Length():
        raise ConfigError("max_length = 0 leaves nothing to write; set it to 1 or more")
    for name, key in (("ban", "banned"), ("require", "required")):
        if name in given:
            spelt = [words(word) for word in ([given[name]] if isinstance(given[name], str) else given[name])]
            changes[key] = tuple(tuple(ids) for spellings in spelt for ids in (spellings if name == "ban" else spellings[:1]))
    return method, Rules(**(rules.model_dump() | changes)) if changes else rules


def _written(length: object) -> str:
    """A length as it would be written, if it is a number."""
    try:
        return str(length)
    except (ValueError, RecursionError):  # of thousands of digits, or nested as deep
        return shown(length)


def _of_samples(given: dict[str, Any]) -> dict[str, Any]:
    """What minimum Bayes risk chooses among."""
    if "samples" in given:
        raise ConfigError("mbr says how many samples are drawn; leave samples out")
    within("mbr", given["mbr"], "how many samples to choose among", 1, MOST_HYPOTHESES)
    return {"samples": given["mbr"]}


def _widened(beam: dict[str, Any]) -> dict[str, Any]:
    """More hypotheses asked for than a beam has by default make it as wide, unless its size is said."""
    wanted = beam.get("n_best", 1)
    return beam if "size" in beam or not isinstance(wanted, int) else {"size": min(max(4, wanted), MOST_HYPOTHESES)} | beam

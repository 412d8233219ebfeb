"""Who guesses words ahead, for a model that writes: nobody, the text itself, or a draft model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from regard.decoding.settings import Beam, Method
from regard.decoding.speculation import Ngrams, Speculation, drafting
from regard.door.options import Options
from regard.errors import ConfigError, RegardError
from regard.models import Generator

if TYPE_CHECKING:
    from regard.door import Model


def speculation_of(model: Model, options: Options, method: Method) -> Speculation | None:
    """What `speculate` asks for. A draft that is named is loaded for this call; one that is given can be used again."""
    asked = options.get("speculate")
    if asked is None or asked == "off":
        return None
    if (method.size if isinstance(method, Beam) else method.samples) > 1:
        raise ConfigError(
            "speculate guesses ahead for one output at a time; take beam_size = 1 or sampling, without samples, or leave it out"
        )
    return Ngrams.begin if asked == "ngram" else drafting(_draft(model, asked))


def draft_of(name: str | Path, device: torch.device | str | None) -> Model:
    """The draft model of a bundle, on the device of the other one. In int8 where that is faster: the other has the last word."""
    from regard.door import load

    try:
        return load(name, device=device)
    except RegardError as error:
        raise type(error)(f"speculate = {str(name)!r} is neither 'ngram' nor 'off', so it should be a draft model: {error}") from error


def _draft(model: Model, asked: str | Path | Model) -> Generator:
    draft = draft_of(asked, model.device) if isinstance(asked, str | Path) else asked
    if draft.verbs != model.verbs:
        raise ConfigError(
            f"{draft.name} can {', '.join(draft.verbs)}, so it can't guess for {model.name}; take a smaller model of its kind"
        )
    for own, other in ((model.tokenizer, draft.tokenizer), (model.source_tokenizer, draft.source_tokenizer)):
        if own.fingerprint != other.fingerprint and own.pieces(range(own.size)) != other.pieces(range(other.size)):
            raise ConfigError(
                f"{draft.name} and {model.name} have different tokenizers, so one can't guess for the other; "
                "take a draft that was made with the same tokenizer"
            )
    return draft.writer

"""Text from text: translations and continuations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.data.batch import Tokens
from regard.decoding.many import decode_many
from regard.decoding.runner import stream as stream_tokens
from regard.decoding.search import Hypothesis
from regard.decoding.settings import Beam, Length, Rules, Sampling
from regard.door.options import Options, chosen
from regard.door.results import NOTHING, Attention, Written
from regard.errors import ConfigError, ShapeError, nearest
from regard.models import LanguageModel, Seq2Seq
from regard.nn import record, using
from regard.nn.tap import Taps
from regard.text.split import split_long
from regard.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from regard.door import Model

CONTINUED = Rules(max_length=Length(plus=256))  # of a prompt, unless said otherwise
DRAWN = Sampling(temperature=0.8, top_p=0.95)


def translate(
    model: Model, texts: list[str], to: str | None, prefix: str | Sequence[str] | None, attention: bool, first: int, options: Options
) -> list[Written]:
    read, write = model.source_tokenizer, model.tokenizer
    method, rules = chosen(options, Beam(), Rules(), lambda word: spellings(write, word))
    tag = language(model, to)
    parts = [Parts(model, text, tag, first + number) for number, text in enumerate(texts)]
    sources = [[*read.encode(text, tag), model.config.end_token] for text_parts in parts for text in text_parts.texts]
    prefixes = _prefixes(write, prefix, parts)
    found = decode_many(model.generator, sources, method, rules, prefixes=prefixes, first=first)
    if "mbr" in options:
        found = [most_agreed(write, hypotheses) for hypotheses in found]
    answers: list[Written] = []
    for text_parts in parts:
        mine = range(start := sum(len(earlier.texts) for earlier in parts[: len(answers)]), start + len(text_parts.texts))
        written = [_written(model, sources[index], found[index], attention) for index in mine]
        answers.append(NOTHING if not written else written[0] if len(written) == 1 else _joined(written))
    return answers


class Parts:
    """A text in parts that each fit the model; none for a text of nothing."""

    def __init__(self, model: Model, text: str, tag: str | None, number: int) -> None:
        self.texts: list[str] = []
        if not text.strip():
            return
        read, room = model.source_tokenizer, model.config.context - 1  # the end token takes a place

        def fits(part: str) -> bool:
            return len(read.encode(part, tag)) <= room

        # Most lines fit, and no token is shorter than a byte: what is short enough in bytes need not be tokenised twice.
        self.texts = [text] if len(text.encode("utf-8", "replace")) < room or fits(text) else split_long(text, fits)
        if len(self.texts) > 1:
            model.warn(
                f"text {number + 1} is longer than the {model.config.context} tokens that {model.name} reads at once; "
                f"it was translated in {len(self.texts)} parts"
            )


def language(model: Model, to: str | None) -> str | None:
    """The tag of the language to write; a model that knows several must be told."""
    tags = model.languages
    if to is None:
        if len(tags) > 1:
            raise ConfigError(f"{model.name} writes several languages; say which with to= (on the command line --to): {', '.join(tags)}")
        return tags[0] if tags else None
    if to not in tags:
        known = f"{nearest(to, tags)}; it knows {', '.join(tags)}" if tags else "it writes one language only, so leave it out"
        raise ConfigError(f"{model.name} can't write {to!r}; {known}")
    return to


def spellings(tokenizer: Tokenizer, word: str) -> list[list[int]]:
    """The tokens of a word as it is and with a capital or a small first letter."""
    forms = dict.fromkeys((word, word[:1].upper() + word[1:], word[:1].lower() + word[1:]))
    ids = [tokenizer.encode(form) for form in forms]
    if not word.strip() or not all(ids) or tokenizer.unknown_id in ids[0]:
        raise ConfigError(f"{word!r} can't be written by this model at all; leave it out")
    return ids


def _prefixes(tokenizer: Tokenizer, prefix: str | Sequence[str] | None, parts: Sequence[Parts]) -> list[list[int]] | None:
    if prefix is None:
        return None
    texts = [prefix] * len(parts) if isinstance(prefix, str) else list(prefix)
    if len(texts) != len(parts):
        raise ConfigError(f"{len(texts)} prefixes for {len(parts)} texts; give one for all, or each its own")
    # Only the first part of a text that was split begins with it.
    return [tokenizer.encode(text) if place == 0 else [] for text, own in zip(texts, parts, strict=True) for place in range(len(own.texts))]


def generate(model: Model, prompts: list[str], attention: bool, first: int, options: Options) -> list[Written]:
    method, rules = chosen(options, DRAWN, CONTINUED, lambda word: spellings(model.tokenizer, word))
    given = [prompt_ids(model, prompt, first + number) for number, prompt in enumerate(prompts)]
    found = decode_many(model.generator, given, method, rules, first=first)
    return [_written(model, ids, hypotheses, attention) for ids, hypotheses in zip(given, found, strict=True)]


def prompt_ids(model: Model, prompt: str, number: int = 0) -> list[int]:
    ids = [model.config.start_token, *model.tokenizer.encode(prompt)]
    if len(ids) >= model.config.context:
        raise ShapeError(
            f"prompt {number + 1} is {len(ids)} tokens long, but {model.name} has a context of {model.config.context}; "
            "shorten it, so that there is room to go on"
        )
    return ids


def stream(model: Model, prompt: str, options: Options) -> Iterator[str]:
    method, rules = chosen(options, DRAWN, CONTINUED, lambda word: spellings(model.tokenizer, word))
    if isinstance(method, Beam):
        if method.size > 1:
            raise ConfigError("a beam knows its best words only at the end, so they can't be streamed; leave beam_size out")
        method = Sampling(temperature=0)
    ids = prompt_ids(model, prompt)
    return _text_of(model.tokenizer, ids, stream_tokens(model.generator, Tokens(torch.tensor([ids], device=model.device)), method, rules))


def _text_of(tokenizer: Tokenizer, given: list[int], words: Iterator[int]) -> Iterator[str]:
    """Text as tokens come, never half a character."""
    written: list[int] = []
    said = 0
    for word in words:
        written.append(word)
        text = continuation(tokenizer, given, written)
        if not text.endswith("\ufffd"):
            yield text[said:]
            said = len(text)
    yield continuation(tokenizer, given, written)[said:]


def continuation(tokenizer: Tokenizer, given: Sequence[int], written: Sequence[int]) -> str:
    """The text of what was written after a prompt, with the space that may stand between them."""
    before, whole = tokenizer.decode(given), tokenizer.decode([*given, *written])
    return whole[len(before) :] if whole.startswith(before) else tokenizer.decode(written)


def _written(model: Model, source: Sequence[int], hypotheses: Sequence[Hypothesis], attention: bool) -> Written:
    best, *others = (_one(model, source, hypothesis, attention) for hypothesis in hypotheses)
    return best if not others else Written(**(vars(best) | {"alternatives": tuple(others)}))


def _one(model: Model, source: Sequence[int], hypothesis: Hypothesis, attention: bool) -> Written:
    writes, reads = model.tokenizer, model.source_tokenizer
    prompted = isinstance(model.network, LanguageModel)
    text = continuation(writes, source, hypothesis.tokens) if prompted else writes.decode(hypothesis.tokens)
    alignment, weights = attention_of(model, source, hypothesis) if attention else (None, None)
    return Written(
        text,
        tuple(writes.pieces(hypothesis.tokens)),
        hypothesis.tokens,
        hypothesis.log_probabilities,
        hypothesis.score,
        hypothesis.ended,
        tuple(reads.pieces(source)),
        alignment=alignment,
        attention=weights,
    )


def _joined(parts: Sequence[Written]) -> Written:
    """The translations of the parts of a text, one after the other."""
    return Written(
        " ".join(part.text for part in parts),
        tuple(token for part in parts for token in part.tokens),
        tuple(id for part in parts for id in part.ids),
        tuple(log for part in parts for log in part.log_probabilities),
        sum(part.score for part in parts),
        all(part.ended for part in parts),
        tuple(token for part in parts for token in part.source),
    )


@torch.inference_mode()
def attention_of(model: Model, source: Sequence[int], hypothesis: Hypothesis) -> tuple[Tensor | None, Attention]:
    """The weights behind a finished output: one more pass over it, with attention as the formula says, so they exist for any search."""
    network = model.network
    written = [*hypothesis.tokens, *([model.config.end_token] if hypothesis.ended else [])]
    with using("explicit"), record(network) as taps:
        if isinstance(network, LanguageModel):
            text = Tokens(torch.tensor([[*source, *written][:-1]], device=network.device))
            network(text, torch.tensor([len(source)], device=network.device) if network.config.mask == "prefix" else None)
            return None, Attention(decoder=_layers(taps, "decoder", "attention"))
        begun = [model.config.start_token, *written[:-1]]
        network(Tokens(torch.tensor([source], device=network.device)), Tokens(torch.tensor([begun], device=network.device)))
    if isinstance(network, Seq2Seq):
        shown = Attention(_layers(taps, "encoder", "attention"), _layers(taps, "decoder", "attention"), _layers(taps, "decoder", "cross"))
        return model.generator.looks(taps)[0].float().cpu(), shown
    if "decoder.attention.weights" not in taps:
        return None, Attention()  # a recurrent model without attention looks at nothing
    weights = taps["decoder.attention.weights"].float().cpu()  # (1, target, source)
    return weights[0], Attention(cross=weights[None])


def _layers(taps: Taps, stack: str, kind: str) -> Tensor:
    names = [name for name in taps if name.startswith(f"{stack}.layers.") and name.endswith(f".{kind}.weights")]
    return torch.cat([taps[name] for name in names]).float().cpu()  # (layers, heads, query, key)


def most_agreed(tokenizer: Tokenizer, hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
    """Minimum Bayes risk: best first those samples that are most like all the others, by chrF."""
    from sacrebleu.metrics.chrf import CHRF

    texts = [tokenizer.decode(hypothesis.tokens) for hypothesis in hypotheses]
    different = list(dict.fromkeys(texts))
    metric = CHRF()
    times = [texts.count(text) for text in different]
    gain = {
        text: sum(count * metric.sentence_score(text, [other]).score for other, count in zip(different, times, strict=True))
        for text in different
    }
    order = sorted(range(len(texts)), key=lambda index: (-gain[texts[index]], -hypotheses[index].log_probability, index))
    return [hypotheses[index] for index in order]

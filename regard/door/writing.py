"""Text from text: translations and continuations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.data.batch import Tokens
from regard.decoding.many import decode_many
from regard.decoding.rules import nothing_left
from regard.decoding.runner import stream as stream_tokens
from regard.decoding.search import Hypothesis
from regard.decoding.settings import Beam, Length, Method, Rules, Sampling
from regard.decoding.speculation import Speculation
from regard.decoding.tree import Tree
from regard.door.guessing import speculation_of
from regard.door.music import grammar_of
from regard.door.options import Options, chosen
from regard.door.parts import Parts, check_unsplit, in_parts, joined, numbers_of, split_of
from regard.door.results import Attention, Written
from regard.errors import ConfigError, ShapeError, nearest
from regard.models import LanguageModel, Seq2Seq
from regard.nn import record, using
from regard.nn.tap import Taps
from regard.text.tokenizer import Frame, Tokenizer

if TYPE_CHECKING:
    from regard.door import Model

CONTINUED = Rules(max_length=Length(plus=256))  # of a prompt, unless said otherwise
DRAWN = Sampling(temperature=0.8, top_p=0.95)
NO_OUTPUT = Written("", (), (), (), float("-inf"), ended=False)  # for a text where the rules left nothing to write

Beginnings = list[list[list[int]]]  # the tokens that each part of each text begins with
Prompt = str | list[int]  # a text, or its tokens as the model reads them


def translate(
    model: Model,
    texts: list[str],
    to: str | Sequence[str] | None,
    prefix: str | Sequence[str] | None,
    attention: bool,
    first: int,
    options: Options,
    numbers: Sequence[int] | None = None,
    tree: Tree | None = None,
) -> list[Written]:
    method, rules = chosen(options, Beam(), own_rules(model, Rules()), lambda word: spellings(model.tokenizer, word))
    tags = [language(model, each) for each in to] if isinstance(to, Iterable) and not isinstance(to, str) else language(model, to)
    parts = in_parts(model, texts, tags, first, split_of(model, options))
    ahead = speculation_of(model, options, method)
    found = _decoded(model, parts, prefixes_of(model, prefix, parts), method, rules, _numbers(texts, first, numbers), tree, ahead)
    if options.get("mbr"):
        found = [[most_agreed(model.tokenizer, hypotheses) for hypotheses in own] for own in found]
    each = list(chain.from_iterable(found))
    _check_found(each, rules)
    places = [number for number, own in enumerate(parts, first) for _ in own]
    answers = iter(written_all(model, [part.ids for own in parts for part in own], each, attention, places, rules))
    return [joined([next(answers) for _ in own], own) for own in parts]


def own_rules(model: Model, rules: Rules) -> Rules:
    """Tokens that stand for no text are never chosen, nor are those that the tokenizer does not know."""
    silent = model.tokenizer.special_ids - {model.config.end_token, *model.config.stop_tokens, *_opening(model)}
    unknown = range(model.tokenizer.size, model.config.vocabulary)
    grammar = grammar_of(model.tokenizer, model.config.vocabulary)
    return rules.model_copy(update={"never": tuple(sorted(silent)) + tuple(unknown), "grammar": grammar})


def _check_found(found: Sequence[Sequence[Hypothesis]], rules: Rules) -> None:
    """Where no text at all has an output, it is the rules that can't be kept."""
    if found and not any(found):
        raise ConfigError(nothing_left(rules))


def _numbers(texts: Sequence[Prompt], first: int, numbers: Sequence[int] | None) -> Sequence[int]:
    """What chance goes by for each text: its place, unless said otherwise."""
    if numbers is not None and len(numbers) != len(texts):
        raise ConfigError(f"{len(numbers)} numbers for {len(texts)} texts; give each its own")
    return range(first, first + len(texts)) if numbers is None else numbers


def _decoded(
    model: Model,
    parts: Parts,
    prefixes: Beginnings | None,
    method: Method,
    rules: Rules,
    given: Sequence[int],
    tree: Tree | None = None,
    speculation: Speculation | None = None,
) -> list[list[list[Hypothesis]]]:
    """The hypotheses for each part of each text."""
    numbers = [each for number, own in zip(given, parts, strict=True) for each in numbers_of(number, len(own))]
    begun = None if prefixes is None else list(chain.from_iterable(prefixes))
    sources = [part.ids for own in parts for part in own]
    decoded = decode_many(
        model.writer, sources, method, rules, prefixes=begun, numbers=numbers, tree=tree, speculation=speculation, kept=model.kept
    )
    found = iter(decoded)
    return [[next(found) for _ in own] for own in parts]


def language(model: Model, to: str | None) -> str | None:
    """The tag of the language to write; a model that knows several must be told."""
    tags = model.languages
    if to is None:
        if len(tags) > 1:
            raise ConfigError(f"{model.name} writes several languages; say which with to= (on the command line --to): {', '.join(tags)}")
        return tags[0] if tags else None
    if to not in tags:
        known = nearest(str(to), tags) if tags else "it writes one language only, so leave it out"
        raise ConfigError(f"{model.name} can't write {to!r}; {known}")
    return to


def spellings(tokenizer: Tokenizer, word: str) -> list[list[int]]:
    """The tokens of a word as it is and with a capital or a small first letter."""
    forms = dict.fromkeys((word, word[:1].upper() + word[1:], word[:1].lower() + word[1:]))
    ids = [tokenizer.encode(form) for form in forms]
    if not word.strip() or not ids[0] or tokenizer.unknown_id in ids[0]:
        raise ConfigError(f"{word!r} can't be written by this model at all; leave it out")
    return [form for form in ids if form and tokenizer.unknown_id not in form]


def _opening(model: Model) -> list[int]:
    """What an encoder-decoder from elsewhere writes before all else: BART's <s>."""
    frame = model.tokenizer.frame
    return [] if frame is None or model.config.kind == "lm" else [*frame.before]


def prefixes_of(model: Model, prefix: str | Sequence[str] | None, parts: Parts) -> Beginnings | None:
    opening = _opening(model)
    if prefix is None:
        return [[opening for _ in own] for own in parts] if opening else None
    texts = [prefix] * len(parts) if isinstance(prefix, str) else list(prefix)
    if not all(isinstance(text, str) for text in texts):
        raise ConfigError("a prefix is a text; give an empty one where there is none")
    if len(texts) != len(parts):
        raise ConfigError(f"{len(texts)} prefixes for {len(parts)} texts; give one for all, or each its own")
    # Only the first part of a text that was split begins with it.
    begun = [[*opening, *ids] for ids in model.tokenizer.encode_batch(texts)]
    for ids, own in zip(begun, parts, strict=True):
        # One stack holds what it has read as well.
        room = model.config.context - (len(own[0].ids) if own and isinstance(model.network, LanguageModel) else 0)
        if own and len(ids) > room:
            raise ConfigError(f"the prefix has {len(ids)} tokens, and {model.name} has room for {room}; shorten it")
    return [[ids, *(opening for _ in own[1:])][: len(own)] for ids, own in zip(begun, parts, strict=True)]


def generate(
    model: Model,
    prompts: Sequence[Prompt],
    attention: bool,
    first: int,
    options: Options,
    numbers: Sequence[int] | None = None,
    tree: Tree | None = None,
) -> list[Written]:
    check_unsplit(options)
    method, rules = chosen(options, DRAWN, own_rules(model, CONTINUED), lambda word: spellings(model.tokenizer, word))
    given = prompt_ids(model, prompts, first)
    ahead = speculation_of(model, options, method)
    chance = _numbers(prompts, first, numbers)
    found = decode_many(model.writer, given, method, rules, numbers=chance, tree=tree, speculation=ahead, kept=model.kept)
    _check_found(found, rules)
    if options.get("mbr"):
        found = [most_agreed(model.tokenizer, hypotheses) for hypotheses in found]
    return written_all(model, given, found, attention, range(first, first + len(given)), rules)


def prompt_ids(model: Model, prompts: Sequence[Prompt], first: int = 0) -> list[list[int]]:
    """The tokens of each prompt, after the start token (with a foreign tokenizer, as it reads them). There must be room to go on."""
    encoded = iter(model.tokenizer.encode_batch([prompt for prompt in prompts if isinstance(prompt, str)]))
    found = [framed_prompt(model, next(encoded)) if isinstance(each, str) else each for each in prompts]
    for number, ids in enumerate(found):
        if len(ids) >= model.config.context:
            raise ShapeError(
                f"{model.place(first + number)}: the prompt is {len(ids)} tokens long, but {model.name} has a context of "
                f"{model.config.context}; shorten it, so that there is room to go on"
            )
    return found


def framed_prompt(model: Model, ids: Sequence[int]) -> list[int]:
    """The tokens of a prompt as a language model reads them: after the start token, or with a foreign tokenizer as it has it."""
    start = Frame(before=(model.config.start_token,))
    return model.tokenizer.framed(ids, start) or [*start.before]


def stream(model: Model, prompt: str, options: Options) -> Iterator[str]:
    ids, words = stream_ids(model, prompt, options)
    return text_of(model.tokenizer, ids, words)


def stream_ids(model: Model, prompt: Prompt, options: Options) -> tuple[list[int], Iterator[int]]:
    """The tokens of a prompt, and those that continue it as they are chosen."""
    check_unsplit(options)
    method, rules = chosen(options, DRAWN, own_rules(model, CONTINUED), lambda word: spellings(model.tokenizer, word))
    several = next((name for name in ("mbr", "samples") if (options.get(name) or 1) > 1), None)  # type: ignore[operator]
    if several:
        raise ConfigError(f"{several} asks for several outputs, and one at a time can be streamed; leave it out")
    if isinstance(method, Beam):
        if method.size > 1:
            raise ConfigError("a beam knows its best words only at the end, so they can't be streamed; leave beam_size out")
        method = Sampling(temperature=0)
    [ids] = prompt_ids(model, [prompt])
    ahead = speculation_of(model, options, method)
    return ids, stream_tokens(model.writer, Tokens(torch.tensor([ids], device=model.device)), method, rules, speculation=ahead)


def text_of(tokenizer: Tokenizer, given: list[int], words: Iterator[int]) -> Iterator[str]:
    """Text as tokens come, never half a character."""
    written: list[int] = []
    said = 0
    for word in words:
        written.append(word)
        text = continuation(tokenizer, given, written)
        if not text.endswith("\ufffd"):
            yield text[said:]
            said = len(text)
    if rest := continuation(tokenizer, given, written)[said:]:
        yield rest


def continuation(tokenizer: Tokenizer, given: Sequence[int], written: Sequence[int]) -> str:
    """The text of what was written after a prompt, with the space that may stand between them."""
    return continuations(tokenizer, [given], [written])[0]


def continuations(tokenizer: Tokenizer, given: Sequence[Sequence[int]], written: Sequence[Sequence[int]]) -> list[str]:
    """The same for many, each after its own prompt."""
    before = tokenizer.decode_batch(given)
    whole = tokenizer.decode_batch([[*prompt, *words] for prompt, words in zip(given, written, strict=True)])
    return [
        text[len(prompt) :] if text.startswith(prompt) else tokenizer.decode(words)
        for prompt, text, words in zip(before, whole, written, strict=True)
    ]


def written(model: Model, source: Sequence[int], hypotheses: Sequence[Hypothesis], attention: bool, number: int, rules: Rules) -> Written:
    [answer] = written_all(model, [source], [hypotheses], attention, [number], rules)
    return answer


def written_all(
    model: Model,
    sources: Sequence[Sequence[int]],
    found: Sequence[Sequence[Hypothesis]],
    attention: bool,
    numbers: Sequence[int],
    rules: Rules,
) -> list[Written]:
    """What the hypotheses of each source say, the best of them with the others beside it. `numbers`: where each stands, for messages."""
    texts = iter(_texts(model, sources, found))
    answers = []
    for source, hypotheses, number in zip(sources, found, numbers, strict=True):
        if not hypotheses:
            model.warn(f"{model.place(number)}: {nothing_left(rules)}; it has no output")
            answers.append(NO_OUTPUT)
            continue
        read = tuple(model.source_tokenizer.pieces(source))
        best, *others = [_one(model, source, read, hypothesis, next(texts), attention) for hypothesis in hypotheses]
        answers.append(replace(best, alternatives=tuple(others)) if others else best)
    return answers


def _texts(model: Model, sources: Sequence[Sequence[int]], found: Sequence[Sequence[Hypothesis]]) -> list[str]:
    """That of every hypothesis, all in one go, during which other threads can work."""
    each = [hypothesis.tokens for hypotheses in found for hypothesis in hypotheses]
    if "generate" not in model.verbs:
        return model.tokenizer.decode_batch(each)
    given = [source for source, hypotheses in zip(sources, found, strict=True) for _ in hypotheses]
    return continuations(model.tokenizer, given, each)  # it goes on from its prompt; a translation begins anew


def _one(model: Model, source: Sequence[int], read: tuple[str, ...], hypothesis: Hypothesis, text: str, attention: bool) -> Written:
    alignment, weights = attention_of(model, source, hypothesis) if attention else (None, None)
    return Written(
        text,
        tuple(model.tokenizer.pieces(hypothesis.tokens)),
        hypothesis.tokens,
        hypothesis.log_probabilities,
        hypothesis.score,
        hypothesis.ended,
        read,
        alignment=alignment,
        attention=weights,
    )


@torch.inference_mode()
def attention_of(model: Model, source: Sequence[int], hypothesis: Hypothesis) -> tuple[Tensor | None, Attention]:
    """The weights behind a finished output: one more pass over it, with attention as the formula says, so they exist for any search."""
    network = model.generator
    written = [*hypothesis.tokens, *([model.config.end_token] if hypothesis.ended else [])]
    with using("explicit"), record(network) as taps:
        if isinstance(network, LanguageModel):
            text = Tokens(torch.tensor([[*source, *written][:-1]], device=network.device))
            network(text, torch.tensor([len(source)], device=network.device) if network.config.mask == "prefix" else None)
            weights = _layers(taps, "decoder", "attention")
            if "translate" not in model.verbs:
                return None, Attention(decoder=weights)
            return weights[-1].mean(0)[len(source) - 1 :, : len(source)], Attention(decoder=weights)  # who wrote each word, at the source
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

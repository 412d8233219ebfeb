"""How a trace is made: the text is answered as ever while a tree listens, then the finished output is read once more, as the formula says.

So there are weights for any search, and no answer changes by being looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import torch
from torch import Tensor

from regard.bundle import outline
from regard.config import ModelConfig, RnnConfig
from regard.data.batch import Tokens
from regard.decoding.ready import precision_of
from regard.decoding.settings import Beam, Rules, Sampling
from regard.decoding.tree import Tree
from regard.door.options import Options, chosen
from regard.door.parts import in_parts, split_of
from regard.door.reading import MASKED, around_masks, classify, embed, fill, masked_ids, text_ids
from regard.door.results import Filled, Labelled, Written
from regard.door.schemes import Schemes, schemes
from regard.door.sentence import likeliest, pieces, sentence
from regard.door.trace_tensors import Kept, Side, looks, recurrent_looks, recurrent_vectors, stack_vectors
from regard.door.trace_types import PARTS, LabelOutput, Output, Part, Search, Sentence, Target, Trace
from regard.door.writing import CONTINUED, DRAWN, generate, language, prompt_ids, translate
from regard.errors import ConfigError, RegardError, ShapeError, nearest
from regard.limits import MOST_CHOSEN_AMONG, within
from regard.models import LanguageModel, RnnSeq2Seq
from regard.nn import record, using
from regard.nn.layers import Stack
from regard.nn.tap import Taps

if TYPE_CHECKING:
    from regard.door import Model

Verb = Literal["translate", "generate", "fill", "classify", "embed"]
VERBS: tuple[Verb, ...] = get_args(Verb)
SIDES: dict[str, Side] = {"encoder": "source", "decoder": "target"}  # what each stack reads
KINDS: dict[str, tuple[str, Side, Side]] = {  # of attention: the stack that it is in, who looks, and at whom
    "encoder": ("encoder", "source", "source"),
    "decoder": ("decoder", "target", "target"),
    "cross": ("decoder", "target", "source"),
}


NAMES: dict[Part, set[str]] = {  # what modules call the intermediates of each part
    "weights": {"weights", "mask"},
    "scores": {"scores", "mask"},
    "qkv": {"query", "key", "value"},
    "vectors": {"embeddings", "placed", "input", "output", "states", "contexts"},
    "inner": {"inner"},
}


@dataclass(frozen=True)
class Wanted:
    """What of a pass is kept."""

    parts: tuple[Part, ...] = PARTS
    kept: Kept = field(default_factory=Kept)
    candidates: int = 10


def wanted(
    model: Model,
    parts: Sequence[str] | None,
    layers: Sequence[int] | None,
    heads: Sequence[int] | None,
    positions: Mapping[str, Sequence[int]] | None,
    candidates: int,
) -> Wanted:
    """What was asked for, if there can be such."""
    for part in parts or ():
        if part not in PARTS:
            raise ConfigError(f"a trace has no part {part!r}; {nearest(part, PARTS)}")
    for side in positions or ():
        if side not in ("source", "target"):
            raise ConfigError(f"positions of {side!r} were asked for; a trace has those of source and target")
    config = model.config
    most = 1 if isinstance(config, RnnConfig) else config.heads
    deepest = max(config.layers, getattr(config, "decoder_layers", None) or 0)
    for name, numbers, end in (("layers", layers, deepest), ("heads", heads, most)):
        wrong = next((number for number in numbers or () if not 0 <= number < end), None)
        if wrong is not None:
            raise ConfigError(f"{name}: there is no {wrong}; {model.name} has {end}, counted from 0")
    within("candidates", candidates, "how many words to keep for each position", 1, MOST_CHOSEN_AMONG)
    kept = Kept(_sorted(layers), _sorted(heads), {side: _sorted(own) or () for side, own in (positions or {}).items()})
    return Wanted(PARTS if parts is None else tuple(part for part in PARTS if part in parts), kept, candidates)


def _sorted(numbers: Sequence[int] | None) -> tuple[int, ...] | None:
    return None if numbers is None else tuple(sorted(set(numbers)))


@dataclass(frozen=True)
class Decoded:
    """What a model wrote and how it found it: enough to look into it again, at other parts, without writing it again."""

    answer: Written
    tree: Tree
    source: tuple[int, ...]  # the tokens of the text, or of the prompt
    tag: str | None  # the language


def trace(
    model: Model,
    text: str,
    to: str | None,
    verb: str | None,
    prefix: str | None,
    options: Options,
    parts: Wanted | None = None,
    decode: Callable[..., Decoded] | None = None,
) -> Trace:
    """`decode`: what to call instead of the function of that name, for who remembers what it gave."""
    if not isinstance(text, str):
        raise RegardError(f"a trace is of one text; got a {type(text).__name__}")
    if verb is not None and verb not in VERBS:
        raise ConfigError(f"there is no trace of {verb!r}; {nearest(verb, VERBS)}")
    verb = verb or default_verb(model, text)
    model.need(verb)
    parts = parts or Wanted()
    if verb in ("translate", "generate"):
        found = (decode or decoded)(model, text, to, verb, prefix, options)
        return _written(model, text, verb, options, parts, found)
    given = next((name for name, value in (("to", to), ("prefix", prefix), *options.items()) if value is not None), None)
    if given is not None:
        raise ConfigError(f"{given!r} is for models that write; leave it out for {verb}")
    return _read(model, text, verb, parts)


def default_verb(model: Model, text: str) -> Verb:
    """What a model is for: the first verb that it has, but no words are filled in where none is missing."""
    able = [verb for verb in VERBS if verb in model.verbs and (verb != "fill" or MASKED.search(text))]
    return able[0]


# Models that write


def decoded(model: Model, text: str, to: str | None, verb: str, prefix: str | None, options: Options) -> Decoded:
    """The answer as ever, while a tree listens. A trace is of one pass, so sentences are read together unless it is said otherwise."""
    tree = Tree()
    if verb == "translate":
        tag = language(model, to)
        options = Options(**{"split": "length", **options})
        own = in_parts(_silent(model), [text], tag, 0, split_of(model, options))[0]
        if not own:
            raise ShapeError("there is nothing in the text to trace; give some words")
        if len(own) > 1:
            raise ShapeError(
                f"the text has {len(own)} sentences, and each is translated in a pass of its own; trace one of them"
                if options["split"] == "sentences"
                else f"the text is longer than the {model.config.context} tokens that {model.name} reads at once; trace a shorter one"
            )
        source = own[0].ids
        [answer] = translate(model, [text], to, prefix, False, 0, options, tree=tree)
    else:
        if to is not None or prefix is not None:
            raise ConfigError("a language model goes on from its prompt: it takes neither a language nor a prefix; leave them out")
        tag, [source] = None, prompt_ids(model, [text])
        [answer] = generate(model, [text], False, 0, options, tree=tree)
    tree.close(answer.ids, answer.ended)
    return Decoded(answer, tree, tuple(source), tag)


def _written(model: Model, text: str, verb: str, options: Options, parts: Wanted, own: Decoded) -> Trace:
    answer, tree = own.answer, own.tree
    ended = () if not answer.ended else (model.config.end_token,) if tree.best is None else (tree.nodes[tree.best].word,)
    found = _taught(model, own.source, [*answer.ids, *ended], parts)
    search = _search(model, len(own.source), verb, options, tree) if "search" in parts.parts else None
    return Trace(_facts(model), verb, text, own.tag, answer, search=search, schemes=_schemes(model, parts), **found)


def _silent(model: Model) -> Model:
    """The same model, which has said already what there is to say of a text."""
    quiet = copy(model)
    quiet.warn = lambda message: None
    return quiet


@torch.inference_mode()
def _taught(model: Model, source: Sequence[int], written: Sequence[int], parts: Wanted) -> dict[str, Any]:
    """One pass over a finished output, all positions at once, with attention as the formula says, in the numbers that wrote it."""
    network, reads, writes = model.writer, model.source_tokenizer, model.tokenizer
    prompt = list(source) if isinstance(network, LanguageModel) else [model.config.start_token]
    begun = [*prompt, *written][:-1]
    target = Tokens(torch.tensor([begun], device=network.device))
    with using("explicit"), record(network, _filter(model, parts)) as taps:
        if isinstance(network, LanguageModel):
            ends = torch.tensor([len(source)], device=network.device) if network.config.mask == "prefix" else None
            logits = network(target, ends)
        else:
            logits = network(Tokens(torch.tensor([list(source)], device=network.device)), target)
    following = [*begun[1:], written[-1]]
    read = sentence(writes, begun)
    lines: dict[str, Sentence | None] = {
        "source": None if isinstance(network, LanguageModel) else sentence(reads, source),
        "target": Target(**vars(read), given=len(prompt), next=sentence(writes, following)),
    }
    output = None
    if "output" in parts.parts:
        output = likeliest(writes, logits[0], range(len(begun)), parts.candidates, following)
    return {**lines, "output": output, "alignment": _alignment(model, taps), **_inside(model, taps, parts, lines)}


def _alignment(model: Model, taps: Taps) -> Tensor | None:
    """How much each output token looked at each of the source: (outputs, source), the mean of the last layer's heads."""
    network = model.network
    if isinstance(network, RnnSeq2Seq):
        found = taps.get("decoder.attention.weights")
        return None if found is None else found[0].float().cpu()
    return None if isinstance(network, LanguageModel) else model.generator.looks(taps)[0].float().cpu()


def _search(model: Model, length: int, verb: str, options: Options, tree: Tree) -> Search:
    plain, rules = (Beam(), Rules()) if verb == "translate" else (DRAWN, CONTINUED)
    method, rules = chosen(options, plain, rules, lambda word: [[0]])
    name = "sampling" if isinstance(method, Sampling) and method.temperature > 0 else "beam"
    if name == "beam" and (isinstance(method, Sampling) or (method.size == 1 and not method.coverage)):
        name = "greedy"
    held: dict[str, Any] = {"max_length": rules.max_length.of(length)}
    if rules.min_length.of(length):
        held["min_length"] = rules.min_length.of(length)
    if rules.no_repeat:
        held["no_repeat"] = rules.no_repeat
    if rules.repetition_penalty != 1:
        held["repetition_penalty"] = rules.repetition_penalty
    for rule in ("ban", "require"):
        words = options.get(rule)
        if words:
            held[rule] = [words] if isinstance(words, str) else list(cast(Sequence[str], words))
    tokens = ["", *pieces(model.tokenizer, [node.word for node in tree.nodes[1:]])]
    return Search(cast(Any, name), method.model_dump(), held, tree, tuple(tokens))


# Models that read


def _read(model: Model, text: str, verb: str, parts: Wanted) -> Trace:
    answer: Labelled | Filled | Tensor
    if verb == "fill":
        ids = masked_ids(model, around_masks(model, text, 0), 0)
        [answer] = fill(model, [text], parts.candidates, 0)
    else:
        [ids] = text_ids(_silent(model), [text], 0)
        answer = classify(model, [text], 0)[0] if verb == "classify" else embed(model, [text], None, None, 0)[0]
    found = _once(model, ids, verb, parts)
    return Trace(_facts(model), verb, text, None, answer, schemes=_schemes(model, parts), **found)


@torch.inference_mode()
def _once(model: Model, ids: Sequence[int], verb: str, parts: Wanted) -> dict[str, Any]:
    encoder, tokens = model.encoder, Tokens(torch.tensor([list(ids)], device=model.device))
    with using("explicit"), record(encoder, _filter(model, parts)) as taps:
        states = encoder(tokens)
        output: Output | LabelOutput | None = None
        if "output" in parts.parts and verb == "fill":
            places = [place for place, id in enumerate(ids) if id == model.tokenizer.mask_id]
            output = likeliest(model.tokenizer, encoder.fill(states[0, places]), places, parts.candidates, None)
        elif "output" in parts.parts and verb == "classify":
            pooled, logits = encoder.pool(states, tokens)[0], encoder.classify(states, tokens)[0]
            output = LabelOutput(tuple(encoder.config.labels), logits.float().cpu(), pooled.float().cpu())
    lines: dict[str, Sentence | None] = {"source": sentence(model.tokenizer, ids), "target": None}
    return {**lines, "output": output, **_inside(model, taps, parts, lines)}


# All of them


def _filter(model: Model, parts: Wanted) -> Callable[[str], bool]:
    """Which intermediates are kept during the pass, by name; the rest is gone as soon as it was used."""
    names: set[str] = set()
    for part in parts.parts:
        names |= NAMES.get(part, set())
    kept = parts.kept.layers
    last = f"decoder.layers.{(getattr(model.config, 'decoder_layers', None) or model.config.layers) - 1}.cross.weights"

    def keeps(name: str) -> bool:
        if name in (last, "decoder.attention.weights"):  # the alignment comes from it
            return True
        *path, what = name.split(".")
        layer = int(path[path.index("layers") + 1]) if "layers" in path else None
        return what in names and (kept is None or layer is None or layer in kept)

    return keeps


def _inside(model: Model, taps: Taps, parts: Wanted, lines: Mapping[str, Sentence | None]) -> dict[str, Any]:
    """Attention of every kind and the vectors of every stack."""
    lengths = {side: len(line.ids) for side, line in lines.items() if line is not None}
    kept, network, asked = parts.kept, model.network, set(parts.parts)
    attention, vectors = {}, {}
    if isinstance(network, RnnSeq2Seq):
        if "weights" in asked and "decoder.attention.weights" in taps:
            attention["cross"] = recurrent_looks(taps, lengths["target"])
        if "vectors" in asked:
            vectors = {stack: recurrent_vectors(taps, stack, kept, side, lengths[side]) for stack, side in SIDES.items()}
        return {"attention": attention, "vectors": vectors}
    stacks = {name: module for name, module in network.named_children() if isinstance(module, Stack)}
    if asked & {"weights", "scores", "qkv"}:
        for kind, (stack, query, key) in KINDS.items():
            if stack in stacks and key in lengths:
                found = looks(taps, stacks[stack], kind, kept, query, key, lengths[query], weights="weights" in asked)
                attention |= {} if found is None else {kind: found}
    if asked & {"vectors", "inner"}:
        vectors = {name: stack_vectors(taps, name, stack, kept, SIDES[name], lengths[SIDES[name]]) for name, stack in stacks.items()}
    return {"attention": attention, "vectors": vectors}


def _schemes(model: Model, parts: Wanted) -> Schemes | None:
    return schemes(model.network) if "schemes" in parts.parts else None


def _facts(model: Model) -> dict[str, Any]:
    """What the model is, as a trace says it."""
    config = model.config
    stacks = {"seq2seq": ("encoder", "decoder"), "rnn": ("encoder", "decoder"), "lm": ("decoder",), "encoder": ("encoder",)}[config.kind]
    deep = {"encoder": config.layers, "decoder": getattr(config, "decoder_layers", None) or config.layers}
    precision = precision_of(model.network if config.kind == "encoder" else model.writer)
    facts: dict[str, Any] = {
        "name": model.name,
        "kind": config.kind,
        "written_in": precision,
        "traced_in": precision,  # what is shown is read by what wrote it
        "verbs": list(model.verbs),
        "languages": list(model.languages),
        "layers": {stack: deep[stack] for stack in stacks},
        "width": config.width,
        "vocabulary": config.vocabulary,
        "parameters": _parameters(config),
        "tied": config.tied,
        "cell": config.cell if isinstance(config, RnnConfig) else None,
    }
    same = ("heads", "feedforward", "activation", "norm", "norm_place", "norm_epsilon", "positions", "window")
    if isinstance(config, RnnConfig):
        return facts | dict.fromkeys((*same, "kv_heads", "head_width", "embedding_scale", "attention_scale"))
    scale = config.key_width**-0.5 if config.attention_scale is None else config.attention_scale
    facts |= {name: getattr(config, name) for name in same}
    facts |= {"kv_heads": config.kv_heads or config.heads, "head_width": config.key_width, "attention_scale": scale}
    return facts | {"embedding_scale": config.width**0.5 if config.embedding_scale else 1.0}


def _parameters(config: ModelConfig) -> int:
    """A model packed for a CPU has its weights elsewhere: shapes tell."""
    return sum(parameter.numel() for parameter in outline(config).parameters())

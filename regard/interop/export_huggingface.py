"""A bundle as a Hugging Face folder, which `AutoModel…` and `AutoTokenizer` load: the same tokens, and the same logits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import processors
from torch import Tensor

from regard.bundle import TOKENIZER, outline
from regard.config import EncoderConfig, LanguageModelConfig, ModelConfig, Seq2SeqConfig, change
from regard.data.batch import Tokens
from regard.interop.architectures import Part
from regard.interop.counterparts import Counterpart, counterpart_of
from regard.interop.original import CONTINUED, SAME, ExportError, Original, Report, in_batches, largest, needed
from regard.interop.rewriting import Form
from regard.models import Encoder, Network
from regard.text.tokenizer import MASK, Tokenizer

CLOSE = 1e-5  # of logits
AUTO = {"seq2seq": "AutoModelForSeq2SeqLM", "lm": "AutoModelForCausalLM"}
HEADS = {"labels": "AutoModelForSequenceClassification", "masked-words": "AutoModelForMaskedLM", "none": "AutoModel"}


def refuse(config: ModelConfig, tokenizer: Tokenizer | None, head: str | None) -> None:
    """An error where the model has no counterpart there."""
    needed("transformers")
    form = Form(config, dict(outline(config).state_dict()))
    counterpart_of(_with_head(form, head), own_words=_is_ours(tokenizer))


def write(original: Original, out: Path, head: str | None) -> Report:
    """Writes the folder, loads it again, and tries it against the original."""
    transformers = needed("transformers")
    with _quietly(transformers):
        form = _with_head(Form(original.config, dict(original.network.state_dict())), head)
        counterpart, form = counterpart_of(form, own_words=_is_ours(original.tokenizer))
        theirs = made(transformers, counterpart, form)
        _say_how_to_generate(theirs, original)
        theirs.save_pretrained(out)
        if original.tokenizer is not None:
            _write_tokenizer(original, original.tokenizer, out)
        return _tried(transformers, original, form.config, out, type(theirs).__name__).checked()


def _is_ours(tokenizer: Tokenizer | None) -> bool:
    return tokenizer is not None and tokenizer.frame is None


def head_of(config: EncoderConfig, wanted: str | None) -> str:
    """What the exported encoder is for: labels where it has them, else masked words, else vectors, unless said otherwise."""
    has = {"labels": bool(config.labels), "masked-words": config.masked_words, "none": True}
    if wanted is not None and not has[wanted]:
        raise ExportError(f"the model has no head for {wanted}; it has {', '.join(name for name, there in has.items() if there)}")
    return wanted or next(name for name, there in has.items() if there)


def _with_head(form: Form, wanted: str | None) -> Form:
    """An encoder with the one head that it is exported with: a class of theirs has one."""
    if not isinstance(form.config, EncoderConfig):
        if wanted is not None:
            raise ExportError("heads are an encoder's, and this model is none; leave the head out")
        return form
    head = head_of(form.config, wanted)
    gone = {"labels": ("masked_words.",), "masked-words": ("classifier.",), "none": ("masked_words.", "classifier.")}[head]
    settings: dict[str, Any] = {"labels": form.config.labels if head == "labels" else (), "masked_words": head == "masked-words"}
    if head == "masked-words" or (head == "none" and form.config.pooler_activation != "tanh"):
        settings["pooler"], gone = False, (*gone, "pooler.")  # theirs has none, or another
    return Form(change(form.config, **settings), {name: tensor for name, tensor in form.tensors.items() if not name.startswith(gone)})


def _auto(transformers: Any, config: ModelConfig) -> Any:
    if isinstance(config, EncoderConfig):
        return getattr(transformers, HEADS[head_of(config, None)])
    return getattr(transformers, AUTO[config.kind])


def made(transformers: Any, counterpart: Counterpart, form: Form) -> Any:
    """Their model with our weights."""
    config = transformers.AutoConfig.for_model(counterpart.model_type, **counterpart.config(form.config))
    bare = isinstance(form.config, EncoderConfig) and _auto(transformers, form.config) is transformers.AutoModel
    more = {"add_pooling_layer": form.config.pooler} if bare and isinstance(form.config, EncoderConfig) else {}
    theirs = _auto(transformers, form.config).from_config(config, **more).float().eval()
    state = theirs.state_dict()
    given = {_name(theirs, state, name): tensor for name, tensor in _their_tensors(counterpart, form)}
    unknown = sorted(given.keys() - state.keys())
    assert not unknown, f"{counterpart.name} has no place for {unknown}"
    same = {name: (tensor.data_ptr(), tensor.shape) for name, tensor in state.items()}
    filled = {same[name] for name in given}
    left = sorted(name for name in state if same[name] not in filled and not name.endswith(("final_logits_bias", "embed_positions.weight")))
    assert not left, f"nothing was given to {left}"
    _set_apart(theirs, list(given))
    theirs.load_state_dict(given, strict=False)
    return theirs


def _set_apart(theirs: Any, names: list[str]) -> None:
    """A parameter of its own for each that is given its own values: T5 shares some whatever its config says."""
    seen: set[int] = set()
    for name in names:
        place, _, last = name.rpartition(".")
        module = theirs.get_submodule(place)
        tensor = getattr(module, last)
        if id(tensor) in seen and isinstance(tensor, torch.nn.Parameter):
            setattr(module, last, torch.nn.Parameter(tensor.detach().clone()))
        seen.add(id(tensor))


def _name(theirs: Any, state: dict[str, Tensor], name: str) -> str:
    """As a model with a head has it, which puts something before the names of the bare one."""
    whole = f"{theirs.base_model_prefix}.{name}"
    return name if name in state else whole


def _their_tensors(counterpart: Counterpart, form: Form) -> Iterator[tuple[str, Tensor]]:
    config, left = form.transformer, dict(form.tensors)
    for part in counterpart.parts(config.model_dump()):
        if part.ours == "token_types.weight" and part.ours not in left:
            yield part.theirs[0], torch.zeros(1, config.width)  # theirs must have one kind of token at least
            continue
        tensor = left.pop(part.ours)
        yield from zip(part.theirs, taken_apart(part, tensor, config.heads, config.kv_heads or config.heads), strict=True)
        if part.theirs == ("cls.predictions.bias",):  # which it has under two names
            yield "cls.predictions.decoder.bias", tensor
        if part.theirs == ("shared.weight",) and not config.tied:  # nothing is shared there then
            yield "encoder.embed_tokens.weight", tensor
            yield "decoder.embed_tokens.weight", tensor
    assert not left, f"{counterpart.name} has no place for {sorted(left)}"


def taken_apart(part: Part, tensor: Tensor, heads: int, kv_heads: int) -> list[Tensor]:
    """A tensor of ours as those of theirs that it is made of: what `Part.convert` joins."""
    if part.flat:
        tensor = tensor[None]
    if part.skip:
        tensor = torch.cat((tensor.new_zeros(part.skip, tensor.shape[1]), tensor))
    unit = tensor.shape[0] // (heads + 2 * kv_heads)
    sizes = [unit * heads, unit * kv_heads, unit * kv_heads] if len(part.theirs) == 3 else tensor.shape[0] // len(part.theirs)
    pieces = tensor.split(sizes) if len(part.theirs) > 1 else [tensor]
    return [(piece.T if part.transposed else piece).contiguous() for piece in pieces]


def _say_how_to_generate(theirs: Any, original: Original) -> None:
    """Greedy, and never a token that stands for no text."""
    config = original.config
    if isinstance(config, EncoderConfig):
        return
    settings = theirs.generation_config
    settings.pad_token_id, settings.bos_token_id = config.pad_token, config.start_token
    ends = [config.end_token, *config.stop_tokens]
    settings.eos_token_id = ends if len(ends) > 1 else ends[0]
    settings.suppress_tokens = list(original.never) or None
    settings.max_length = config.context + isinstance(config, Seq2SeqConfig)  # theirs counts the start token, which is not written
    if isinstance(config, Seq2SeqConfig):
        settings.decoder_start_token_id = config.start_token
        settings.forced_bos_token_id = original.opening[0] if original.opening else None
    for name in ("forced_eos_token_id", "encoder_no_repeat_ngram_size", "bad_words_ids"):
        if getattr(settings, name, None) is not None:
            setattr(settings, name, None)


def _write_tokenizer(original: Original, tokenizer: Tokenizer, out: Path) -> None:
    """tokenizer.json, with what our family puts around a text, and the names of the special tokens beside it."""
    library = tokenizers.Tokenizer.from_str(tokenizer.library_json())
    if tokenizer.frame is None:
        library.post_processor = _template(original)
    library.save(str(out / TOKENIZER))
    config, names = original.config, library.id_to_token
    special = {"pad_token": names(tokenizer.pad_id), "bos_token": names(config.start_token), "eos_token": names(config.end_token)}
    roles = getattr(tokenizer, "roles", None)
    mask = library.token_to_id(MASK) if roles is None else roles.mask
    if mask is not None:
        special["mask_token"] = names(mask)
    if tokenizer.unknown_id is not None:
        special["unk_token"] = names(tokenizer.unknown_id)
    if isinstance(config, EncoderConfig):
        special |= {"cls_token": names(tokenizer.start_id), "sep_token": names(tokenizer.end_id)}
    tags = [f"<to:{tag}>" for tag in tokenizer.tags]
    settings = special | {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": original.room,
        "padding_side": "left" if isinstance(config, LanguageModelConfig) else "right",
        "clean_up_tokenization_spaces": bool(roles is not None and roles.tidy),
        "model_input_names": ["input_ids", "attention_mask"],
    }
    if tags:
        settings["extra_special_tokens"] = tags
    chat = getattr(roles, "chat", None)
    if chat:
        (out / "chat_template.jinja").write_text(chat, encoding="utf-8")
    for file, content in (("tokenizer_config.json", settings), ("special_tokens_map.json", special)):
        (out / file).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _template(original: Original) -> Any:
    before, after = ([original.names[id] for id in side] for side in (original.frame.before, original.frame.after))
    ids = [(original.names[id], id) for id in dict.fromkeys((*original.frame.before, *original.frame.after))]
    return processors.TemplateProcessing(
        single=[*before, "$A", *after], pair=[*before, "$A", *after, "$B:1", *(f"{name}:1" for name in after)], special_tokens=ids
    )


@torch.inference_mode()
def _tried(transformers: Any, original: Original, config: ModelConfig, folder: Path, name: str) -> Report:
    """Logits are compared in float64, where two ways to the same number don't end apart by rounding alone."""
    if original.tokenizer is not None:
        _try_tokenizer(transformers, original, folder)
    theirs = _auto(transformers, config).from_pretrained(folder).eval()
    texts = len(original.rows)
    if isinstance(config, EncoderConfig):
        difference, same = _read_there(theirs.double(), original, config)
        measured = "logits" if config.labels or config.masked_words else "vectors"
        return Report(name, texts, measured, difference, CLOSE, same, SAME)
    written = [_generated(theirs, original, *pair) for pair in zip(original.rows, original.written, strict=True)]
    same, others = original.compare(written)
    return Report(name, texts, "logits", _written_there(theirs.double(), original), CLOSE, same, SAME, others)


def _given(tokens: Tokens) -> dict[str, Tensor]:
    assert tokens.real is not None
    return {"input_ids": tokens.ids, "attention_mask": tokens.real.long()}


def _written_there(theirs: Any, original: Original) -> float:
    """How far its logits are from ours, for prompts or for what we wrote."""
    prompts = isinstance(original.config, LanguageModelConfig)
    difference = 0.0
    for rows, begun in in_batches(original.rows, original.rows if prompts else original.begun):
        source, target = original.padded(rows), original.padded(begun)
        ours = original.exact(target) if prompts else original.exact(source, target)
        got = theirs(**_given(source), **({} if prompts else {"decoder_input_ids": target.ids})).logits
        difference = max(difference, largest(ours, got, target.real))
    return difference


def _read_there(theirs: Any, original: Original, config: EncoderConfig) -> tuple[float, int]:
    """How far its logits or vectors are from ours, and how many texts it reads in the same way."""
    difference, same = 0.0, 0
    for (rows,) in in_batches(original.rows):
        tokens = original.padded(rows)
        ours, got, real = _read(original.exact, config, tokens, theirs(**_given(tokens)))
        agree = ours.argmax(-1) == got.argmax(-1)  # (rows,), or of every token
        same += int(agree.sum() if real is None else (agree | ~real).all(1).sum())
        difference = max(difference, largest(ours, got, real))
    return difference, same


def _read(encoder: Network, config: EncoderConfig, tokens: Tokens, theirs: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    """What an encoder makes of texts here and there, and which of it counts."""
    assert isinstance(encoder, Encoder)
    states = encoder(tokens)
    if config.labels:
        return encoder.classify(states, tokens), theirs.logits, None
    if config.masked_words:
        return encoder.fill(states), theirs.logits, tokens.real
    return states, theirs.last_hidden_state, tokens.real


def _generated(theirs: Any, original: Original, row: list[int], wanted: list[int]) -> list[int]:
    """What their own greedy search writes, with room for one word more than we wrote."""
    room = CONTINUED if isinstance(original.config, LanguageModelConfig) else min(len(wanted) + 1, original.config.context)
    ids = torch.tensor([row])
    found = theirs.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, num_beams=1, max_new_tokens=max(1, room), max_length=None
    )[0].tolist()
    found = found[len(row) :] if isinstance(original.config, LanguageModelConfig) else found[1:]
    ends = {original.config.end_token, *original.config.stop_tokens}
    return found[: next((place for place, id in enumerate(found) if id in ends), len(found))]


def _try_tokenizer(transformers: Any, original: Original, folder: Path) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer = original.tokenizer
    assert tokenizer is not None
    for number, text in enumerate(original.sentences):
        tag = original.tag(number)
        wanted = tokenizer.framed(tokenizer.encode(text, tag), original.frame)
        got = theirs(text if tag is None else f"<to:{tag}>{text}")["input_ids"]
        if got != wanted:
            raise ExportError(f"AutoTokenizer gives other tokens for {text!r}: {got} instead of {wanted}; please report this")
        if theirs.decode(wanted, skip_special_tokens=True) != tokenizer.decode(wanted):
            shown = theirs.decode(wanted, skip_special_tokens=True)
            raise ExportError(f"AutoTokenizer makes {shown!r} of tokens that are {tokenizer.decode(wanted)!r}; please report this")


@contextmanager
def _quietly(transformers: Any) -> Iterator[None]:
    """Without their bars and warnings: ours are the messages here."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()

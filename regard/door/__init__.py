"""The public door: a bundle loaded as a model that takes text and gives answers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, Unpack, get_args, overload

import torch
from torch import Tensor

from regard.bundle import SOURCE_TOKENIZER, load_bundle
from regard.config import ModelConfig
from regard.decoding.follow import Followed
from regard.decoding.kept import Kept
from regard.decoding.ready import WrittenIn
from regard.decoding.verify import Verification
from regard.door.options import Options
from regard.door.results import Attention, Choice, Filled, Labelled, Scored, Written
from regard.door.verbs import hint, verbs_of
from regard.errors import BundleError, ConfigError, RegardError, RegardWarning, nearest
from regard.models import Encoder, Generator, Network
from regard.shipped import find_bundle
from regard.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from regard.door.judging import Evaluation, Progress
    from regard.door.trace_types import Trace
    from regard.door.wordvectors import WordVectors
    from regard.recipe import DataFile

__all__ = ["Attention", "Choice", "Filled", "Labelled", "Model", "Options", "Scored", "Written", "load"]

Answer = TypeVar("Answer")
N = TypeVar("N", bound=Network)
Texts = str | Iterable[str]
# On a CPU, oneDNN keeps a kernel for every shape that it has met, 1024 of them unless told otherwise. Texts have many lengths: memory would
# grow for a hundred thousand lines. So few are as fast, and it stays flat.
KERNELS_KEPT = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128", "LRU_CACHE_CAPACITY": "128"}
KIND_NAMES = {"seq2seq": "an encoder-decoder", "rnn": "a recurrent encoder-decoder", "lm": "a language model", "encoder": "an encoder"}


def load(name: str | Path, *, device: torch.device | str | None = None, precision: WrittenIn = "auto", backend: str = "sdpa") -> Model:
    """The model of a bundle, ready to be used, on a GPU where there is one.

    `name`: the folder of the bundle or of the run that made it, or a model that comes with regard, such as "translator". `precision`: on a
    GPU as it was saved, unless said otherwise. On a CPU float32, but what is written is written in int8 where that is faster and next to
    nothing is lost; "int8" and "float32" make sure of either.
    """
    for setting, most in KERNELS_KEPT.items():
        os.environ.setdefault(setting, most)
    if precision not in get_args(WrittenIn):
        raise ConfigError(f"precision = {precision!r} is unknown; {nearest(str(precision), get_args(WrittenIn))}")
    folder = find_bundle(name)
    device = _usable(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if precision in ("float32", "float16", "bfloat16"):
        dtype = getattr(torch, precision)
    else:  # half precision is stored to save space; a CPU computes faster without it
        dtype = torch.float32 if device.type == "cpu" else None
    with torch.inference_mode(False):  # or else nobody could tell later whether a weight was edited
        bundle = load_bundle(folder, device=device, dtype=dtype, backend=backend)
    tokenizer = None if bundle.tokenizer is None else Tokenizer.load(bundle.tokenizer)
    source = None if bundle.source_tokenizer is None else Tokenizer.load(bundle.source_tokenizer)
    model = Model(bundle.model, tokenizer, source, name=str(name), precision=precision, bundle=folder)
    model._follow()
    return model


def _usable(device: torch.device | str) -> torch.device:
    try:
        found = torch.empty(0, device=device).device
        if found.type == "meta":
            raise RuntimeError("it holds shapes alone, and no numbers")
        return found
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # whichever its library raises
        why = str(error).partition("\n")[0]
        raise ConfigError(f"the device {str(device)!r} can't be used here ({why}); leave it out, or take cpu") from None


class Model:
    """A model that takes text: whatever its family can do, for one text or for many.

    Every verb takes one text and gives one answer, or many and gives a list. No answer depends on the other texts, in int8 as in
    float32; in half precision on a GPU sums are added up otherwise, so that a near tie may fall otherwise in other company, and
    `load(…, precision="float32")` makes sure that it does not. Where texts are part of something longer, `first` is the number of the
    first one, by which chance and messages go. `warn` is told when a text was too long or had to be cut, and `place` says where a text
    stands, for messages.
    """

    def __init__(
        self,
        network: Network,
        tokenizer: Tokenizer | None,
        source_tokenizer: Tokenizer | None = None,
        name: str = "the model",
        *,
        precision: WrittenIn | None = None,
        bundle: Path | None = None,
    ) -> None:
        """`network`: to look into and to edit. `precision`: as for `load`, or none: it runs itself. `bundle`: whence it was just loaded."""
        self.network, self.name = network, name
        self._followed = Followed(network, precision, bundle)
        self._tokenizer, self._source_tokenizer = tokenizer, source_tokenizer
        self.kept = Kept() if self.device.type == "cuda" else None  # what a GPU has recorded; kept.clear() gives its memory back
        self.warn: Callable[[str], None] = _as_warning
        self.place: Callable[[int], str] = _place
        own_source = getattr(network.config, "source_vocabulary", None)  # where source and target have a vocabulary each
        if own_source is not None and tokenizer is not None and source_tokenizer is None:
            raise BundleError(f"{name} lacks {SOURCE_TOKENIZER}, with which it reads; copy the bundle again from where it came")
        for side, vocabulary in ((tokenizer, network.config.vocabulary), (source_tokenizer, own_source or network.config.vocabulary)):
            if side is not None and max(side.size, side.pad_id + 1) > vocabulary:
                raise BundleError(
                    f"{name}: its tokenizer has {side.size} tokens and the model {vocabulary}; they don't belong together, "
                    "so copy both again from where they came"
                )

    def __repr__(self) -> str:
        millions = sum(parameter.numel() for parameter in self.network.parameters()) / 1e6
        what = f"{KIND_NAMES[self.config.kind]}, {millions:.3g} million parameters, on {self.device}"
        return f"<Model {self.name}: {what}; {', '.join(self.verbs)}>"

    @property
    def config(self) -> ModelConfig:
        return self.network.config

    @property
    def device(self) -> torch.device:
        return self.network.device

    @property
    def verbs(self) -> tuple[str, ...]:
        """What this model can do."""
        return verbs_of(self.config)

    @property
    def languages(self) -> tuple[str, ...]:
        """What it can be told to write, as tags for `to`."""
        return self.source_tokenizer.tags

    @property
    def tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise BundleError(f"{self.name} has no tokenizer, so it takes token ids and not text; use its network, or add a tokenizer.json")
        return self._tokenizer

    @property
    def source_tokenizer(self) -> Tokenizer:
        return self._source_tokenizer or self.tokenizer

    # Writing

    @overload
    def translate(self, texts: str, to: str | None = ..., *, prefix: str | Sequence[str] | None = ..., attention: bool = ...,
                  first: int = ..., **options: Unpack[Options]) -> Written: ...  # fmt: skip
    @overload
    def translate(self, texts: Iterable[str], to: str | Sequence[str] | None = ..., *, prefix: str | Sequence[str] | None = ...,
                  attention: bool = ..., first: int = ..., numbers: Sequence[int] | None = ...,
                  **options: Unpack[Options]) -> list[Written]: ...  # fmt: skip
    def translate(
        self,
        texts: Texts,
        to: str | Sequence[str] | None = None,
        *,
        prefix: str | Sequence[str] | None = None,
        attention: bool = False,
        first: int = 0,
        numbers: Sequence[int] | None = None,
        **options: Unpack[Options],
    ) -> Written | list[Written]:
        """Translations, by beam search unless sampling is asked for (`temperature=…`).

        `to`: the language, for a model that knows several; one for all texts, or each its own. `prefix`: what each must begin with.
        `attention`: with the weights behind it. `numbers`: what chance goes by for each text, where that is not its place.
        """
        from regard.door.writing import translate

        return self._each("translate", texts, lambda many: translate(self, many, to, prefix, attention, first, options, numbers))

    @overload
    def generate(self, texts: str = ..., *, attention: bool = ..., first: int = ..., **options: Unpack[Options]) -> Written: ...
    @overload
    def generate(self, texts: Iterable[str], *, attention: bool = ..., first: int = ..., numbers: Sequence[int] | None = ...,
                 **options: Unpack[Options]) -> list[Written]: ...  # fmt: skip
    def generate(
        self,
        texts: Texts = "",
        *,
        attention: bool = False,
        first: int = 0,
        numbers: Sequence[int] | None = None,
        **options: Unpack[Options],
    ) -> Written | list[Written]:
        """Continuations of prompts, by sampling unless a beam is asked for (`beam_size=…`)."""
        from regard.door.writing import generate

        return self._each("generate", texts, lambda many: generate(self, many, attention, first, options, numbers))

    def stream(self, prompt: str = "", **options: Unpack[Options]) -> Iterator[str]:
        """The continuation of a prompt, piece by piece as it is written."""
        from regard.door.writing import stream

        self.need("generate")
        return stream(self, self._text("stream", prompt), options)

    def chat(self, messages: Sequence[Mapping[str, str]], **options: Unpack[Options]) -> Written:
        """The reply to a conversation, whose messages each have a "role" (system, user or assistant) and a "content"."""
        from regard.door.chat import chat

        return chat(self, messages, options)

    def stream_chat(self, messages: Sequence[Mapping[str, str]], **options: Unpack[Options]) -> Iterator[str]:
        """The same, piece by piece as it is written. `regard.door.chat.Conversation` keeps what was said."""
        from regard.door.chat import stream_chat

        return stream_chat(self, messages, options)

    # Reading

    @overload
    def classify(self, texts: str, *, first: int = ...) -> Labelled: ...
    @overload
    def classify(self, texts: Iterable[str], *, first: int = ...) -> list[Labelled]: ...
    def classify(self, texts: Texts, *, first: int = 0) -> Labelled | list[Labelled]:
        """The label of each text."""
        from regard.door.reading import classify

        return self._each("classify", texts, lambda many: classify(self, many, first))

    @overload
    def fill(self, texts: str, *, choices: int = ..., first: int = ...) -> Filled: ...
    @overload
    def fill(self, texts: Iterable[str], *, choices: int = ..., first: int = ...) -> list[Filled]: ...
    def fill(self, texts: Texts, *, choices: int = 5, first: int = 0) -> Filled | list[Filled]:
        """The words that belong where a text says [MASK] (or <mask>): one token each, which over bytes may be part of a word."""
        from regard.door.reading import fill

        return self._each("fill", texts, lambda many: fill(self, many, choices, first))

    def embed(self, texts: Texts, *, pooling: str | None = None, normalise: bool | None = None, first: int = 0) -> Tensor:
        """A vector for each text: (width,), or (texts, width).

        `pooling`: "mean" or "first" token; `normalise`: whether vectors have length 1; by default both as the model was made.
        """
        from regard.door.reading import embed

        self.need("embed")
        vectors = embed(self, self._texts("embed", texts), pooling, normalise, first)
        return vectors[0] if isinstance(texts, str) else vectors

    def vectors(self, text: str) -> WordVectors:
        """What each token of a text is at every depth: `model.vectors("by the bank").of("bank")` is (1 + layers, width), static first."""
        from regard.door.wordvectors import vectors

        self.need("embed")
        return vectors(self, self._text("vectors", text))

    # Judging

    @overload
    def score(self, sources: str, targets: str | None = ..., *, to: str | None = ..., first: int = ...) -> Scored: ...
    @overload
    def score(
        self, sources: Iterable[str], targets: Iterable[str] | None = ..., *, to: str | None = ..., first: int = ...
    ) -> list[Scored]: ...
    def score(self, sources: Texts, targets: Texts | None = None, *, to: str | None = None, first: int = 0) -> Scored | list[Scored]:
        """How likely the model finds given targets for given sources; a language model: given texts.

        The sum is log P of the target's tokens and of the end token after them: for what `translate` wrote, its own `log_probability`.
        Three cases differ. What was written in int8 has the numbers of int8, and is judged in float32. An output that was cut off (`ended`
        is false) had no end token. And an output may be made of other tokens than its text is when read again ("un"+"der" for "under";
        spaces, unknown words): `tokens` of both tell, and the score is that of the text as read, mostly a little lower.
        """
        from regard.door.judging import score

        if targets is not None and isinstance(targets, str) != isinstance(sources, str):
            raise RegardError("sources and targets are both one text, or both many")
        wanted = None if targets is None else self._texts("score", targets, "targets")
        return self._each("score", sources, lambda many: score(self, many, wanted, to, first))

    def evaluate(
        self,
        data: str | Path | DataFile,
        *,
        to: str | None = None,
        root: Path | None = None,
        limit: int | None = None,
        tokenize: str = "13a",
        stride: int | None = None,
        progress: Progress | None = None,
        **options: Unpack[Options],
    ) -> Evaluation:
        """How good the model is on a data file: BLEU, chrF and TER, perplexity, or accuracy. Rows with an empty side are left out.

        `root`: where the file is looked for; `limit`: the first so many rows alone; `tokenize`: sacreBLEU's tokenizer; `progress`: told how
        many are done, and of how many; `options`: those of `translate`. `stride`: a language model reads all lines as one text, by a
        window as long as its context that moves on by so many tokens.
        """
        from regard.door.judging import evaluate
        from regard.recipe import DataFile

        self.need("evaluate")
        if not isinstance(data, str | os.PathLike | DataFile):
            raise RegardError(f"evaluate takes a file of examples, by its path or as a DataFile; got {_named(data)}")
        return evaluate(self, data, to, root=root, limit=limit, tokenize=tokenize, stride=stride, progress=progress, **options)

    # Looking inside

    def trace(
        self,
        text: str = "",
        to: str | None = None,
        *,
        verb: str | None = None,
        prefix: str | None = None,
        parts: Sequence[str] | None = None,
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        positions: Mapping[str, Sequence[int]] | None = None,
        candidates: int = 10,
        **options: Unpack[Options],
    ) -> Trace:
        """Every intermediate of one pass, by name, and the answer, which is the same as without looking. docs/trace.md says what is there.

        `verb`: what to do with the text, by default what the model is for; `parts`, `layers`, `heads` and `positions` (of "source" and
        "target"): only these; `candidates`: how many words to keep for each position; `options`: those of the verb.
        """
        from regard.door.trace_making import trace, wanted

        return trace(self, self._text("trace", text), to, verb, prefix, options, wanted(self, parts, layers, heads, positions, candidates))

    def _each(self, verb: str, texts: Texts, work: Callable[[list[str]], list[Answer]]) -> Answer | list[Answer]:
        self.need(verb)
        found = work(self._texts(verb, texts))
        return found[0] if isinstance(texts, str) else found

    def _texts(self, verb: str, texts: Texts, what: str = "texts") -> list[str]:
        if isinstance(texts, str):
            return [texts]
        if not isinstance(texts, Iterable) or isinstance(texts, bytes | bytearray | memoryview):
            raise RegardError(f"{verb} takes a text or several as {what}; got {_named(texts)}")
        many = list(texts)
        for index, text in enumerate(many):
            if not isinstance(text, str):
                raise RegardError(f'{verb}: {what}[{index}] is {_named(text)}, not a text; leave it out, or give "" in its place')
        return many

    def _text(self, verb: str, text: str) -> str:
        if not isinstance(text, str):
            raise RegardError(f"{verb} takes one text; got {_named(text)}")
        return text

    def need(self, verb: str) -> None:
        """An error that says what the model can do, where it can't do this."""
        if verb not in self.verbs:
            can = ", ".join(self.verbs[:-1]) + (" and " if len(self.verbs) > 1 else "") + self.verbs[-1]
            raise RegardError(f"{self.name} is {KIND_NAMES[self.config.kind]}: it can {can}, but not {verb}{hint(verb, self.config)}")

    # The network, and the copies of it that are fast

    @property
    def generator(self) -> Generator:
        """The network that judges and is looked into, as it is now."""
        return self._running(self._followed.reader(), Generator)  # type: ignore[type-abstract]

    @property
    def writer(self) -> Generator:
        """The one that writes: the same, or a faster one in int8."""
        return self._running(self._followed.writer(), Generator)  # type: ignore[type-abstract]

    @property
    def encoder(self) -> Encoder:
        return self._running(self._followed.reader(), Encoder)

    def _running(self, network: Network, kind: type[N]) -> N:
        self._follow()
        assert isinstance(network, kind)
        return network

    def refresh(self) -> None:
        """Says that a weight was edited where that can't be seen, as through NumPy. All other edits are followed without being told."""
        self._followed.refresh()
        self._follow()

    def verify(self) -> Verification | None:
        """How far the copy that is run is from the network as it is defined, part by part; None where the network itself is run."""
        self._followed.refresh()
        self._follow()
        return self._followed.prepared().verification

    def _follow(self) -> None:
        """After an edit: what was recorded of copies that are gone is given up, and what there is to say is said."""
        if not self._followed.news:
            return
        if self.kept is not None:
            self.kept.clear()
        for note in self._followed.told():
            self.warn(f"{self.name}: {note}")


def _named(value: object) -> str:
    """What was given where a text was wanted."""
    if value is None or (isinstance(value, float) and value != value):
        return str(value)  # what a table says where a cell is empty
    return f"{type(value).__name__} (decode them first)" if isinstance(value, bytes | bytearray) else type(value).__name__


def _place(number: int) -> str:
    return f"text {number + 1}"


def _as_warning(message: str) -> None:
    import warnings

    warnings.warn(message, RegardWarning, stacklevel=2)

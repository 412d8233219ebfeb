"""Any number of sources: those of like length together, as many as fit the machine, and the results in the order they came in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor

from regard.config import RnnConfig
from regard.data.batch import Tokens
from regard.decoding.crew import ENOUGH, beside, crew_for, watched
from regard.decoding.kept import Kept
from regard.decoding.line import Found, decode_in_lines, lines_of
from regard.decoding.replay import on_its_device
from regard.decoding.runner import check_wishes, decode
from regard.decoding.search import Hypothesis
from regard.decoding.settings import Beam, Method, Rules, Sampling
from regard.decoding.speculation import Speculation
from regard.decoding.table import SLACK, comes_and_goes
from regard.decoding.tree import Tree
from regard.errors import RegardError, given_up_without_memory, out_of_memory
from regard.models import Encoder, Generator, LanguageModel, Network

ROWS = {"cpu": 128, "cuda": 2048}  # hypotheses at once, more of which would only wait for each other
TOKENS = {"cpu": 8192, "cuda": 131072}  # read at once, padding included
READ_TOKENS = {"cpu": 1024, "cuda": 131072}  # by an encoder, with nothing to write after: more would not stay in a CPU's caches
CACHE_BYTES = {"cpu": 2 << 30, "cuda": 16 << 30}  # of a GPU no more than an eighth, since there may be several at work

Result = TypeVar("Result")


def decode_many(
    model: Generator,
    sources: Sequence[Sequence[int]],
    method: Method | None = None,
    rules: Rules | None = None,
    *,
    prefixes: Sequence[Sequence[int]] | None = None,
    numbers: Sequence[int] | None = None,
    tree: Tree | None = None,
    speculation: Speculation | None = None,
    kept: Kept | None = None,
) -> list[list[Hypothesis]]:
    """What `decode` gives for each source, whatever else is decoded with it, but for rounding in half precision.

    Nothing where the rules leave nothing to write. `speculation`: for a source that is alone. `kept`: tables that a GPU recorded before.
    """
    method, rules = method or Beam(), rules or Rules()
    load, speculation = Load(model, method, rules), speculation if len(sources) == 1 else None

    def decoded(part: Sequence[int]) -> list[list[Hypothesis]]:
        crew = min(len(part), crew_for(len(part) * load.hypotheses)) if load.on_cpu and tree is None else 1
        if crew == 1:
            return decoded_whole(part)
        size = -(-len(part) // crew)
        pieces = [part[start : start + size] for start in range(0, len(part), size)]
        return list(chain.from_iterable(beside(decoded_whole, pieces)))

    def decoded_whole(part: Sequence[int]) -> list[list[Hypothesis]]:
        tokens = _together([sources[index] for index in part], model)
        begun = None if prefixes is None else [prefixes[index] for index in part]
        own = part if numbers is None else [numbers[index] for index in part]
        return decode(model, tokens, method, rules, prefixes=begun, numbers=own, partial=True, tree=tree, speculation=speculation)

    def decoded_in_batches(left: Sequence[int]) -> list[list[Hypothesis]]:
        lengths = [len(sources[index]) for index in left]
        return in_batches(lengths, load.fits, lambda part: decoded([left[place] for place in part]), freed)

    def freed() -> None:
        if kept is not None:
            kept.clear()
        torch.cuda.empty_cache()

    check_wishes(model, rules, prefixes)
    found: Found = {}
    tables = crew_for(ENOUGH * torch.get_num_threads()) if load.on_cpu else 1
    laid = None if watched(load.kind) else kept  # or else others would be given what holds for this thread alone
    many = len(sources) > tables * load.seats(max(map(len, sources), default=0), tables)
    if sources and tree is None and speculation is None and comes_and_goes(model, method) and (many or laid is not None):
        lines, seats = lines_of(sources, tables, prefixes, numbers), partial(load.seats, tables=tables)
        with given_up_without_memory():
            decode_in_lines(model, lines, seats, method, rules, found, laid)
        if len(found) < len(sources):
            freed()  # and not within the exception, which would hold on to the table and its memory
    left = [index for index in range(len(sources)) if index not in found]
    found |= zip(left, decoded_in_batches(left), strict=True)
    return [found[index] for index in range(len(sources))]


class Load:
    """What so many sources at once ask of the machine."""

    def __init__(self, model: Generator, method: Method, rules: Rules) -> None:
        self.kind, self.rules, self.context, self.bytes = model.device.type, rules, model.config.context, _bytes_per_word(model)
        self.room = _cache_room(model.device)
        self.hypotheses = method.samples if isinstance(method, Sampling) else method.size
        self.read = method.samples if isinstance(method, Sampling) else 1  # each sample reads the source anew

    @property
    def on_cpu(self) -> bool:
        return self.kind == "cpu"

    def fits(self, count: int, longest: int) -> bool:
        """Whether so many sources of such a length are not too much."""
        return self._within(count, longest, ROWS.get(self.kind, 128)) and self._cached(count, longest) <= self.room

    def seats(self, longest: int, tables: int = 1) -> int:
        """How many sources of such a length one of several tables has room for."""
        rows, bytes = ENOUGH if self.on_cpu else ROWS.get(self.kind, 128), self.room / tables / SLACK
        count = 1
        while self._within(count + 1, longest, rows) and self._cached(count + 1, longest) <= bytes:
            count += 1
        return count

    def _within(self, count: int, longest: int, rows: int) -> bool:
        return count * self.hypotheses <= rows and count * self.read * longest <= TOKENS.get(self.kind, 8192)

    def _cached(self, count: int, longest: int) -> int:
        written = min(self.rules.max_length.of(longest), self.context)
        return count * (self.read * longest + self.hypotheses * written) * self.bytes


def _cache_room(device: torch.device) -> int:
    room = CACHE_BYTES.get(device.type, 2 << 30)
    return min(room, torch.cuda.get_device_properties(device).total_memory // 8) if device.type == "cuda" else room


def _together(sequences: Sequence[Sequence[int]], model: Network) -> Tokens:
    tokens = Tokens.pad(sequences, model.config.pad_token, device=model.device)
    alike = len({len(sequence) for sequence in sequences}) == 1  # no padding, and so no mask to look at
    return Tokens(tokens.ids) if alike else tokens


def _bytes_per_word(model: Network) -> int:
    """What a cache keeps of one word of one hypothesis."""
    config = model.config
    if isinstance(config, RnnConfig):
        return 0
    width = (config.kv_heads or config.heads) * config.key_width
    return 2 * (getattr(config, "decoder_layers", None) or config.layers) * width * model.dtype.itemsize


def in_batches(
    lengths: Sequence[int],
    fits: Callable[[int, int], bool],
    work: Callable[[Sequence[int]], list[Result]],
    free: Callable[[], None] = torch.cuda.empty_cache,
) -> list[Result]:
    """Does the work for groups of numbers of like length, the longest first, and puts the results in order.

    `fits` says whether so many of such a length are not too much; one alone always is done. What a GPU has no memory for is tried again
    once some has been freed, and then halved.
    """
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    found: dict[int, Result] = {}
    start = 0
    while start < len(order):
        longest, count = lengths[order[start]], 1
        while start + count < len(order) and fits(count + 1, longest):
            count += 1
        part = order[start : start + count]
        found |= dict(zip(part, _halving(part, work, free), strict=True))
        start += count
    return [found[index] for index in range(len(lengths))]


def _halving(part: Sequence[int], work: Callable[[Sequence[int]], list[Result]], free: Callable[[], None]) -> list[Result]:
    with given_up_without_memory():
        return work(part)
    free()  # and not within the exception, which would hold on to what it was working with
    if len(part) > 1:
        middle = len(part) // 2
        return _halving(part[:middle], work, free) + _halving(part[middle:], work, free)
    try:
        return work(part)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        machine = "the GPU" if isinstance(error, torch.OutOfMemoryError) else "this machine"
        raise RegardError(
            f"{machine} has too little memory for one text; allow shorter outputs, a smaller beam or fewer samples"
        ) from error


@torch.inference_mode()
@on_its_device
def score_many(model: Generator, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
    """The log-probability of each token of each target, given its source (a language model: given what comes before), in one pass."""

    def scored(part: Sequence[int]) -> list[list[float]]:
        wanted = Tokens.pad([targets[index] for index in part], device=model.device)
        if isinstance(model, LanguageModel):
            given = [len(sources[index]) for index in part]
            texts = Tokens.pad([[*sources[index], *targets[index]][:-1] for index in part], device=model.device)
            prefix = torch.tensor(given, device=model.device) if model.config.mask == "prefix" else None
            logits = _right_parts(model(texts, prefix), given, wanted.ids.shape[1])
        else:
            source = Tokens.pad([sources[index] for index in part], device=model.device)
            begun = [[model.config.start_token, *targets[index][:-1]] for index in part]
            logits = model(source, Tokens.pad(begun, device=model.device))
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        found = (logits.gather(2, wanted.ids[..., None]).squeeze(2) - logits.logsumexp(-1)).tolist()
        return [row[: len(targets[index])] for row, index in zip(found, part, strict=True)]

    lengths = [max(len(source), len(target)) for source, target in zip(sources, targets, strict=True)]
    if isinstance(model, LanguageModel):
        lengths = [len(source) + len(target) for source, target in zip(sources, targets, strict=True)]
    # Logits over the vocabulary in float32 are what takes the memory.
    budget = max(1, (256 << 20) // (4 * model.config.vocabulary))
    return in_batches(lengths, lambda count, longest: count * longest <= budget, scored)


def _right_parts(logits: Tensor, given: Sequence[int], count: int) -> Tensor:
    """For each row the logits from its own place on: (rows, length, vocabulary) to (rows, count, vocabulary)."""
    starts = torch.tensor(given, device=logits.device)[:, None] - 1
    places = (starts + torch.arange(count, device=logits.device)).clamp(max=logits.shape[1] - 1)
    return logits.gather(1, places[..., None].expand(-1, -1, logits.shape[2]))


@torch.inference_mode()
@on_its_device
def read_many(model: Encoder, texts: Sequence[Sequence[int]], use: Callable[[Tensor, Tokens], Tensor]) -> list[Tensor]:
    """What `use` makes of the states (rows, length, width) of each text: a row of a tensor each, on the host."""

    def worked(part: Sequence[int]) -> list[Tensor]:
        tokens = _together([texts[index] for index in part], model)
        return list(use(model(tokens), tokens).float().cpu())

    most = READ_TOKENS.get(model.device.type, 1024)
    return in_batches([len(text) for text in texts], lambda count, longest: count * longest <= most, worked)

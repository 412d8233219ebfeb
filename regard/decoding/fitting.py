"""The range that the numbers of each product in 8 bits are rounded in: found by looking at what a model works with on random words."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn

from regard.data.batch import Tokens
from regard.decoding.pack import PackedProjection
from regard.decoding.products import Int8Product
from regard.models import Encoder, Generator, LanguageModel, Network, Seq2Seq

LINES, WORDS = 8, 16  # enough for the middle of what rows have
FIRST = 32  # ids: where special tokens stand, whose rows are often the largest


def products_of(model: nn.Module) -> Iterator[Int8Product]:
    """Those that were made so far, each once."""
    found: dict[object, None] = {}
    for module in model.modules():
        made = module.laid.products() if isinstance(module, PackedProjection) else (getattr(module, "product", None),)
        found |= dict.fromkeys(made)
    yield from (each for each in found if isinstance(each, Int8Product))


@torch.inference_mode()
def fit(model: Network) -> None:
    """Gives products of a packed model their ranges: always the same ones for the same weights.

    What falls out of a range may be cut off, so the largest rows have to be among those looked at: whatever stands first in a line and in
    the vocabulary, where special tokens are. What reads a source, once for all that is written of it, has a range only where nothing is
    looked for: else a scale for each row, which is finest, is worth what it costs. So it is for an encoder alone.
    """
    if isinstance(model, Encoder):
        return
    assert isinstance(model, Generator)
    config, chance = model.config, torch.Generator().manual_seed(1)
    length = min(WORDS, config.context)

    def words(vocabulary: int) -> Tokens:
        ids = torch.randint(vocabulary, (length, LINES), generator=chance)
        first = min(FIRST, vocabulary, ids.numel())
        ids.view(-1)[:first] = torch.arange(first)  # one after another at the beginnings of lines
        return Tokens(ids.T.contiguous())

    source, target = words(getattr(config, "source_vocabulary", None) or config.vocabulary), words(config.vocabulary)

    def read() -> None:
        states = model.encode(source).states
        if isinstance(model, Seq2Seq) and states is not None:
            model.decoder.keys_values(states)

    def write() -> None:
        if isinstance(model, LanguageModel):
            model(target)
        else:
            model(source, target)

    read()
    write()  # now all products are there, which are made when they are first asked for
    own = set() if isinstance(model, LanguageModel) else _seen(model, read)
    _seen(model, write)
    for product in products_of(model):
        product.fit()
        if product in own and not product.cuts:
            product.forget()


def _seen(model: nn.Module, work: Callable[[], None]) -> set[Int8Product]:
    """The products that a work is done with."""
    for product in products_of(model):
        product.look()
    work()
    return {product for product in products_of(model) if product.seen}

"""The range that the numbers of each product in 8 bits are rounded in: found by looking at what a model works with on random words."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from regard.data.batch import Tokens
from regard.decoding.pack import PackedProjection
from regard.decoding.products import Int8Product
from regard.models import Encoder, LanguageModel, Network, RnnSeq2Seq, Seq2Seq

LINES, WORDS = 4, 12  # enough for the middle of what rows have


def products_of(model: Network) -> Iterator[Int8Product]:
    """Those that were made so far, each once."""
    found: dict[object, None] = {}
    for module in model.modules():
        made = module.laid.products() if isinstance(module, PackedProjection) else (getattr(module, "product", None),)
        found |= dict.fromkeys(made)
    yield from (each for each in found if isinstance(each, Int8Product))


@torch.inference_mode()
def fit(model: Network) -> None:
    """Gives each product of a packed model its range: always the same one for the same weights.

    It changes how finely numbers are rounded and how fast that is, and nothing can fall out of it: a row that does not fit is rounded by
    itself.
    """
    for product in products_of(model):
        product.forget()
    config, chance = model.config, torch.Generator().manual_seed(1)
    length = min(WORDS, config.context)

    def words(vocabulary: int) -> Tokens:
        return Tokens(torch.randint(vocabulary, (LINES, length), generator=chance))

    if isinstance(model, Seq2Seq | RnnSeq2Seq):
        model(words(getattr(config, "source_vocabulary", None) or config.vocabulary), words(config.vocabulary))
    elif isinstance(model, LanguageModel | Encoder):
        model(words(config.vocabulary))
    for product in products_of(model):
        product.fit()

"""What benchmarks of decoding share: the base model, whether contenders found equally likely words, and a table of their speeds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from regard.decoding.many import score_many
from regard.models import Generator, Network

Turns = dict[str, dict[str, list[float]]]  # column: contender: each of its turns


def marian(words: int) -> Any:
    """The paper's base model with random weights, as a Hugging Face model."""
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=words, d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8, decoder_attention_heads=8,
        encoder_ffn_dim=2048, decoder_ffn_dim=2048, activation_function="relu", scale_embedding=True, max_position_embeddings=512,
        pad_token_id=words - 1, eos_token_id=0, bos_token_id=1, decoder_start_token_id=words - 1, forced_eos_token_id=None,
    )  # fmt: skip
    model = MarianMTModel(config).eval()
    with torch.no_grad():  # at birth all words are about as likely; make some likelier, so that there is something to search
        for layer in model.model.decoder.layers:
            layer.fc2.weight.mul_(8)
    model.generation_config.bad_words_ids = None
    return model


def check(model: Network, sources: Sequence[Sequence[int]], outputs: Mapping[str, list[list[int]]], close: Mapping[str, float]) -> None:
    """Near ties tip in any precision, so words may differ; how likely they are by the one model given may not, beyond such a share."""
    assert isinstance(model, Generator)
    means = {name: statistics.fmean(sum(row) / len(row) for row in score_many(model, sources, found)) for name, found in outputs.items()}
    best = max(means.values())
    for name, mean in means.items():
        if best - mean > close[name] * abs(best):
            raise SystemExit(f"{name} wrote less likely words: {mean:.4f} a token, where {best:.4f} was found; nothing to compare")


def show(title: str, results: Turns) -> None:
    """Medians (smallest … largest), and the ratios of the first contender's turns to those of each other."""
    names = list(next(iter(results.values())))
    print(f"{title:34}" + "".join(f"{column:>28}" for column in results))
    for name in names:
        print(f"{name:34}" + "".join(f"{_spread(turns[name], ',.0f'):>28}" for turns in results.values()))
    for name in names[1:]:
        ratios = [[mine / theirs for mine, theirs in zip(turns[names[0]], turns[name], strict=True)] for turns in results.values()]
        print(f"{f'ratio to {name}':34}" + "".join(f"{_spread(own, '.2f'):>28}" for own in ratios))


def _spread(turns: Sequence[float], digits: str) -> str:
    return f"{statistics.median(turns):{digits}} ({min(turns):{digits}} … {max(turns):{digits}})"

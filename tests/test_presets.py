"""The shapes that people know have the counts that people know."""

from __future__ import annotations

import pytest
import torch

from regard.models import build
from regard.presets import PRESETS, preset
from regard.view.summary import summarise


@pytest.mark.parametrize(("name", "count"), [("gpt2", 124_439_808), ("bert-base", 109_482_240), ("t5-small", 60_506_624)])
def test_published_counts(name: str, count: int) -> None:
    assert summarise(preset(name)).parameters == count


@pytest.mark.parametrize(("name", "layers", "d", "ff"), [("transformer-base", 6, 512, 2048), ("transformer-big", 6, 1024, 4096)])
def test_the_papers_table_3_by_hand(name: str, layers: int, d: int, ff: int) -> None:
    attention = 4 * (d * d + d)  # W^Q, W^K, W^V and W^O, with biases
    feedforward = d * ff + ff + ff * d + d
    norm = 2 * d
    encoder = layers * (attention + feedforward + 2 * norm)
    decoder = layers * (2 * attention + feedforward + 3 * norm)
    embedding = 37000 * d  # one matrix for source, target and output
    assert summarise(preset(name)).parameters == encoder + decoder + embedding
    assert round(summarise(preset(name)).parameters / 1e6) == {"transformer-base": 63, "transformer-big": 214}[name]


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_can_be_built(name: str) -> None:
    config = preset(name)
    with torch.device("meta"):
        model = build(config)
    assert model.config == config
    assert sum(parameter.numel() for parameter in model.parameters()) == summarise(config).parameters


def test_the_names_the_notes_need_are_there() -> None:
    assert {"transformer-base", "transformer-big", "gpt2", "bert-base", "t5-small", "llama-tiny", "rnn-attention", "rnn-plain"} <= set(
        PRESETS
    )

"""Settings: wrong ones are named, with a remedy."""

from __future__ import annotations

import json
from typing import Any

import pytest

from regard.config import LanguageModelConfig, change, parse_model
from regard.errors import ConfigError
from regard.presets import PRESETS, preset


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"heads": 7}, r"heads = 7 does not divide width = 512; choose heads from \[1, 2, 4, 8\] or set head_width yourself"),
        ({"kv_heads": 3}, "kv_heads = 3 does not divide heads = 8"),
        ({"widht": 256}, r"unknown key 'widht'; did you mean 'width'\?"),
        ({"zzz": 1}, "unknown key 'zzz'; known: activation, "),
        ({"layers": 0}, "'layers' = 0: Input should be greater than 0"),
        ({"layers": "many"}, "'layers' = 'many': Input should be a valid integer"),
        ({"positions": "rotory"}, "'positions' = 'rotory': Input should be 'sinusoidal', 'learned', 'rotary'"),
        ({"dropout": 1.0}, "'dropout' = 1.0: Input should be less than 1"),
        ({"positions": "rotary", "head_width": 63}, "the head width is 63; make it even"),
        ({"width": 9, "heads": 3}, "width is 9; make it even"),
        ({"kind": "seq2seq", "window": 4}, "window is for kind = 'lm' and 'encoder'"),
        ({"kind": "sequence"}, "kind = 'sequence' is no model family"),
        ({"kind": "rnn", "width": 9}, "make it even"),
        ({"kind": "rnn", "heads": 4}, "unknown key 'heads'"),
        ({"positions": "rotary", "rotary_scaling": {"kind": "linear", "factr": 2}}, "'rotary_scaling.factor' is missing"),
        ({"positions": "rotary", "rotary_scaling": {"kind": "linear", "factor": 2, "lo": 1}}, r"unknown key 'rotary_scaling\.lo'"),
        ({"vocabulary": None}, "'vocabulary' = None"),
        ({"kind": []}, r"kind = \[\] is no model family"),
        ({"layers": 10**6}, "'layers' = 1000000: Input should be less than or equal to 1024"),
        ({"vocabulary": 3, "start_token": 3}, "start_token = 3 is not in a vocabulary of 3; set it too"),
        ({"positions": "relative", "relative_buckets": 2}, "relative_buckets = 2 must be 4 or more"),
        ({"positions": "relative", "relative_distance": 16}, "relative_buckets = 32 must be 4 or more and less than twice"),
        ({"rotary_scaling": {"kind": "llama3", "factor": 2, "low_frequency": 4.0}}, "low_frequency = 4.0 must be below"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_named(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_model({"kind": "lm", "vocabulary": 100} | settings)


def test_a_missing_setting_is_named() -> None:
    with pytest.raises(ConfigError, match="'vocabulary' is missing"):
        parse_model({"kind": "lm"})
    with pytest.raises(ConfigError, match="kind = None is no model family"):
        parse_model({})


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_config_survives_json(name: str) -> None:
    config = preset(name)
    assert parse_model(json.loads(json.dumps(config.model_dump(mode="json")))) == config


def test_a_config_can_be_changed_and_is_checked_again() -> None:
    config = change(preset("gpt2"), layers=2)
    assert isinstance(config, LanguageModelConfig)
    assert config.layers == 2
    with pytest.raises(ConfigError, match="does not divide"):
        change(config, heads=5)


def test_an_unknown_preset_is_named() -> None:
    with pytest.raises(ConfigError, match=r"preset 'transformer-bse' is unknown; did you mean 'transformer-base'\?"):
        preset("transformer-bse")

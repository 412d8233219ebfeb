"""Pictures of traces: what is drawn is what is in the trace, for every family, as PNG and as SVG."""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from regard.door import Model
from regard.door.schemes import schemes
from regard.door.trace_types import Trace
from regard.errors import ConfigError, RegardError, installing
from regard.models import build
from regard.presets import preset
from regard.view.plots import alignment, attention_grid, attention_table, head_entropy, positions, save, write_plots

Models = Callable[[str], Model]


@pytest.fixture
def trace(model: Models) -> Trace:
    return model("translator").trace("3 1 4 1 5", "back")


def shown(figure: object) -> list[torch.Tensor]:
    """The numbers of every heat map of a figure."""
    return [torch.tensor(image.get_array().filled(-1)) for axes in figure.axes for image in axes.images]  # type: ignore[attr-defined]


def texts(path: Path) -> set[str]:
    return {"".join(each.itertext()).strip() for each in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")}


@pytest.mark.parametrize(
    ("name", "text", "files"),
    [
        ("translator", "3 1 4", {"attention-encoder", "attention-decoder", "attention-cross", "alignment", "entropy", "positions"}),
        ("recurrent", "3 1 4", {"alignment", "positions"}),
        ("recurrent_plain", "3 1 4", {"positions"}),
        ("writer", "the cat", {"attention-decoder", "entropy", "positions"}),
        ("critic", "a lovely film", {"attention-encoder", "entropy", "positions"}),
    ],
)
def test_all_pictures_of_every_family(model: Models, tmp_path: Path, name: str, text: str, files: set[str]) -> None:
    own = model(name).trace(text, "back" if name == "translator" else None, **({"max_length": 6} if name == "writer" else {}))
    for svg in (False, True):
        written = write_plots(own, tmp_path / "pictures", svg=svg)
        assert {path.stem for path in written} == files
        for path in written:
            if svg:
                assert texts(path)
            else:
                header = path.read_bytes()[:24]
                assert header[:8] == b"\x89PNG\r\n\x1a\n"
                width, height = struct.unpack(">II", header[16:])
                assert 300 < width < 4000
                assert 200 < height < 4000


def test_the_grid_has_every_layer_and_head(trace: Trace) -> None:
    own = trace.attention["decoder"]
    drawn = shown(attention_grid(trace, "decoder"))
    assert own.weights is not None
    assert own.mask is not None
    assert len(drawn) == own.weights.shape[0] * own.weights.shape[1]
    for image, weights in zip(drawn, own.weights.flatten(0, 1), strict=True):
        assert torch.equal(image, weights.masked_fill(~own.mask, -1))  # masked cells are not drawn, which is not the same as zero


def test_the_grid_names_its_tokens_where_they_can_be_read(trace: Trace, tmp_path: Path) -> None:
    assert trace.source is not None
    assert trace.target is not None
    said = texts(save(attention_grid(trace, "cross"), tmp_path / "grid.svg"))
    assert said >= {token.strip() for token in (*trace.source.tokens, *trace.target.next.tokens)}
    own = trace.attention["cross"]
    assert own.weights is not None
    many = 60
    wide = replace(own, weights=own.weights.repeat(1, 1, 1, many), mask=None)
    source = replace(trace.source, tokens=trace.source.tokens * many)
    said = texts(save(attention_grid(replace(trace, source=source, attention={"cross": wide}), "cross"), tmp_path / "wide.svg"))
    assert not said & {"<to:back>", "<end>"}
    assert any("too many tokens to be named" in each for each in said)


def test_a_table_says_words_and_numbers(trace: Trace, tmp_path: Path) -> None:
    assert trace.source is not None
    assert trace.target is not None
    own = trace.attention["cross"].weights
    assert own is not None
    said = texts(save(attention_table(trace, "cross", 0, 2), tmp_path / "table.svg"))
    assert said >= {token.strip() for token in (*trace.source.tokens, *trace.target.next.tokens)}
    assert said >= {f"{value:.2f}" for value in own[0, 2].flatten().tolist()}
    assert "cross attention, layer 1, head 3" in said
    torch.testing.assert_close(shown(attention_table(trace, "cross", 0))[0], own[0].mean(0))
    torch.testing.assert_close(shown(alignment(trace))[0], trace.alignment)


def test_text_is_no_formula(trace: Trace, tmp_path: Path) -> None:
    assert trace.source is not None
    tokens = tuple(f"$x^{number}_" if number % 2 else "a$b$c" for number in range(len(trace.source.tokens)))
    strange = replace(trace, source=replace(trace.source, tokens=tokens))
    assert "a$b$c" in texts(save(alignment(strange), tmp_path / "table.svg"))


def test_entropy_is_what_torch_says(trace: Trace) -> None:
    for own in trace.attention.values():
        assert own.weights is not None
        found = head_entropy(own)
        assert found.shape == own.weights.shape[:2]
        assert bool(((found >= 0) & (found <= 1 + 1e-6)).all())
    cross = trace.attention["cross"]
    assert cross.weights is not None
    expected = torch.distributions.Categorical(probs=cross.weights.double()).entropy().mean(-1)
    torch.testing.assert_close(head_entropy(cross), expected / torch.tensor(cross.weights.shape[-1]).double().log(), atol=1e-6, rtol=1e-6)
    decoder = trace.attention["decoder"]
    assert decoder.weights is not None
    assert decoder.mask is not None
    even = decoder.mask / decoder.mask.sum(-1, keepdim=True)
    torch.testing.assert_close(head_entropy(replace(decoder, weights=even.expand_as(decoder.weights))).min(), torch.tensor(1.0).double())


def test_positions_of_every_scheme() -> None:
    shape = {"vocabulary": 20, "width": 24, "heads": 4, "layers": 1, "feedforward": 8, "start_token": 1, "end_token": 2, "pad_token": 0}
    for name, scheme in (("gpt2", "learned"), ("t5-small", "relative"), ("llama-tiny", "rotary"), ("gpt2", "alibi"), ("gpt2", "none")):
        more = {"positions": scheme, "kv_heads": None} | ({"head_width": 6} if name == "t5-small" else {})
        found = schemes(build(preset(name, **(shape | more))))
        figure = positions(found)
        titles = [axes.get_title(loc="left") for axes in figure.axes]
        assert any("own" in title and scheme in title for title in titles) == (scheme != "none")
        lines = [line for axes in figure.axes for line in axes.lines]
        assert len(lines) == (6 if scheme in ("relative", "alibi") else 3 if scheme == "learned" else 2)


def test_letters_that_no_font_has(trace: Trace, tmp_path: Path) -> None:
    assert trace.source is not None
    strange = replace(trace, source=replace(trace.source, tokens=("\U0001f9ac", *trace.source.tokens[1:])))
    heard: list[str] = []
    save(alignment(strange), tmp_path / "a.svg", heard.append)
    assert heard == []
    assert "\U0001f9ac" in texts(tmp_path / "a.svg")
    save(alignment(strange), tmp_path / "a.png", heard.append)
    assert all("no font here has all its letters" in message for message in heard)


def test_what_can_not_be_drawn(trace: Trace, model: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="did you mean 'cross'"):
        attention_grid(trace, "cros")
    with pytest.raises(ConfigError, match="it has layers"):
        attention_table(trace, "cross", 7)
    with pytest.raises(ConfigError, match="made without weights"):
        attention_grid(model("translator").trace("3 1", "back", parts=("scores",)), "cross")
    with pytest.raises(RegardError, match="no alignment"):
        alignment(model("writer").trace("the", max_length=2))
    (tmp_path / "file").write_text("")
    with pytest.raises(RegardError, match="there is no folder"):
        save(alignment(trace), tmp_path / "file" / "a.png")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(RegardError, match=re.escape(installing("view"))):
        alignment(trace)

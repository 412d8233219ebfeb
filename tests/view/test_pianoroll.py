"""Pictures of music: every note where it belongs, the same each time, as a file of the kind that was asked for."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="needs the extra view")
pytest.importorskip("symusic", reason="needs the extra music")

from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from regard.errors import CorpusError, RegardError, installing
from regard.view.pianoroll import BARS_A_ROW, draw_pianoroll, pianoroll
from tests.cli.running import run
from tests.text.tunes import MARCH, MARCH_FILE, WALTZ_FILE, midi_file, ticks


def drawn(figure: Figure) -> list[tuple[int, float, float]]:
    """(row, left edge, middle) of every note in the picture."""
    found = []
    for row, axes in enumerate(figure.axes):
        for shapes in axes.collections:
            if isinstance(shapes, PolyCollection) and not shapes.get_linewidths()[0]:
                found += [(row, path.vertices[:, 0].min(), path.vertices[:4, 1].mean()) for path in shapes.get_paths()]
    return found


def test_every_note_is_where_it_belongs() -> None:
    notes = ticks(MARCH)
    assert sorted(drawn(pianoroll(MARCH_FILE, "march"))) == sorted((0, start, pitch) for start, _, pitch, _ in notes)


def test_rows_of_bars() -> None:
    long = midi_file([(bar * 1920, 480, 60 + bar % 5, 80) for bar in range(30)])
    figure = pianoroll(long, "long")
    assert len(figure.axes) == 3
    assert [row for row, *_ in drawn(figure)] == [bar // BARS_A_ROW for bar in range(30)]
    widths = [np.diff(axes.get_xlim())[0] for axes in figure.axes]
    assert widths == pytest.approx([BARS_A_ROW * 1920] * 3)  # a bar is as wide in the last row, which has fewer
    assert [tick.get_text() for tick in figure.axes[1].get_xticklabels()][:2] == ["13", "14"]


def test_some_bars_alone_and_notes_that_reach_into_them() -> None:
    content = midi_file([(0, 4 * 1920, 40, 80), (1920, 480, 60, 80), (5 * 1920, 480, 72, 80)])
    figure = pianoroll(content, "tune", bars=(3, 4))
    assert drawn(figure) == [(0, 2 * 1920, 40)]
    with pytest.raises(CorpusError, match="tune has bars 1 to 6, and 5 to 9 were asked for"):
        pianoroll(content, "tune", bars=(5, 9))


def test_louder_is_darker() -> None:
    figure = pianoroll(midi_file([(0, 480, 60, 10), (480, 480, 60, 120)]), "tune")
    [soft, loud] = next(
        each for each in figure.axes[0].collections if isinstance(each, PolyCollection) and len(each.get_facecolor()) == 2
    ).get_facecolor()
    assert soft[:3].sum() > loud[:3].sum() + 0.5


@pytest.mark.parametrize(("ending", "head"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_the_same_piece_gives_the_same_file(tmp_path: Path, ending: str, head: bytes) -> None:
    piece = tmp_path / "waltz.mid"
    piece.write_bytes(WALTZ_FILE)
    for name in ("one", "other"):
        assert run("pianoroll", piece, "--output", tmp_path / f"{name}{ending}", "--title", "A waltz").code == 0
    content = (tmp_path / f"one{ending}").read_bytes()
    assert content.startswith(head)
    assert content == (tmp_path / f"other{ending}").read_bytes()


def test_what_can_t_be_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    piece = tmp_path / "waltz.mid"
    piece.write_bytes(WALTZ_FILE)
    with pytest.raises(RegardError, match=r"a picture ends in \.png, \.svg or \.pdf"):
        draw_pianoroll(piece, tmp_path / "waltz.doc")
    with pytest.raises(RegardError, match=r"can't write .*none.*picture\.png"):
        draw_pianoroll(piece, tmp_path / "none" / "picture.png")
    with pytest.raises(CorpusError, match="tune has no notes to draw"):
        pianoroll(midi_file([]), "tune")
    with pytest.raises(CorpusError, match="there is no file"):
        draw_pianoroll(tmp_path / "none.mid", tmp_path / "picture.png")
    assert run("pianoroll", piece, "--output", tmp_path / "p.png", "--bars", "two").code == 2
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(RegardError, match=re.escape(f"matplotlib, which is not here; {installing('view')}")):
        draw_pianoroll(piece, tmp_path / "picture.png")

"""BLEU by the length of the source."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import sacrebleu

from regard.errors import CorpusError, RegardError
from regard.evaluation.lengths import Span, by_length, spans_of


def test_each_length_is_in_one_span() -> None:
    words = np.array([3, 3, 3, 3, 4, 5, 6, 7, 7, 30])
    spans = spans_of(words, 3)
    assert spans[0][0] == 3
    assert spans[-1][1] == 30
    assert [sum((words >= low) & (words <= high)) for low, high in spans] == [4, 3, 3]
    assert spans_of(np.array([5, 5, 5]), 6) == [(5, 5)]


def test_figures_are_sacrebleus_on_those_sentences() -> None:
    rng = np.random.default_rng(0)
    sources = [" ".join(["w"] * int(length)) for length in rng.integers(4, 20, 60)]
    references = [" ".join(rng.choice(list("abcdefgh"), len(source.split()))) for source in sources]
    outputs = [" ".join(word if rng.random() < 0.8 else "x" for word in reference.split()) for reference in references]
    found = by_length(sources, outputs, references, parts=3, tokenize="none")
    assert sum(span.examples for span in found) == 60
    for span in found:
        chosen = [i for i, source in enumerate(sources) if span.shortest <= len(source.split()) <= span.longest]
        expected = sacrebleu.corpus_bleu([outputs[i] for i in chosen], [[references[i] for i in chosen]], tokenize="none", force=True)
        assert span.examples == len(chosen)
        assert span.bleu == pytest.approx(expected.score, abs=1e-9)
        assert 0 < span.chance < 30


def test_numbers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(CorpusError, match="as many of each"):
        by_length(["a"], ["a", "b"], ["a"])
    with pytest.raises(CorpusError, match="no sentences"):
        by_length([], [], [])


def test_a_plot_is_written_or_its_folder_named(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from regard.view.curves import plot_by_length

    spans = [Span(4, 8, 50, 40.0, 2.0), Span(9, 20, 50, 35.0, 2.5)]
    plot_by_length({"one": spans, "another": spans}, tmp_path / "plot.svg", title="both")
    assert "another" in (text := (tmp_path / "plot.svg").read_text()) or "<path" in text
    plot_by_length({"one": spans}, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(RegardError, match="nowhere"):
        plot_by_length({"one": spans}, tmp_path / "nowhere" / "plot.svg")

"""What these tests share."""

from __future__ import annotations

import pytest


@pytest.fixture
def small_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks and tiles so small that a few numbers are several of them: the interpreter takes its time."""
    from regard.decoding import fused_kernels
    from regard.nn import one_query, residual, short
    from regard.training import surprise

    monkeypatch.setattr(one_query, "BLOCK", 16)
    monkeypatch.setattr(residual, "NUMBERS", 64)
    monkeypatch.setattr(residual, "PROGRAMS", 3)
    monkeypatch.setitem(short.TILES, 16, (short.Tile(16, 16, 1, 1),) * 3)
    monkeypatch.setattr(surprise, "BLOCK", 32)
    monkeypatch.setattr(fused_kernels, "BLOCK", 32)
    monkeypatch.setattr(fused_kernels, "COLUMNS", 4)

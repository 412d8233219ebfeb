"""Training steps on a tape: what is replayed, with no Python between its operations, learns what is learned without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.without_gpu.recording import training_law


@pytest.mark.parametrize("training", [{}, {"ema": 0.9, "schedule": "cosine"}, {"r_drop": 1.0, "label_smoothing": 0.1}], ids=str)
def test_replayed_steps_learn_the_same_to_the_bit(tmp_path: Path, training: dict[str, Any]) -> None:
    training_law(tmp_path, **training)

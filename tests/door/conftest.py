"""Trained bundles, and the models in them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

from regard.door import Model, load
from tests.door import trained


@pytest.fixture(autouse=True)
def _on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """But for tests of a GPU."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    if request.node.get_closest_marker("gpu") is not None:
        return
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # of the processes started here
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a trained bundle, by its name in `trained`."""
    root = tmp_path_factory.mktemp("trained")
    return lambda name: trained.bundle(name, root)


@pytest.fixture(scope="session")
def model(bundle: Callable[[str], Path]) -> Callable[[str], Model]:
    """The same, loaded once. Whoever changes something about it loads another."""
    return cache(lambda name: load(bundle(name), device="cpu"))

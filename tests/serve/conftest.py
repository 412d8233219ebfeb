"""Live servers on loopback, of the same trained bundles as the door's tests use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")

from regard.door import Model, load
from tests.door.conftest import _on_the_cpu, bundle
from tests.serve.live import Live, Start

__all__ = ["_on_the_cpu", "bundle"]
NAMES = ("translator", "writer", "critic", "guesser")


@pytest.fixture(scope="session")
def models(bundle: Callable[[str], Path]) -> dict[str, Model]:
    """A translator, a language model, a classifier and one that fills gaps, named as a server names them."""
    loaded = {name: load(bundle(name), device="cpu") for name in NAMES}
    for name, model in loaded.items():
        model.name = name
    return loaded


@pytest.fixture(scope="session")
def live(models: dict[str, Model]) -> Iterator[Live]:
    """One server for all tests that leave it as it is."""
    with Live(models) as running:
        yield running


@pytest.fixture
def start(models: dict[str, Model]) -> Iterator[Start]:
    """Starts a server with settings of its own; it is stopped after the test."""
    running: list[Live] = []

    def started(settings: object = None, of: dict[str, Model] | None = None) -> Live:
        running.append(Live(of or models, settings))  # type: ignore[arg-type]
        return running[-1].__enter__()

    yield started
    for each in running:
        each.__exit__()

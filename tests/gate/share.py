"""A plugin of pytest's: -p tests.gate.share --share 2/6 takes the second of six shares of the tests, so that six processes share them."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--share", default="1/1")


@pytest.hookimpl(trylast=True)  # what is not marked as asked for has gone by then
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    number, shares = map(int, config.getoption("--share").split("/"))
    kept = items[number - 1 :: shares]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept

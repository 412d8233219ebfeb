"""What all tests share."""

from __future__ import annotations

import os

import pytest
import torch

torch.set_num_threads(1)  # tests are small and run side by side


@pytest.fixture(autouse=True)
def _same_numbers_every_time() -> None:
    torch.manual_seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device; run it on a machine with one"))


os.environ.setdefault("HF_HUB_OFFLINE", "1")

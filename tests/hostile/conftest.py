"""The servers of tests/serve."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")

from tests.serve.conftest import _on_the_cpu, bundle, live, models, start

__all__ = ["_on_the_cpu", "bundle", "live", "models", "start"]

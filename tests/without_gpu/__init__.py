"""What only a GPU does, seen without one: kernels interpreted and compiled, recordings on a tape, and all of it together."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

INTERPRETED = find_spec("triton") is not None and os.environ.get("TRITON_INTERPRET") == "1"
needs_kernels = pytest.mark.skipif(not INTERPRETED, reason="needs Triton, and no GPU, to interpret its kernels")

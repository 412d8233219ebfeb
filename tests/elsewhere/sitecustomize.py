"""A machine whose PyTorch has no int8 kernels: `PYTHONPATH=tests/elsewhere` makes it one, for the tests and all processes they start.

Python reads a module of this name before anything else.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

PRODUCTS = "regard.decoding.products"


class Without(MetaPathFinder):
    """Loads the products as they are, and then says of int8 that it is not available."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != PRODUCTS:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        assert spec is not None
        assert spec.loader is not None
        load = spec.loader.exec_module

        def loaded(module: ModuleType) -> None:
            load(module)
            available = module.available
            module.available = lambda kind: kind is not module.Int8Product and available(kind)  # type: ignore[attr-defined]

        spec.loader.exec_module = loaded  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, Without())

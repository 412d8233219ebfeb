"""The same bundles as the door's tests use."""

from tests.door.conftest import _on_the_cpu, bundle, model

__all__ = ["_on_the_cpu", "bundle", "model"]

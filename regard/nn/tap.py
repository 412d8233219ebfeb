"""Looking inside: a module names an intermediate with `tap`, and `record` collects what was named.

Nothing is left on a module and nothing is computed for it: without a recorder `tap` returns at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn

from regard.errors import RegardError, nearest


class Taps(dict[str, Tensor]):
    """Intermediates by name; asking for one that was not recorded says why."""

    def __missing__(self, name: str) -> Tensor:
        why = "weights and scores are only written down by the explicit backend: with using('explicit'), record(model) as taps"
        known = nearest(name, self) if self else "nothing was recorded; compiled code records nothing"
        raise RegardError(f"no {name!r} was recorded; {why if name.endswith(('weights', 'scores')) else known}")


class Recorder:
    """What was tapped, by the full name of the module and of the intermediate: `decoder.layers.0.attention.weights`."""

    def __init__(self, model: nn.Module, wanted: Callable[[str], bool] | None = None) -> None:
        self.taps, self._wanted = Taps(), wanted
        self._names = {module: name for name, module in model.named_modules()}

    def take(self, module: nn.Module, name: str, value: Tensor) -> None:
        path = self._names.get(module)
        if path is None:  # a module of another model that runs in the same context is none of ours
            return
        full = f"{path}.{name}" if path else name
        if self._wanted is None or self._wanted(full):
            self.taps[full] = value.detach()


_recorder: ContextVar[Recorder | None] = ContextVar("recorder", default=None)


def recording() -> bool:
    """Whether anyone is."""
    return _recorder.get() is not None


def hooked(model: nn.Module) -> bool:
    """Whether someone else listens: forward hooks of PyTorch's, which may also change what a module gives."""
    return any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def tap(module: nn.Module, name: str, value: Tensor | None) -> None:
    """Names an intermediate of `module`, for whoever is recording."""
    if torch.compiler.is_compiling():
        return
    recorder = _recorder.get()
    if recorder is not None and value is not None:
        recorder.take(module, name, value)


@contextmanager
def record(model: nn.Module, wanted: Callable[[str], bool] | None = None) -> Iterator[Taps]:
    """Collects every tapped intermediate of one pass through `model`. Run it with the `explicit` backend to have weights.

    `wanted`: whether to keep one, by its full name; all are kept by default.
    """
    recorder = Recorder(model, wanted)
    token = _recorder.set(recorder)
    try:
        yield recorder.taps
    finally:
        _recorder.reset(token)

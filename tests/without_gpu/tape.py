"""What a CUDA graph is, on a CPU: a recording is the list of operations and kernel launches on the very tensors that they met.

As a GPU does it, recording computes nothing that lasts: whatever was written to is put back. A replay does the operations again, and no
Python between them. What the work made for itself lies in memory that others use between two replays, so it is spoiled. Not seen here:
streams, races, and what a GPU refuses to record for other reasons than that the host would have to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

WAITS = {  # for what stands in memory, before it is known what comes next, or how large it is
    "aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::equal", "aten::nonzero", "aten::masked_select", "aten::_unique2",
    "aten::repeat_interleave",
}  # fmt: skip
INDEXED = {"aten::index", "aten::index_put", "aten::index_put_"}  # wait where a place is given by True and False
Result = TypeVar("Result")


class RecordingError(RuntimeError):
    """Something that a GPU can't record."""


class Call(NamedTuple):
    """An operation as it was done, or the launch of a kernel, which gives nothing."""

    function: Callable[..., Any]
    given: Sequence[Any]
    named: dict[str, Any]
    outputs: Sequence[Tensor]


class Tape(TorchDispatchMode):
    """Writes down what is done within it."""

    now: Tape | None = None  # the one that is running

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.made: list[Tensor] = []  # by the work itself: they live as long as the tape
        self._own: set[int] = set()  # where these lie
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def __enter__(self) -> Tape:
        Tape.now = self
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        Tape.now = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        _refuse(func._schema.name, args)
        written = _tensors(_written(func._schema, args, kwargs))
        self.keep(written)
        found = func(*args, **kwargs)
        given = {_place(tensor) for tensor in _tensors((args, kwargs))}
        outputs = _tensors(found)
        if not written and outputs and all(_place(tensor) in given for tensor in outputs):
            return found  # views: what they show will change by itself
        self.calls.append(Call(func, args, kwargs, outputs))
        if not written:
            self.made += outputs
            self._own |= {_place(tensor) for tensor in outputs}
        return found

    def launch(self, kernel: Callable[..., Any], *given: Any, **named: Any) -> None:
        """A kernel, which may write to any tensor that it is given."""
        with _disable_current_modes():
            self.keep(_tensors((given, named)))
            kernel(*given, **named)
        self.calls.append(Call(kernel, given, named, ()))

    def keep(self, tensors: Sequence[Tensor]) -> None:
        """What stands there before it is written to for the first time."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self._own and storage.data_ptr() not in self._before:
                self._before[storage.data_ptr()] = storage, storage.clone()

    def undo(self) -> None:
        for storage, was in self._before.values():
            storage.copy_(was)
        self._before.clear()


class Recorded:
    """A tape that can be replayed."""

    def __init__(self, tape: Tape, *, spoils: bool) -> None:
        self.tape, self.spoils = tape, spoils

    @torch.no_grad()
    def replay(self) -> None:
        self.spoil()
        for function, given, named, outputs in self.tape.calls:
            for old, new in zip(outputs, _tensors(function(*given, **named)), strict=bool(outputs)):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)
        if self.spoils:
            self.spoil()

    def spoil(self) -> None:
        for tensor in self.tape.made:
            tensor.detach().fill_(float("nan") if tensor.is_floating_point() else True if tensor.dtype == torch.bool else 77)


class Tapes:
    """Stands in for CUDA's graphs, in decoding and in training, and counts."""

    def __init__(self) -> None:
        self.recorded = self.replayed = 0

    def __call__(self, device: torch.device) -> Tapes:
        return self

    def aside(self, work: Callable[[], Tensor]) -> Tensor:
        return work().clone()

    def record(self, work: Callable[[], Result]) -> Any:
        """In decoding, where work gives nothing, nothing of it may be read after a replay; in training, until the next."""
        self.recorded += 1
        tape, chance = Tape(), torch.get_rng_state()
        try:
            with tape:
                found = work()
        finally:
            tape.undo()
            torch.set_rng_state(chance)
        recorded = Counted(self, tape, spoils=found is None)
        return recorded if found is None else (recorded, found)


class Counted(Recorded):
    def __init__(self, tapes: Tapes, tape: Tape, *, spoils: bool) -> None:
        super().__init__(tape, spoils=spoils)
        self.tapes = tapes

    def replay(self) -> None:
        self.tapes.replayed += 1
        super().replay()


@contextmanager
def launches_on_tape() -> Iterator[None]:
    """Kernels that are interpreted are one call each, whatever the interpreter does with tensors."""
    from triton.runtime.interpreter import GridExecutor

    run = GridExecutor.__call__

    def launched(self: Any, *given: Any, **named: Any) -> None:
        if Tape.now is None:
            run(self, *given, **named)
        else:
            Tape.now.launch(lambda *given, **named: run(self, *given, **named), *given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GridExecutor, "__call__", launched)
        yield


def _refuse(name: str, args: Sequence[Any]) -> None:
    places = args[1] if name in INDEXED else ()
    if name in WAITS or any(isinstance(place, Tensor) and place.dtype == torch.bool for place in places):
        raise RecordingError(f"{name} waits for the device")
    if name == "aten::lift_fresh" and args[0].dim():
        raise RecordingError(f"{name}: a tensor made of the host's numbers")


def _written(schema: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    named = {argument.name: argument for argument in schema.arguments}
    given = [*zip(schema.arguments, args, strict=False), *((named[name], value) for name, value in kwargs.items())]
    return [value for argument, value in given if argument.alias_info is not None and argument.alias_info.is_write]


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()

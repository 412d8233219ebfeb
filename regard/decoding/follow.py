"""A network as its owner holds it, and the copies that were prepared from it to be fast: after an edit they are prepared anew.

The network is the definition. Whoever changes a weight, replaces a module or registers a forward hook finds that obeyed by all that runs:
before each call the copies are asked whether the network still is what they were made from. That must cost next to nothing, so contents
are not read: PyTorch counts the writes to a tensor (`_version`), and `.data`, which is not counted, is marked when it is asked for.
What neither sees, such as writing through NumPy into the memory of a weight, has to be said: `refresh()`.
"""

from __future__ import annotations

import operator
import time
import zlib
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from regard.decoding.pack import Laid
from regard.decoding.reading import uses_int8
from regard.decoding.ready import Prepared, WrittenIn, prepare
from regard.decoding.remember import Memory
from regard.models import Network

LONG = 0.05  # seconds: what takes longer is remembered


class Watched(nn.Parameter):
    """A parameter that knows whether someone was given its `data`, through which it can be written without being counted."""

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        if id(self) not in memo:
            memo[id(self)] = nn.Parameter(self.detach().clone(memory_format=torch.preserve_format), self.requires_grad)
        copied: nn.Parameter = memo[id(self)]
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        return nn.Parameter(self.detach(), self.requires_grad).__reduce_ex__(protocol)


def _give(parameter: Watched) -> Tensor:
    data: Tensor = Tensor.data.__get__(parameter)  # type: ignore[attr-defined]
    watch = vars(parameter).get("watch")
    if watch is not None:
        watch.give(parameter, data)
    return data


def _take(parameter: Watched, data: Tensor) -> None:
    Tensor.data.__set__(parameter, data)  # type: ignore[attr-defined]
    watch: Watch | None = vars(parameter).get("watch")
    if watch is not None:
        watch.replaced = True
        watch.give(parameter, data)


Watched.data = property(_give, _take)  # type: ignore[assignment]


class Watch:
    """Over the `data` of one parameter: who may still write there, and what it was before."""

    __slots__ = ("given", "replaced", "sum")

    def __init__(self) -> None:
        self.given: list[ref[Tensor]] = []
        self.sum: int | None = None
        self.replaced = False

    @classmethod
    def over(cls, parameter: Watched) -> Watch:
        """From now on. Whoever was given its `data` before may still hold it."""
        watch, before = cls(), vars(parameter).get("watch")
        watch.given = [] if before is None else [each for each in before.given if each() is not None]
        watch.sum = checksum(parameter) if watch.given else None
        return watch

    def give(self, parameter: Tensor, data: Tensor) -> None:
        if self.sum is None and not self.replaced:
            self.sum = checksum(parameter)  # before anybody writes
        self.given.append(ref(data))

    def edited(self, parameter: Tensor) -> bool:
        """Whether it was written since; once nobody holds its `data` any more and it was not, there is nothing to watch."""
        if self.replaced:
            return True
        held = [each for each in self.given if each() is not None]
        if self.sum is not None and checksum(parameter) != self.sum:
            return True
        self.given = held
        if not held:
            self.sum = None
        return False


def checksum(tensor: Tensor) -> int:
    data = tensor.detach().cpu().contiguous()
    return zlib.crc32(data.view(-1).view(torch.uint8).numpy().data) if data.numel() else 0


class Seen:
    """What a network is at one moment: its modules, all that they hold, and how often each tensor was written."""

    def __init__(self, network: Network) -> None:
        modules = list(network.modules())
        self.attributes = [vars(module) for module in modules]
        self.contents = [held[name] for held in self.attributes for name in ("_parameters", "_buffers", "_modules")]
        self.hooks = [held[name] for held in self.attributes for name in ("_forward_hooks", "_forward_pre_hooks")]
        self.kinds: list[Any] = list(dict.fromkeys(map(type, modules)))
        self.tensors = [*network.parameters(), *network.buffers()]
        for tensor in self.tensors:
            if type(tensor) is nn.Parameter:
                tensor.__class__ = Watched  # not another in its place: optimisers, ties and others hold this one
        self.watches: list[tuple[Watch, Tensor]] = []
        for tensor in self.tensors:
            if isinstance(tensor, Watched):
                vars(tensor)["watch"] = watch = Watch.over(tensor)
                self.watches.append((watch, tensor))
        self.outline, self.held, self.written = self._outline(), self._held(), self._written()
        self.was_hooked = self.hooked

    def _outline(self) -> list[Any]:
        """Settings of every module, and what its kind does."""
        return [*chain.from_iterable(map(dict.values, self.attributes)), *(kind.forward for kind in self.kinds)]

    def _held(self) -> list[Any]:
        return list(chain.from_iterable(map(dict.values, self.contents)))

    def _written(self) -> list[int]:
        try:
            return [tensor._version for tensor in self.tensors]
        except RuntimeError:  # made in inference mode, where writes are not counted
            return [-1 if tensor.is_inference() else tensor._version for tensor in self.tensors]

    @property
    def hooked(self) -> bool:
        """Whether someone listens to a module, or changes what it gives."""
        return any(self.hooks)

    @property
    def same_outline(self) -> bool:
        """Whether it is made of the same modules and tensors, with the same settings. Hooks that listened then are part of it."""
        if self.was_hooked and not self.hooked:
            return False
        held = self._held()
        if len(held) != len(self.held) or not all(map(operator.is_, held, self.held)):
            return False
        try:
            return self._outline() == self.outline
        except (RuntimeError, ValueError):  # of tensors and arrays, which are not equal as a whole
            return False

    def edited(self) -> list[Tensor]:
        """The tensors that were written since."""
        written = self._written()
        found = []
        if written != self.written:
            pairs = zip(self.tensors, written, self.written, strict=True)
            found = [tensor for tensor, now, then in pairs if now != then]
        found += [tensor for watch, tensor in self.watches if (watch.given or watch.replaced) and watch.edited(tensor)]
        return found


class Followed:
    """A network and what runs in its place. May be shared by threads: what was prepared is never changed, only replaced."""

    def __init__(self, network: Network, precision: WrittenIn | None = None, bundle: Path | None = None) -> None:
        """`precision`: None where the network itself runs, whatever it is. `bundle`: whose weights it has, as they stand there."""
        self.network, self.precision = network, precision
        self._lock = Lock()
        self._notes: list[str] = []
        self.news = False  # whether it was prepared anew, or there are notes to tell
        self._prepare(memory=None if bundle is None or precision is None else Memory(bundle, network, precision))

    def __reduce__(self) -> tuple[type[Followed], tuple[Network, WrittenIn | None]]:
        """A copy is prepared from a network of its own."""
        return Followed, (self.network, self.precision)

    def _prepare(self, since: Seen | None = None, before: Sequence[Laid] = (), memory: Memory | None = None) -> None:
        """`before`: what was laid out when it was as it had been seen, of which all stays but what was edited `since`."""
        if self.precision is None:
            self._now: tuple[Seen | None, Prepared[Network]] = (None, Prepared(self.network))
            return
        with torch.inference_mode(False):
            seen = Seen(self.network)  # before it is read: what is written meanwhile is found at the next call
            edited = since.edited() if since is not None else ()  # and after that, or else what is written between would never be found
            known, began = None if memory is None else memory.read(), time.perf_counter()
            found: Prepared[Network] = Prepared(self.network)
            if not seen.hooked:  # hooks hear what was asked, and no random tokens; and no copy takes any along, which nobody could remove
                found = prepare(self.network, self.precision, before=before, edited=edited, known=known)
        if memory is not None and known is None and found.known is not None and time.perf_counter() - began > LONG:
            memory.write(found.known)
        self._notes += found.notes
        self._now, self.news = (seen, found), True

    def prepared(self) -> Prepared[Network]:
        """What the network is prepared as, as it is now."""
        seen, found = self._now
        if _as_it_was(seen):
            return found
        with self._lock:
            seen, found = self._now
            if seen is not None and not seen.same_outline:
                self._prepare()
            elif not _as_it_was(seen):
                self._prepare(seen, found.laid)
            return self._now[1]

    def refresh(self) -> None:
        """Prepares it anew, whatever it looks like."""
        with self._lock:
            self._prepare()

    def told(self) -> list[str]:
        """What there is to tell, once."""
        with self._lock:
            notes, self._notes, self.news = self._notes, [], False
        return list(dict.fromkeys(notes))

    @property
    def hooked(self) -> bool:
        seen = self._now[0]
        return seen is not None and seen.hooked

    def writer(self) -> Network:
        """What writes: the fastest copy that does what the network does. Where hooks listen, the network itself, which calls them."""
        ready = self.prepared().network
        return self.network if self.hooked else ready

    def reader(self) -> Network:
        """What reads, judges and is looked into. It is not rounded."""
        ready = self._now[1].network
        if ready is self.network or self.network.device.type != "cpu" or uses_int8(ready):
            return self.network
        ready = self.writer()
        return self.network if uses_int8(ready) else ready


def _as_it_was(seen: Seen | None) -> bool:
    """Whether what was prepared still serves. Where hooks listen it is not run; what is written meanwhile is found once they are gone."""
    return seen is None or (seen.same_outline and (seen.hooked or not seen.edited()))

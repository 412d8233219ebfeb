"""Several processes as one: who is here, sums over all, and the model wrapped or split. One process needs none of it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from regard.nn.layers import Block
from regard.training.objective import Objective
from regard.training.optim import Optimizer

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """The processes of a run; each works on its own share of every batch."""

    rank: int
    size: int
    device: torch.device

    @property
    def first(self) -> bool:
        return self.rank == 0

    def sum(self, *values: Tensor | float) -> list[float]:
        """The sums over all processes."""
        numbers = torch.stack([torch.as_tensor(value, dtype=torch.float64, device=self.device) for value in values])
        if self.size > 1:
            dist.all_reduce(numbers)
        return [float(number) for number in numbers]

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()

    def gather(self, value: Any) -> dict[int, Any]:
        """What each process has, by its rank."""
        if self.size == 1:
            return {0: value}
        boxes: list[Any] = [None] * self.size
        dist.all_gather_object(boxes, value)
        return dict(enumerate(boxes))

    def share(self, value: T) -> T:
        """What the first process has, for all."""
        box: list[T] = [value]
        if self.size > 1:
            dist.broadcast_object_list(box, src=0)
        return box[0]


@contextmanager
def world() -> Iterator[World]:
    """The processes that torchrun started, or this one alone."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if size == 1:
        yield World(0, 1, device)
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield World(dist.get_rank(), size, device)
    finally:
        # A thread of the group may still be letting go of its last tensor, for which it needs the interpreter; taking the group down
        # waits for that thread without yielding to it, for ever. So yield first.
        time.sleep(0.5)
        dist.destroy_process_group()


def wrap(objective: Objective, world: World, parallel: str) -> nn.Module:
    """The objective so that gradients are shared: each process has the whole model (ddp), or a part of every layer (fsdp)."""
    if world.size == 1:
        return objective
    if parallel == "fsdp":
        for module in objective.modules():
            if isinstance(module, Block):
                fully_shard(module)
        fully_shard(objective)
        return objective
    ids = [world.device.index] if world.device.type == "cuda" else None
    return DistributedDataParallel(objective, device_ids=ids)


def last_part_only(wrapped: nn.Module, last: bool) -> None:
    """Gradients of a batch's parts are added up at home and shared once, with the last."""
    if isinstance(wrapped, DistributedDataParallel):
        wrapped.require_backward_grad_sync = last
    elif isinstance(wrapped, FSDPModule):
        wrapped.set_requires_gradient_sync(last)


@contextmanager
def gathered(objective: nn.Module) -> Iterator[None]:
    """Within, every process has the whole model, so that it can be used in any way. All must do the same things in the same order."""
    split = [module for module in objective.modules() if isinstance(module, FSDPModule)]
    for module in split:
        module.set_reshard_after_forward(False)
        module.unshard()
    try:
        yield
    finally:
        for module in split:
            module.reshard()
            module.set_reshard_after_forward(True)


def whole(tree: Any) -> Any:
    """Nested dicts of tensors with those that are split over processes gathered. Every process must call it."""
    if isinstance(tree, Mapping):
        return {key: whole(value) for key, value in tree.items()}
    return tree.full_tensor() if isinstance(tree, DTensor) else tree


def spread(tensor: Tensor, like: Tensor) -> Tensor:
    """A whole tensor split as `like` is; left whole where `like` is whole or of another shape."""
    if not isinstance(like, DTensor) or tensor.shape != like.shape:
        return tensor
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements)


@torch.no_grad()
def load_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Gives a model, split or not, the weights of a whole one."""
    own = model.state_dict()
    assert own.keys() == weights.keys()
    for name, tensor in own.items():
        tensor.copy_(spread(weights[name], tensor))


def load_optimizer(optimizer: Optimizer, state: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Gives the optimizer of a model, split or not, the state of a whole one's."""
    of = {name: parameter for parameter, name in optimizer.names.items()}
    split = {
        name: {key: spread(tensor, of[name]) if name in of else tensor for key, tensor in kept.items()} for name, kept in state.items()
    }
    optimizer.load_state_dict(split)

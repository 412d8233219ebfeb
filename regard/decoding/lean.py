"""A decoder's position on a CPU, written out flat: no more operations than the formula has, on tensors of two or three dimensions.

With one query a hypothesis, what a layer computes is little, and modules that ask who is watching cost more than their arithmetic. Whoever
does watch (`record`, `using`), or reads many words at once, gets the stack itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.decoding.products import Product
from regard.nn import backends
from regard.nn.attention import Attention
from regard.nn.cache import CacheView, KeyValues
from regard.nn.few import FEW
from regard.nn.layers import AddNorm, Block, FeedForward, Stack
from regard.nn.masks import Mask
from regard.nn.positions import Alibi, Learned, Placement, Positions, RelativeBias, Rotary, Sinusoidal
from regard.nn.tap import recording

Norm = Callable[[Tensor], Tensor]
NORMS = (nn.LayerNorm, nn.RMSNorm)
POSITIONS = (Positions, Sinusoidal, Learned, Rotary, Alibi, RelativeBias)


def is_known(stack: Stack) -> bool:
    """Whether everything in a stack is of exactly the types that are written out here. A subclass, or a `forward` of its own, is followed
    and not written out."""
    return (
        _is(stack, Stack)
        and _is(stack.positions, *POSITIONS)
        and all(_is(norm, nn.Identity, *NORMS) for norm in (stack.embedding_norm, stack.norm))
        and all(_is(block, Block) and all(map(_known_part, block.children())) for block in stack.layers)
    )


def _known_part(part: nn.Module) -> bool:
    if _is(part, AddNorm):
        return _is(part.norm, *NORMS)
    inner = ("project", "join") if _is(part, Attention) else ("widen", "narrow") if _is(part, FeedForward) else ()
    return bool(inner) and all(hasattr(getattr(part, name), "product") for name in inner)


def _is(module: object, *kinds: type[nn.Module]) -> bool:
    return type(module) in kinds and "forward" not in vars(module)


@dataclass(frozen=True, slots=True)
class Shape:
    """How many of what there is in one pass."""

    rows: int
    queries: int
    reach: int  # slots of the cache that are read
    start: int  # the first slot that is written


class LeanStack(Stack):
    """The same layers as those of a stack whose matrices are packed."""

    def __init__(self, stack: Stack, width: int, context: int) -> None:
        nn.Module.__init__(self)
        for name, child in stack.named_children():
            setattr(self, name, child)
        # What absolute positions add, for all of them at once.
        added = stack.positions.embed(torch.zeros(1, context, width), torch.arange(context)[None])[0].detach()
        self.added = added if bool(added.any()) else None
        self.flat = [LeanLayer(block) for block in self.layers if isinstance(block, Block)]

    def forward(
        self,
        x: Tensor,
        memory: Tensor | list[KeyValues] | None = None,
        *,
        positions: Tensor,
        mask: Mask | None = None,
        memory_mask: Mask | None = None,
        cache: CacheView | None = None,
    ) -> Tensor:
        lean = cache is not None and x.shape[1] <= FEW and not isinstance(memory, Tensor) and not (recording() or backends.overridden())
        if not lean or not (_plain(mask) and _plain(memory_mask)):
            return super().forward(x, memory, positions=positions, mask=mask, memory_mask=memory_mask, cache=cache)
        assert cache is not None
        rows, queries, width = x.shape
        x = self.embedding_norm(x if self.added is None else x + nn.functional.embedding(positions, self.added))
        place = self.positions.place(positions, positions, x.dtype, seen=cache.positions) or Placement()
        shape = Shape(rows, queries, cache.positions.shape[1], int(cache.slots[0]))
        first = self.flat[0]
        hidden = first.attention.hidden(mask, place.bias, x)
        hidden_memory = hidden if first.cross is None else first.cross.hidden(memory_mask, None, x)
        x = x.reshape(rows * queries, width)
        for index, layer in enumerate(self.flat):
            x = layer.attention.of_itself(x, cache.key[index], cache.value[index], hidden, place, shape)
            if layer.cross is not None and isinstance(memory, list):
                x = layer.cross.of_memory(x, memory[index], hidden_memory, shape)
            x = layer.feedforward(x)
        normed: Tensor = self.norm(x)
        return normed.view(rows, queries, width)


def _plain(mask: Mask | None) -> bool:
    """Whether everyone sees something, as is the rule: what sees nothing has weights of its own kind."""
    return mask is None or (mask.packed is None and (mask.blind is None or not bool(mask.blind.any())))


class LeanLayer:
    def __init__(self, block: Block) -> None:
        self.attention = LeanAttention(block.attention, block.attention_add)
        self.cross = None if block.cross is None or block.cross_add is None else LeanAttention(block.cross, block.cross_add, across=True)
        self.feedforward = LeanFeedForward(block.feedforward, block.feedforward_add)


class Around:
    """The path around a sub-layer, and the norm on it."""

    def __init__(self, add: AddNorm) -> None:
        self.before, self.norm = add.before, _norm(add.norm)

    def enter(self, x: Tensor) -> Tensor:
        return self.norm(x) if self.before else x

    def leave(self, x: Tensor, made: Tensor) -> Tensor:
        return made.add_(x) if self.before else self.norm(made.add_(x))


def _norm(norm: nn.Module) -> Norm:
    if isinstance(norm, nn.LayerNorm):
        shape, weight, bias, epsilon = list(norm.normalized_shape), norm.weight, norm.bias, norm.eps
        return lambda x: torch.layer_norm(x, shape, weight, bias, epsilon, False)
    return norm


class LeanAttention(Around):
    def __init__(self, attention: Attention, add: AddNorm, *, across: bool = False) -> None:
        super().__init__(add)
        self.heads, self.kv_heads, self.width, self.scale = attention.heads, attention.kv_heads, attention.head_width, attention.scale
        self.together = attention.heads // attention.kv_heads  # queries that share a key
        self.query_rows = attention.query_rows
        self.project: Product = attention.project.product(slice(None, attention.query_rows) if across else slice(None))  # type: ignore[operator]
        self.join: Product = attention.join.product  # type: ignore[assignment]

    def hidden(self, mask: Mask | None, bias: Tensor | None, like: Tensor) -> Tensor:
        """What is added to the scores (rows × kv_heads, queries, keys) of all layers: minus infinity where nothing may be seen."""
        if mask is not None and mask.visible is not None:
            shut = torch.where(mask.visible, 0.0, -math.inf).to(like.dtype)
            bias = shut if bias is None else bias + shut
        if bias is None:
            return like.new_zeros(1, 1, 1)
        rows, queries, _ = like.shape
        if bias.shape[:2] == (1, 1) and rows == self.together == 1:  # the same for all heads
            return bias[0]
        return bias.expand(rows, self.heads, queries, -1).reshape(rows * self.kv_heads, self.together * queries, -1)

    def of_itself(self, x: Tensor, keys: Tensor, values: Tensor, hidden: Tensor, place: Placement, shape: Shape) -> Tensor:
        """x (rows × queries, width) to the same. keys and values (rows, kv_heads, capacity, head_width): the new ones are written there."""
        rows, queries, heads = shape.rows, shape.queries, self.heads
        made = self.project(self.enter(x)).view(rows, queries, heads + 2 * self.kv_heads, self.width).transpose(1, 2)
        both, value = made.split((heads + self.kv_heads, self.kv_heads), 1)
        if place.query is not None:  # keys stand where the queries do
            both = place.query.apply(both)
        query, key = both.split((heads, self.kv_heads), 1)
        end = shape.start + queries
        keys[:, :, shape.start : end].copy_(key)
        values[:, :, shape.start : end].copy_(value)
        seen = keys.flatten(0, 1)[:, : shape.reach], values.flatten(0, 1)[:, : shape.reach]
        return self._mixed(x, query, *seen, hidden, shape, among_others=True)

    def of_memory(self, x: Tensor, memory: KeyValues, hidden: Tensor, shape: Shape) -> Tensor:
        query = self.project(self.enter(x)).view(shape.rows, shape.queries, self.heads, self.width)
        return self._mixed(x, query.transpose(1, 2), memory.key.flatten(0, 1), memory.value.flatten(0, 1), hidden, shape)

    def _mixed(
        self, x: Tensor, query: Tensor, keys: Tensor, values: Tensor, hidden: Tensor, shape: Shape, *, among_others: bool = False
    ) -> Tensor:
        """query (rows, heads, queries, head_width), keys and values (rows × kv_heads, length, head_width).

        `among_others`: between the slots that a hypothesis sees there are some that it does not, and which they are is for others to say.
        So its weights are added up in float64, where no order of adding shows.
        """
        query = query.reshape(-1, self.together * shape.queries, self.width)
        scores = torch.baddbmm(hidden, query, keys.transpose(1, 2), alpha=self.scale)
        mixed = torch.bmm(scores.softmax(-1, torch.float64).float() if among_others else scores.softmax(-1), values)
        if shape.queries > 1:
            mixed = mixed.view(shape.rows, self.heads, shape.queries, self.width).transpose(1, 2)
        return self.leave(x, self.join(mixed.reshape(-1, self.query_rows)))


class LeanFeedForward(Around):
    def __init__(self, feedforward: FeedForward, add: AddNorm) -> None:
        super().__init__(add)
        self.widen: Product = feedforward.widen.product  # type: ignore[assignment]
        self.narrow: Product = feedforward.narrow.product  # type: ignore[assignment]
        self.gated, self.activation = feedforward.gated, feedforward.activation
        self.relu = feedforward.activation is torch.nn.functional.relu and not self.gated

    def __call__(self, x: Tensor) -> Tensor:
        entered = self.enter(x)
        if self.relu:
            inner = self.widen.relu(entered)
        elif self.gated:
            gate, content = self.widen(entered).chunk(2, -1)
            inner = self.activation(gate).mul_(content)
        else:
            inner = self.activation(self.widen(entered))
        return self.leave(x, self.narrow(inner))

"""One definition, many speeds: `explicit` is the formula of the paper, and every other backend is tested equal to it.

All share one signature. A backend is chosen when a model is built; `using` overrides the choice within a `with`, for example to look at
weights. Choosing for one call never touches the model, so other threads are not disturbed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from importlib.util import find_spec
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.errors import ConfigError, MaskError, nearest
from regard.nn.instead import starts
from regard.nn.masks import Boundaries, Mask, Packed
from regard.nn.plans import UNPLANNED, meets_any_shape

HAS_TRITON = find_spec("triton") is not None
SHORT, SHORT_MEAN = 256, 96  # tokens: documents none of which is longer, or that are so short on average, share tiles
SHORT_WIDTHS = (16, 32, 64, 128)  # of a head
SHORT_PACKED, PACKED = "attention of short documents", "attention of packed documents"


class Attended(NamedTuple):
    """What attention gives: for each query a mixture of the values, and, where they were computed, the weights of the mixture."""

    output: Tensor  # (rows, heads, query, head_width)
    weights: Tensor | None = None  # (rows, heads, query, key), each row sums to 1
    scores: Tensor | None = None  # before the mask and the softmax


class Backend(Protocol):
    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, *, mask: Mask, bias: Tensor | None, scale: float, dropout: float
    ) -> Attended: ...


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Attended:
    """softmax(QKᵀ / √d) V, the formula of the paper. attend(x, x, x) is self-attention without parameters."""
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        scores = scores + bias
    weights = (mask or Mask()).softmax(scores)
    return Attended(F.dropout(weights, dropout) @ value, weights, scores)


def explicit(query: Tensor, key: Tensor, value: Tensor, *, mask: Mask, bias: Tensor | None, scale: float, dropout: float) -> Attended:
    """The formula itself, with its weights to look at."""
    _refuse_packed(mask, "explicit")
    group = query.shape[1] // key.shape[1]  # grouped-query: each key head serves as many query heads
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    return attend(query, key, value, mask=mask, bias=bias, scale=scale, dropout=dropout)


def sdpa(query: Tensor, key: Tensor, value: Tensor, *, mask: Mask, bias: Tensor | None, scale: float, dropout: float) -> Attended:
    """PyTorch's fused kernels: the weights are never written down."""
    _refuse_packed(mask, "sdpa")
    allowed = None if mask.causal and bias is None else mask.visible  # the kernel's own triangle is the fastest mask
    if allowed is not None and mask.blind is not None:
        allowed = allowed | mask.blind  # some kernels give NaN for a row of nothing: let it see all, and zero it below
    if bias is not None:
        allowed = bias if allowed is None else bias.masked_fill(~allowed, float("-inf"))
    with UNPLANNED if meets_any_shape(query) else nullcontext():
        output = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=allowed,
            is_causal=mask.causal and bias is None,
            scale=scale,
            dropout_p=dropout,
            enable_gqa=query.shape[1] != key.shape[1],
        )
    return Attended(output if mask.blind is None else output.masked_fill(mask.blind, 0.0))


def varlen(query: Tensor, key: Tensor, value: Tensor, *, mask: Mask, bias: Tensor | None, scale: float, dropout: float) -> Attended:
    """Packed documents of different lengths on a GPU, without a table and without padding."""
    packed = mask.packed
    if packed is None:
        raise MaskError(
            "backend 'varlen' wants packed documents; make the mask with (Documents(…) & Causal()).pack(), or use backend 'sdpa'"
        )
    if bias is not None or dropout:
        raise ConfigError("backend 'varlen' has neither biases nor dropout of weights; use backend 'sdpa'")
    if query.device.type != "cuda" or query.dtype not in (torch.float16, torch.bfloat16):
        raise ConfigError(f"backend 'varlen' runs on a GPU in bfloat16 or float16, not on {query.device.type} in {query.dtype}; use 'sdpa'")
    short = _suits_short(query, packed) and query.dtype == key.dtype == value.dtype
    short = short and short_starts(query.dtype, query.device, query.shape[-1])
    return Attended((_attend_short if short else _attend_long)(query, key, value, packed, scale))


def varlen_starts(dtype: torch.dtype, device: torch.device, head_width: int) -> bool:
    """Whether `varlen` can be started on that GPU. Its kernels for short documents are tried too; without them it is slower, and right."""
    if HAS_TRITON and head_width in SHORT_WIDTHS:
        short_starts(dtype, device, head_width)
    return starts(PACKED, lambda: _try(_attend_long, dtype, device, head_width), dtype, device, head_width)


def short_starts(dtype: torch.dtype, device: torch.device, head_width: int) -> bool:
    return starts(SHORT_PACKED, lambda: _try(_attend_short, dtype, device, head_width), dtype, device, head_width)


def _try(attend_packed: Callable[..., Tensor], dtype: torch.dtype, device: torch.device, head_width: int) -> None:
    """Two documents, forwards and backwards."""
    with torch.inference_mode(False), torch.enable_grad():
        edges = Boundaries(torch.arange(0, 33, 16, dtype=torch.int32, device=device), 16)
        x = torch.zeros(1, 32, 3, head_width, dtype=dtype, device=device, requires_grad=True)
        output = attend_packed(*x.transpose(1, 2).split(1, 1), Packed(edges, edges, True, None), 1.0)
        torch.autograd.grad(output, x, torch.ones_like(output))


def _suits_short(query: Tensor, packed: Packed) -> bool:
    """Whether documents are so short that a tile should hold several: either none is long, or as many as there are can't all be."""
    across = packed.query.edges is not packed.key.edges
    if not HAS_TRITON or query.shape[-1] not in SHORT_WIDTHS or (across and (packed.causal or packed.window is not None)):
        return False
    return packed.query.longest <= SHORT or query.shape[2] <= SHORT_MEAN * (len(packed.query.edges) - 1)


def _attend_short(query: Tensor, key: Tensor, value: Tensor, packed: Packed, scale: float) -> Tensor:
    from regard.nn import short  # loads kernels: only where they are used

    return short.attend(query, key, value, packed, scale)


def _attend_long(query: Tensor, key: Tensor, value: Tensor, packed: Packed, scale: float) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    group = query.shape[1] // key.shape[1]
    if group > 1:
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    left = -1 if packed.window is None else packed.window - 1
    output = varlen_attn(
        *(_one_row(query), _one_row(key), _one_row(value)),
        packed.query.edges,
        packed.key.edges,
        packed.query.longest,
        packed.key.longest,
        scale=scale,
        window_size=(left, 0 if packed.causal else left),
    )
    assert isinstance(output, Tensor)
    return output.transpose(0, 1).unsqueeze(0)


BACKENDS: dict[str, Backend] = {"explicit": explicit, "sdpa": sdpa, "varlen": varlen}
_override: ContextVar[Backend | None] = ContextVar("backend", default=None)


def choose(name: str, *, positions: str | None = None, mask: str | None = None, dropout: float = 0.0) -> Backend:
    """The backend of that name, or the reason why it can't serve such a model."""
    if name not in BACKENDS:
        raise ConfigError(f"backend {name!r} is unknown; {nearest(name, BACKENDS)}")
    if name == "varlen":
        if positions in ("alibi", "relative"):
            raise ConfigError(f"backend 'varlen' can't add a bias to its scores, and positions = '{positions}' is one; use backend 'sdpa'")
        if mask == "prefix":
            raise ConfigError("backend 'varlen' knows full and causal documents and windows, but no prefix mask; use backend 'sdpa'")
        if dropout:
            raise ConfigError(f"backend 'varlen' can't drop weights; set attention_dropout = 0 (it is {dropout}) or use backend 'sdpa'")
    return BACKENDS[name]


@contextmanager
def using(name: str) -> Iterator[None]:
    """Every attention called within uses this backend, whatever its model was built with. Compiled code keeps its own."""
    token = _override.set(choose(name))
    try:
        yield
    finally:
        _override.reset(token)


def chosen(built_with: Backend) -> Backend:
    """The backend in force: that of `using`, or else the model's own."""
    return built_with if torch.compiler.is_compiling() else _override.get() or built_with


def overridden() -> bool:
    """Whether `using` is in force."""
    return _override.get() is not None


def serving(backend: Backend, mask: Mask) -> Backend:
    """`varlen` is for packed rows alone; what a model built with it reads padded or through a cache goes through `sdpa`."""
    return sdpa if backend is varlen and mask.packed is None else backend


def _one_row(x: Tensor) -> Tensor:
    return x.squeeze(0).transpose(0, 1)  # (tokens, heads, head_width)


def _refuse_packed(mask: Mask, name: str) -> None:
    if mask.packed is not None:
        edges: Boundaries = mask.packed.query
        raise MaskError(
            f"the mask was packed ({len(edges.edges) - 1} documents) for backend 'varlen', but the backend is '{name}'; "
            "make it with .build() instead of .pack()"
        )

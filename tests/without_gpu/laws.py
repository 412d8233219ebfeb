"""Every kernel is its formula: laws that run in Triton's interpreter, on shapes as small as show everything.

In float32 and float16; the interpreter's bfloat16 is not a GPU's. What is compared with comes from PyTorch in float64 on the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.decoding.rules import Steering
from regard.decoding.sampling import Sampler
from regard.decoding.search import BeamSearch
from regard.decoding.settings import Beam, Method, Rules, Sampling
from regard.nn.backends import explicit
from regard.nn.cache import KeyValues
from regard.nn.masks import Boundaries, Causal, Documents, Mask, Packed, Window

DTYPES = (torch.float32, torch.float16)
END, NEVER = 2, 5


def close(found: Tensor, exact: Tensor, steps: int, what: str = "") -> None:
    """Within the rounding of so many operations one after the other, on numbers as large as these."""
    rounding = torch.finfo(found.dtype).eps * steps * max(1.0, float(exact.abs().max()))
    apart = float((found.double() - exact).abs().max())
    assert apart <= rounding, f"{what}: {apart:.1e} apart, {rounding:.1e} allowed"


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape).to(dtype)


def one_query_law(dtype: torch.dtype, *, masked: bool = True, writes: bool = True, group: int = 1, queries: int = 2) -> None:
    """The cache is written, and nothing beyond it is looked at; who sees nothing has nothing."""
    from regard.nn.one_query import attend

    torch.manual_seed(1)
    rows, kv_heads, width, capacity, used = 2, 2, 16, 24, 19
    scale, end = 0.3, used + queries if writes else capacity
    query = normal(rows, kv_heads * group, queries, width, dtype=dtype)
    keys, values = (normal(rows, kv_heads, capacity, width, dtype=dtype) for _ in range(2))
    new = KeyValues(*(normal(rows, kv_heads, queries, width, dtype=dtype) for _ in range(2))) if writes else None
    visible = torch.rand(rows, 1, queries, capacity) < 0.6 if masked else None
    if visible is not None:
        visible[1, :, 0] = False
    wanted = [each.clone() for each in (keys, values)]
    if new is not None:
        for buffer, own in zip(wanted, new, strict=True):
            buffer[:, :, used:end] = own
        keys[:, :, end:], values[:, :, end:] = float("nan"), float("nan")
    slots = torch.arange(used, end) if writes else None
    found = attend(query, keys, values, Mask(visible), scale, new=new, slots=slots)
    for buffer, want in zip((keys, values), wanted, strict=True):
        assert torch.equal(buffer[:, :, :end], want[:, :, :end])
    seen = None if visible is None else visible[..., :end]
    mask = Mask(seen, None if seen is None else ~seen.any(-1, keepdim=True))
    read = [buffer[:, :, :end].double() for buffer in wanted]
    exact = explicit(query.double(), *read, mask=mask, bias=None, scale=scale, dropout=0.0).output.transpose(1, 2).flatten(2)
    close(found, exact, 8)


def short_law(dtype: torch.dtype, rule: str, *, group: int = 1, across: bool = False) -> None:
    """Packed documents, forwards and backwards, with tiles that hold several of them, or a part of one."""
    from regard.nn import short

    torch.manual_seed(2)
    own = Boundaries(torch.tensor([0, 3, 3, 20, 25], dtype=torch.int32), 17)
    other = Boundaries(torch.tensor([0, 4, 6, 20, 22], dtype=torch.int32), 14) if across else own
    tokens, keys, kv_heads, width = 25, 22 if across else 25, 2, 16
    causal, window = "causal" in rule, 4 if "window" in rule else None
    made: Any = Documents(own, other if across else None)
    made = made & Causal() if causal else made
    made = made & Window(window) if window else made
    mask = made.build(torch.arange(tokens)[None], keys)
    mask = Mask(mask.visible, ~mask.visible.any(-1, keepdim=True))
    given = [
        normal(1, heads, count, width, dtype=dtype) for heads, count in ((kv_heads * group, tokens), (kv_heads, keys), (kv_heads, keys))
    ]
    reading = normal(1, kv_heads * group, tokens, width, dtype=dtype)
    inputs = [each.clone().requires_grad_() for each in given]
    exact = [each.double().requires_grad_() for each in given]
    found = short.attend(*inputs, Packed(own, other, causal, window), 0.25)
    want = explicit(*exact, mask=mask, bias=None, scale=0.25, dropout=0.0).output
    slopes = torch.autograd.grad((found * reading).sum(), inputs), torch.autograd.grad((want * reading.double()).sum(), exact)
    for name, got, true in zip(("output", "query", "key", "value"), (found, *slopes[0]), (want, *slopes[1]), strict=True):
        close(got.detach(), true.detach(), 16, name)


def add_norm_law(dtype: torch.dtype, dropout: float) -> None:
    """Forwards and backwards. What is dropped is read off a sum of ones, from the same seed; as many are as should be."""
    from regard.nn.residual import add_norm

    torch.manual_seed(3)
    rows, width = 7, 24
    x, change, reading = (normal(rows, width, dtype=dtype) for _ in range(3))
    weight, bias = torch.rand(width) + 0.5, normal(width)
    inputs = [each.clone().requires_grad_() for each in (x, change, weight, bias)]
    torch.manual_seed(4)
    output, added = add_norm(*inputs, dropout=dropout, epsilon=1e-5)
    torch.manual_seed(4)
    kept = add_norm(torch.zeros_like(x), torch.ones_like(x), weight, bias, dropout=dropout, epsilon=1e-5)[1] != 0
    share, deviation = float(kept.float().mean()), (dropout * (1 - dropout) / kept.numel()) ** 0.5
    assert abs(share - (1 - dropout)) <= 4 * deviation
    exact = [each.detach().double().requires_grad_() for each in inputs]
    sums = exact[0] + exact[1] * kept / (1 - dropout)
    want = F.layer_norm(sums, (width,), *exact[2:], 1e-5)
    slopes = torch.autograd.grad((output * reading).sum(), inputs), torch.autograd.grad((want * reading.double()).sum(), exact)
    close(added.detach(), sums.detach(), 4, "sum")
    for name, got, true in zip(("output", "x", "change", "weight", "bias"), (output, *slopes[0]), (want, *slopes[1]), strict=True):
        # The sum is rounded to its dtype before the norm, and so is what the gradients of weight and bias add up.
        close(got.detach().to(dtype), true.detach(), 32, name)


def add_norm_alone_law(dtype: torch.dtype) -> None:
    from regard.nn.residual import add_norm_alone

    torch.manual_seed(5)
    x, change = (normal(2, 3, 24, dtype=dtype) for _ in range(2))
    norm = torch.nn.LayerNorm(24).to(dtype)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 1.5)
        norm.bias.normal_()
    output, added = add_norm_alone(x, change, norm)
    exact = x.double() + change.double()
    close(added, exact, 1)
    close(output.detach(), F.layer_norm(exact, (24,), norm.weight.double(), norm.bias.double(), norm.eps).detach(), 16)


def surprise_law(dtype: torch.dtype, smoothing: float, surprise: Callable[..., Tensor] | None = None) -> None:
    """Values and slopes, of a vocabulary that is no multiple of a block, beside columns that are padding."""
    if surprise is None:
        from regard.training.surprise import surprise

    torch.manual_seed(6)
    rows, vocabulary, columns = 7, 50, 64
    logits = normal(rows, columns, dtype=dtype) * 3
    labels, real = torch.randint(vocabulary, (rows,)), torch.tensor([True, True, False, True, True, False, True])
    exact = logits[:, :vocabulary].double().requires_grad_()
    want = F.cross_entropy(exact, labels, reduction="none", label_smoothing=smoothing) * real
    (slope,) = torch.autograd.grad(want.sum(), exact)
    for slopes in (False, True):
        given = logits.clone()
        found = surprise(given, labels, real, smoothing, vocabulary, slopes=slopes)
        close(found, want.detach(), 16, "surprise")
        if slopes:
            close(given[:, :vocabulary], slope, 4, "slopes")
            assert not given[:, vocabulary:].any()
        else:
            assert torch.equal(given, logits)


def search_law(dtype: torch.dtype, method: Method, vocabulary: int = 70) -> None:
    """A search by the kernels is the search: words, parents and scores at every position, of sources that end at different lengths."""
    from regard.decoding import fused

    lengths = [1, 3]
    plain, quick = (search_of(method, lengths) for _ in range(2))
    chance = torch.Generator().manual_seed(7)
    for position in range(8):
        hypotheses = plain.hypotheses if position else 1
        scores = torch.stack([torch.randperm(vocabulary, generator=chance) / 8.0 for _ in range(len(lengths) * hypotheses)])  # no two alike
        scores[:, NEVER] += 9.0
        scores[:, END] += position / 2 + 1 / 16
        logits = scores.view(len(lengths), hypotheses, vocabulary).to(dtype)
        plain.advance(logits.clone())
        if isinstance(quick, Sampler):
            assert fused.serves_greedy(quick, logits)
            fused.greedy(quick, logits)
        elif position:
            assert fused.serves_beam(quick, logits)
            fused.beam(quick, logits)
        else:
            quick.advance(logits)
        assert torch.equal(quick.open, plain.open), position
        assert torch.equal(quick.words[plain.open], plain.words[plain.open]), position
    places = torch.arange(len(lengths))
    assert not plain.open.any()
    for mine, others in zip(quick.results(places), plain.results(places), strict=True):
        assert [each.tokens for each in mine] == [each.tokens for each in others]
        for one, other in zip(mine, others, strict=True):
            assert abs(one.score - other.score) <= 16 * torch.finfo(torch.float32).eps * max(1.0, abs(other.score))


def search_of(method: Method, lengths: list[int], longest: str = "2+1x") -> Any:
    """A search over sources of these lengths."""
    steering = Steering.of(Rules(max_length=longest, min_length=2, never=[NEVER]), lengths, END)
    if isinstance(method, Beam) and method.size > 1:
        return BeamSearch(method, steering)
    return Sampler(Sampling(temperature=0), steering, torch.arange(len(lengths)))

"""Kernels for short documents equal `explicit`: several documents in a tile, and none of them sees another."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from regard.nn import using
from regard.nn.attention import Attention
from regard.nn.backends import attend
from regard.nn.masks import Boundaries, Causal, Documents, Packed, Rule, Window

TOLERANCE = 1e-2  # of the norm: what bfloat16 operands leave
LENGTHS, SOURCE_LENGTHS = [5, 1, 130, 29, 64, 3, 3, 2, 200, 1], [17, 3, 90, 1, 200, 0, 4, 64, 30, 65]
RULES: dict[str, list[Rule]] = {"full": [], "causal": [Causal()], "window": [Window(7)], "causal+window": [Causal(), Window(7)]}


def boundaries(lengths: list[int], device: str = "cpu") -> Boundaries:
    edges = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device=device)
    return Boundaries(edges, max(lengths))


def documents(rule: str, source: list[int] | None, device: str = "cpu") -> Rule:
    made: Rule = Documents(boundaries(LENGTHS, device), None if source is None else boundaries(source, device))
    for part in RULES[rule]:
        made = made & part
    return made


def packed(rule: Rule) -> Packed:
    found = rule.pack().packed
    assert found is not None
    return found


def error(got: Tensor, want: Tensor) -> float:
    return float((got.detach().double() - want.detach().double()).norm() / want.detach().double().norm())


@pytest.mark.gpu
@pytest.mark.parametrize("rule", sorted(RULES))
def test_spans_are_the_mask(rule: str) -> None:
    """A query sees the slots of its span and no other; a key is seen by those of its own."""
    from regard.nn.short import spans

    for source in (None, SOURCE_LENGTHS) if rule == "full" else (None,):
        made = documents(rule, source, "cuda")
        mask, keys = packed(made), sum(source or LENGTHS)
        table = made.build(torch.arange(sum(LENGTHS), device="cuda")[None], keys).visible
        assert table is not None
        after = 1 if mask.causal else mask.window
        first, last = spans(mask.query, mask.key, sum(LENGTHS), mask.window, after)
        slots = torch.arange(keys, device="cuda")
        assert torch.equal((slots >= first[:, None]) & (slots < last[:, None]), table[0, 0])
        first, last = spans(mask.key, mask.query, keys, after, mask.window)
        slots = torch.arange(sum(LENGTHS), device="cuda")
        assert torch.equal((slots >= first[:, None]) & (slots < last[:, None]), table[0, 0].T)


@pytest.mark.gpu
@pytest.mark.parametrize("width", [16, 32, 64, 128])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (3, 1)])
@pytest.mark.parametrize(("rule", "source"), [*((rule, None) for rule in sorted(RULES)), ("full", SOURCE_LENGTHS)])
def test_outputs_and_gradients(rule: str, source: list[int] | None, heads: int, kv_heads: int, width: int) -> None:
    """In bfloat16 against the formula in float64 on the same numbers."""
    from regard.nn import short

    made = documents(rule, source, "cuda")
    tokens, keys = sum(LENGTHS), sum(source or LENGTHS)
    queries = torch.randn(1, heads, tokens, width, device="cuda", dtype=torch.bfloat16)
    both = torch.randn(1, keys, 2 * kv_heads, width, device="cuda", dtype=torch.bfloat16).transpose(
        1, 2
    )  # tokens, then heads, as they come
    reading = torch.randn(1, heads, tokens, width, device="cuda", dtype=torch.bfloat16)
    found = []
    for exact in (False, True):
        query, kv = (x.detach().to(torch.float64 if exact else x.dtype).requires_grad_() for x in (queries, both))
        key, value = kv.split(kv_heads, 1)
        if exact:
            mask = made.build(torch.arange(tokens, device="cuda")[None], keys)
            key, value = (x.repeat_interleave(heads // kv_heads, 1) for x in (key, value))
            output = attend(query, key, value, mask=mask, scale=0.3).output
        else:
            output = short.attend(query, key, value, packed(made), 0.3)
        found.append((output, *torch.autograd.grad((output * reading.to(output.dtype)).sum(), (query, kv))))
    errors = [error(got, want) for got, want in zip(*found, strict=True)]
    print(f"{rule}, {'cross' if source else 'self'}, {heads}/{kv_heads} heads of {width}: " + ", ".join(f"{value:.1e}" for value in errors))
    assert max(errors) < TOLERANCE


@pytest.mark.gpu
def test_varlen_chooses_it_and_both_kernels_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    from regard.nn import backends, short

    attention = Attention(512, 8, backend="varlen").cuda().bfloat16()
    x = torch.randn(1, sum(LENGTHS), 512, device="cuda", dtype=torch.bfloat16)
    mask = documents("causal", None, "cuda").pack()
    assert backends.short_starts(x.dtype, x.device, 64)  # which calls it once, the first time
    calls = []
    kernel = short.attend
    monkeypatch.setattr(short, "attend", lambda *arguments: calls.append(1) or kernel(*arguments))
    with using("varlen"):
        here = attention(x, mask=mask)
        monkeypatch.setattr(backends, "HAS_TRITON", False)
        there = attention(x, mask=mask)
    assert calls == [1]
    assert error(here, there) < TOLERANCE


@pytest.mark.gpu
def test_a_query_that_sees_nothing_gets_zeros_and_gives_no_gradient() -> None:
    from regard.nn import short

    query = torch.randn(1, 2, 5, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    kv = torch.randn(1, 2, 4, 64, device="cuda", dtype=torch.bfloat16)
    mask = packed(Documents(boundaries([2, 3], "cuda"), boundaries([0, 4], "cuda")))
    output = short.attend(query, kv, kv, mask, 0.125)
    output.sum().backward()
    assert (output[:, :, :2] == 0).all()
    assert (output[:, :, 2:] != 0).any()
    assert query.grad is not None
    assert (query.grad[:, :, :2] == 0).all()
    assert query.grad.isfinite().all()


@pytest.mark.gpu
def test_the_same_numbers_every_time() -> None:
    """No sum depends on which multiprocessor is first: a resumed run goes on to the last bit."""
    from regard.nn import short

    query, key, value = torch.randn(3, 1, 8, sum(LENGTHS), 64, device="cuda", dtype=torch.bfloat16).requires_grad_().unbind(0)
    mask = packed(documents("causal", None, "cuda"))
    runs = []
    for _ in range(3):
        output = short.attend(query, key, value, mask, 0.125)
        runs.append((output, *torch.autograd.grad(output.square().sum(), (query, key, value))))
    assert all(torch.equal(got, want) for run in runs[1:] for got, want in zip(run, runs[0], strict=True))


@pytest.mark.gpu
def test_compiled_code_has_it_as_one_node_and_takes_any_number_of_documents() -> None:
    attention = Attention(128, 2, backend="varlen").cuda().bfloat16()
    compiled = torch.compile(attention, fullgraph=True)
    torch._dynamo.utils.counters.clear()
    for seed, count in enumerate((7, 30, 12)):
        torch.manual_seed(seed)
        edges = torch.cat((torch.zeros(1), torch.randperm(400)[:count].sort().values, torch.tensor([400.0]))).to("cuda", torch.int32)
        torch._dynamo.maybe_mark_dynamic(edges, 0)
        mask = (Documents(Boundaries(edges, 200)) & Causal()).pack()
        x = torch.randn(1, 400, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        got, want = (call(x, mask=mask) for call in (compiled, attention))
        assert error(got, want) < TOLERANCE
        slopes = [torch.autograd.grad(output.square().sum(), x)[0] for output in (got, want)]
        assert error(*slopes) < 2 * TOLERANCE
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1

"""`varlen` on a GPU equals `explicit`: packed documents in bfloat16 against the formula in float32 on the same numbers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.data.batch import Tokens
from regard.nn import using
from regard.nn.attention import Attention
from regard.nn.masks import Boundaries, Causal, Documents, Rule, Window
from regard.nn.positions import Rotary
from tests.families import outputs, sentences, small

pytestmark = pytest.mark.gpu

TOLERANCE = 1e-2  # of the norm: what bfloat16 operands leave
LENGTHS, SOURCE_LENGTHS = [5, 1, 130, 29, 64], [17, 3, 90, 1, 200]


def boundaries(lengths: list[int]) -> Boundaries:
    edges = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device="cuda")
    return Boundaries(edges, max(lengths))


def error(got: Tensor, want: Tensor) -> float:
    return float((got.detach().float() - want.detach().float()).norm() / want.detach().float().norm())


def compare(fast: Attention, rule: Rule, x: Tensor, source: Tensor | None, **more: Any) -> dict[str, float]:
    """How far `varlen` in bfloat16 is from `explicit` in float32: the output, and the gradients of inputs and weights."""
    exact = copy.deepcopy(fast).float()
    reading = torch.randn_like(x)
    results = []
    for attention, backend in ((fast, "varlen"), (exact, "explicit")):
        inputs = [tensor.detach().to(attention.project.weight.dtype).requires_grad_() for tensor in (x, source) if tensor is not None]
        mask = rule.pack() if backend == "varlen" else rule.build(torch.arange(x.shape[1], device="cuda")[None], inputs[-1].shape[1])
        with using(backend):
            output = attention(*inputs, mask=mask, **more)
        named = {"x": inputs[0], "weight": attention.project.weight, **({"source": inputs[1]} if source is not None else {})}
        gradients = torch.autograd.grad((output * reading.to(output.dtype)).sum(), list(named.values()))
        results.append({"output": output, **dict(zip(named, gradients, strict=True))})
    return {key: error(results[0][key], results[1][key]) for key in results[0]}


@pytest.mark.parametrize("kv_heads", [8, 2, 1])
@pytest.mark.parametrize("rule", ["full", "causal", "causal+window", "window"])
def test_self_attention(rule: str, kv_heads: int) -> None:
    torch.manual_seed(0)
    documents = Documents(boundaries(LENGTHS))
    rules = {
        "full": documents,
        "causal": documents & Causal(),
        "window": documents & Window(7),
        "causal+window": documents & Causal() & Window(7),
    }
    attention = Attention(512, 8, kv_heads=kv_heads, backend="varlen").cuda().bfloat16()
    x = torch.randn(1, sum(LENGTHS), 512, device="cuda", dtype=torch.bfloat16)
    errors = compare(attention, rules[rule], x, None)
    print(f"self, {rule}, {kv_heads} kv heads: " + ", ".join(f"{key} {value:.1e}" for key, value in errors.items()))
    assert all(value < TOLERANCE for value in errors.values()), errors


def test_self_attention_with_rotary_positions() -> None:
    torch.manual_seed(0)
    attention = Attention(512, 8, backend="varlen").cuda().bfloat16()
    x = torch.randn(1, sum(LENGTHS), 512, device="cuda", dtype=torch.bfloat16)
    where = torch.cat([torch.arange(length) for length in LENGTHS]).cuda()[None]
    place = Rotary(64).place(where, where, torch.float32)
    errors = compare(attention, Documents(boundaries(LENGTHS)) & Causal(), x, None, positions=place)
    print("self, rotary: " + ", ".join(f"{key} {value:.1e}" for key, value in errors.items()))
    assert all(value < TOLERANCE for value in errors.values()), errors


@pytest.mark.parametrize("kv_heads", [8, 2])
def test_cross_attention(kv_heads: int) -> None:
    torch.manual_seed(0)
    attention = Attention(512, 8, kv_heads=kv_heads, backend="varlen").cuda().bfloat16()
    x, source = (torch.randn(1, sum(lengths), 512, device="cuda", dtype=torch.bfloat16) for lengths in (LENGTHS, SOURCE_LENGTHS))
    errors = compare(attention, Documents(boundaries(LENGTHS), boundaries(SOURCE_LENGTHS)), x, source)
    print(f"cross, {kv_heads} kv heads: " + ", ".join(f"{key} {value:.1e}" for key, value in errors.items()))
    assert all(value < TOLERANCE for value in errors.values()), errors


def test_a_document_without_a_source_gets_zeros() -> None:
    attention = Attention(64, 2, bias="none", backend="varlen").cuda().bfloat16()
    x, source = torch.randn(1, 5, 64, device="cuda", dtype=torch.bfloat16), torch.randn(1, 4, 64, device="cuda", dtype=torch.bfloat16)
    output = attention(x, source, mask=Documents(boundaries([2, 3]), boundaries([0, 4])).pack())
    assert (output[0, :2] == 0).all()
    assert (output[0, 2:] != 0).any()


@pytest.mark.parametrize("name", ["transformer-base", "gpt2", "llama-tiny", "bert-base"])
@torch.no_grad()
def test_whole_models(name: str) -> None:
    """Packed through `varlen` in bfloat16, padded through `explicit` in float64."""
    shape = {"width": 128, "heads": 4, "feedforward": 256, "kv_heads": 2 if name == "llama-tiny" else None}
    exact, fast = small(name, "explicit", **shape).cuda(), small(name, "varlen", **shape).cuda().bfloat16()
    exact.load_state_dict(fast.state_dict())  # the same rounded weights
    source, target = sentences(40, 7, 1, seed=1), sentences(20, 33, 2, seed=2)
    padded = Tokens.pad(target, device="cuda")
    want = outputs(exact, Tokens.pad(source, device="cuda"), padded)[padded.real]
    got = outputs(fast, Tokens.pack(source, device="cuda"), Tokens.pack(target, device="cuda"))[0]
    print(f"{name}: {error(got, want):.1e}")
    assert error(got, want) < 3 * TOLERANCE

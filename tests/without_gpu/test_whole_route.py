"""The whole route of a GPU: its predicates say yes, its kernels are interpreted, positions are on a tape, and tables are kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.decoding import fused
from regard.decoding.kept import Kept
from regard.decoding.settings import GREEDY, Beam, Method, Rules
from regard.nn import cache, few, joined
from tests.decoding.lively import SOURCES, Kind, made_lively
from tests.without_gpu import needs_kernels
from tests.without_gpu.recording import scheduled_as_on_a_gpu, written
from tests.without_gpu.tape import Tapes, launches_on_tape

pytestmark = [
    pytest.mark.slow,
    needs_kernels,
    pytest.mark.usefixtures("small_kernels"),
    pytest.mark.filterwarnings("ignore:.* encountered:RuntimeWarning"),  # NumPy's, in the interpreter
]
SHAPE = {"width": 32, "heads": 2, "kv_heads": None}  # heads as wide as kernels take them
MODELS = {
    "norms after": Kind("transformer-base", SHAPE, 0.15, 2, 3),
    "norms before": Kind("transformer-base", SHAPE | {"norm_place": "before"}, 0.0, 1, 3),
    "a language model": Kind("gpt2", SHAPE, 0.15, 3, 1),
    "grouped heads, a window": Kind("llama-tiny", SHAPE | {"kv_heads": 1, "window": 4}, 0.3, 3, 1),
}
RULES = Rules(max_length=10, min_length=2, never=[5])
# Through sums in another order; and on a CPU PyTorch's product with GELU at its end has the exact one, not that of tanh.
WITHIN = {"a language model": 2e-3}
Taken = Counter[str]


@contextmanager
def as_on_a_gpu(tapes: Tapes) -> Iterator[Taken]:
    """What is asked whether it is on a GPU, in half precision, says that it is; everything else that is asked of it is asked."""
    taken: Taken = Counter()
    served, alone = few.served_on_gpu, joined.alone

    class There:
        is_cuda, dtype = True, torch.float16

    def served_there(device: torch.device, dtype: torch.dtype, *asked: int) -> bool:
        return served(torch.device("cuda"), torch.float16, *asked)

    def suits_beam(search: Any, logits: Tensor, weights: Tensor | None) -> bool:
        return weights is None and fused.serves_beam(search, logits)

    def alone_there(module: nn.Module, x: Tensor) -> bool:
        return alone(module, There)  # type: ignore[arg-type]

    with scheduled_as_on_a_gpu(tapes), launches_on_tape(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(few, "served_on_gpu", served_there)
        patch.setattr(cache, "served_on_gpu", served_there)
        patch.setattr(joined, "alone", alone_there)
        patch.setattr(fused, "suits_greedy", fused.serves_greedy)
        patch.setattr(fused, "suits_beam", suits_beam)
        count(patch, taken)
        yield taken


def count(patch: pytest.MonkeyPatch, taken: Taken) -> None:
    """How often each faster way is taken."""
    from regard.nn import one_query

    def counted(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*given: Any, **named: Any) -> Any:
            taken[name] += 1
            return work(*given, **named)

        return counting

    for module, name in ((one_query, "attend"), (joined, "run"), (joined, "activated"), (fused, "greedy"), (fused, "beam")):
        patch.setattr(module, name, counted(name, getattr(module, name)))


@pytest.mark.parametrize("method", [GREEDY, Beam(size=3, n_best=2)], ids=["greedy", "beam"])
@pytest.mark.parametrize("kind", MODELS)
def test_writes_the_same_words(kind: str, method: Method) -> None:
    """Twice: the second time at the tables of the first, where nothing is recorded again."""
    model, sources = made_lively(MODELS[kind]).float(), [[*source] for source in SOURCES[:3]]
    want = written(model, sources, method, RULES)
    assert len({len(row[0][0]) for row in want}) > 1  # they end at different lengths
    tapes, pool, recorded = Tapes(), Kept(), []
    with as_on_a_gpu(tapes) as taken:
        for _ in range(2):
            found = written(model, sources, method, RULES, pool)
            recorded.append(tapes.recorded)
            assert [[tokens for tokens, _ in row] for row in found] == [[tokens for tokens, _ in row] for row in want]
            for mine, others in zip(found, want, strict=True):
                for (_, score), (_, exact) in zip(mine, others, strict=True):
                    assert score == pytest.approx(exact, abs=WITHIN.get(kind, 2e-5))
    assert recorded[0] == recorded[1] > 0
    assert tapes.replayed > tapes.recorded
    gated = MODELS[kind].preset == "llama-tiny"  # and its norms are of another kind: nothing is joined there
    assert set(taken) == {"attend", "greedy" if method is GREEDY else "beam"} | (set() if gated else {"run", "activated"})

"""How weights move: the learning rate of each step, the optimizers, and the clipping of gradients."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import TrainingError, nearest
from regard.models import Encoder, Network
from regard.nn.embedding import Deembedder, Embedder
from regard.nn.positions import Positions, RelativeBias
from regard.recipe import TrainingSettings

LAYER = re.compile(r"\blayers\.(\d+)\.")
BOTTOM = re.compile(r"^(embed|token_types)|\.(positions|embedding_norm)\b")


def learning_rate(settings: TrainingSettings, step: int, width: int) -> float:
    """The learning rate of a step; the first update is step 1. `width` is the model's, which the paper's schedule depends on."""
    warmup = max(settings.warmup, 1)  # without a warm-up, step 1 is at the top already
    rise = min(1.0, step / warmup)
    left = max(settings.steps - step, 0)
    match settings.schedule:
        case "paper":
            return settings.lr * width**-0.5 * min(step**-0.5, step * warmup**-1.5)
        case "inverse-sqrt":
            return settings.lr * min(rise, math.sqrt(warmup / step))
        case "cosine":
            if step <= warmup:
                return settings.lr * rise
            done = 1 - left / max(settings.steps - warmup, 1)
            return settings.lr * (1 + math.cos(math.pi * done)) / 2
        case "wsd":
            fall = min(1.0, left / (settings.decay * settings.steps)) if settings.decay else 1.0
            return settings.lr * min(rise, fall)
        case "constant":
            return settings.lr * rise


class Optimizer:
    """One or two of PyTorch's optimizers as one. Its state is kept by the names of parameters, so it does not depend on their order.

    Learning rates and other settings are no part of the state: they come from the recipe and the step.
    """

    def __init__(self, names: Mapping[nn.Parameter, str], parts: list[torch.optim.Optimizer]) -> None:
        self.names, self.parts = names, parts

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for part in self.parts for group in part.param_groups]

    @property
    def fused(self) -> bool:
        """Whether all of a step is done by PyTorch's fused kernels."""
        return all(group.get("fused") for group in self.param_groups)

    def set_lr(self, lr: float) -> None:
        for group in self.param_groups:
            own = lr * group["pace"]
            if isinstance(group["lr"], Tensor):  # where a recorded step will look for it
                group["lr"].fill_(own)
            else:
                group["lr"] = own

    def step(self, unless: Tensor | None = None) -> None:
        """Moves the parameters, unless that is true. PyTorch's fused kernels ask it on the device; for the others, someone has to wait."""
        if unless is not None and not self.fused and bool(unless):
            return
        for part in self.parts:
            if self.fused:
                part.found_inf = None if unless is None else unless.to(torch.float32)  # type: ignore[attr-defined]
            part.step()

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """What is remembered of each parameter, by its name: the tensors in use, not copies."""
        return {
            self.names[parameter]: dict(part.state[parameter]) for part in self.parts for parameter in _of(part) if parameter in part.state
        }

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Goes on from a state, of which copies are kept. A parameter that it says nothing of starts afresh."""
        unknown = sorted(state.keys() - self.names.values())
        if unknown:
            raise TrainingError(
                f"the optimizer's state has {unknown[0]!r}, which this model does not train; resume with the recipe that the run began with"
            )
        for part in self.parts:
            kept = {}
            for index, parameter in enumerate(_of(part)):
                own = state.get(self.names[parameter], {})
                self._check(part, parameter, own)
                if own:
                    kept[index] = {key: tensor.clone() for key, tensor in own.items()}
            part.load_state_dict({"state": kept, "param_groups": part.state_dict()["param_groups"]})

    def _check(self, part: torch.optim.Optimizer, parameter: nn.Parameter, own: Mapping[str, Tensor]) -> None:
        wanted = {"momentum_buffer"} if isinstance(part, torch.optim.Muon) else {"step", "exp_avg", "exp_avg_sq"}
        shapes = {tensor.shape for key, tensor in own.items() if key != "step"}
        if own and (own.keys() != wanted or shapes != {parameter.shape}):
            raise TrainingError(
                f"the optimizer's state of {self.names[parameter]!r} is not one of {type(part).__name__} for a tensor "
                f"{tuple(parameter.shape)}; resume with the recipe that the run began with"
            )


def make_optimizer(model: Network, settings: TrainingSettings, *, fused: bool) -> Optimizer:
    """The optimizer of a model's parameters, all but those that the settings freeze.

    Weight decay is for matrices, embeddings and learned positions among them; norms, biases and relative position biases have none.
    Muon moves the matrices between hidden states, at the same learning rate; AdamW moves embeddings, outputs, positions and vectors.
    """
    freeze(model, settings.freeze)
    names = {parameter: name for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not names:
        raise TrainingError("every parameter is frozen, so there is nothing to train; take something out of training.freeze")
    hidden = _hidden(model) if settings.optimizer == "muon" else set()
    paces = _paces(names, settings.layer_decay)
    parts: list[torch.optim.Optimizer] = []
    muon = [parameter for parameter in names if parameter in hidden]
    if muon:
        # A step as large as one of AdamW would be, so that one learning rate and one schedule serve both.
        groups = _groups(muon, paces, settings.weight_decay)
        parts.append(torch.optim.Muon(groups, lr=settings.lr, weight_decay=settings.weight_decay, adjust_lr_fn="match_rms_adamw"))
    rest = [parameter for parameter in names if parameter not in hidden]
    decays = {parameter for parameter in rest if parameter.ndim >= 2} - _owned_by(model, RelativeBias)
    groups = [
        *_groups([parameter for parameter in rest if parameter in decays], paces, settings.weight_decay),
        *_groups([parameter for parameter in rest if parameter not in decays], paces, 0.0),
    ]
    if groups:
        device = rest[0].device
        on_gpu = fused and device.type == "cuda"  # then all that changes between steps is there, so that a step can be recorded
        for group in groups:
            group["lr"] = torch.tensor(settings.lr, device=device) if on_gpu else settings.lr
        # None, not False, lets PyTorch choose between its other two ways.
        parts.append(torch.optim.AdamW(groups, betas=settings.betas, eps=settings.epsilon, fused=fused or None, capturable=on_gpu))
    return Optimizer(names, parts)


def _groups(parameters: Iterable[nn.Parameter], paces: Mapping[nn.Parameter, float], weight_decay: float) -> list[dict[str, Any]]:
    """These parameters, those of one pace together."""
    by_pace: dict[float, list[nn.Parameter]] = {}
    for parameter in parameters:
        by_pace.setdefault(paces[parameter], []).append(parameter)
    return [{"params": own, "weight_decay": weight_decay, "pace": pace} for pace, own in by_pace.items()]


def _paces(names: Mapping[nn.Parameter, str], decay: float) -> dict[nn.Parameter, float]:
    """What share of the learning rate each parameter has: all of it above the last layer, less with every layer below."""
    if decay == 1.0:
        return dict.fromkeys(names, 1.0)
    layers = {parameter: LAYER.search(name) for parameter, name in names.items()}
    top = 1 + max((int(found[1]) for found in layers.values() if found), default=0)

    def below(parameter: nn.Parameter, name: str) -> int:
        """How many steps down from the top: a layer's own number of them, and one more for embeddings and positions."""
        found = layers[parameter]
        return top - int(found[1]) if found else 1 + top if BOTTOM.search(name) else 0

    return {parameter: decay ** below(parameter, name) for parameter, name in names.items()}


def freeze(model: nn.Module, prefixes: Iterable[str]) -> None:
    """Parameters whose names begin so get no gradients."""
    names = dict(model.named_parameters())
    for prefix in prefixes:
        frozen = [parameter for name, parameter in names.items() if name.startswith(prefix)]
        if not frozen:
            parts = {part for name in names for part in accumulate(name.split("."), "{}.{}".format)}
            raise TrainingError(f"training.freeze = {prefix!r} begins no parameter's name; {nearest(prefix, parts)}")
        for parameter in frozen:
            parameter.requires_grad_(False)


def clip(parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
    """Scales gradients down so that their norm is at most `limit`, and gives the norm that they had. A limit of 0 only measures."""
    parameters = [parameter for parameter in parameters if parameter.grad is not None]
    norm = nn.utils.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
    if limit:
        nn.utils.clip_grads_with_norm_(parameters, limit, norm)
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # of gradients spread over several processes


def _hidden(model: Network) -> set[nn.Parameter]:
    """The matrices from hidden state to hidden state; one of a single row is a vector by another name."""
    outer = _owned_by(model, Embedder, Deembedder, Positions)
    if isinstance(model, Encoder) and model.classifier is not None:
        outer |= set(model.classifier.parameters())
    return {parameter for parameter in model.parameters() if parameter.ndim == 2 and min(parameter.shape) > 1} - outer


def _owned_by(model: nn.Module, *kinds: type[nn.Module]) -> set[nn.Parameter]:
    return {parameter for module in model.modules() if isinstance(module, kinds) for parameter in module.parameters()}


def _of(part: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in part.param_groups for parameter in group["params"]]

"""The same model said in another way: other weights and settings that give the same logits.

Other libraries know fewer variants than we do. Where one of theirs is a matter of how the same thing is written down (which of a vector's
numbers stand where, whether a factor lies in a weight), the weights are rewritten and nothing is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.config import EncoderConfig, ModelConfig, Transformer, change
from regard.nn.positions import sinusoid


@dataclass(frozen=True)
class Form:
    """A config and the weights that go with it."""

    config: ModelConfig
    tensors: dict[str, Tensor]

    @property
    def transformer(self) -> Transformer:
        assert isinstance(self.config, Transformer)
        return self.config


Rewriting = Callable[[Form], Form]


def as_halves(form: Form) -> Form:
    """Sines in the first half of a vector and cosines in the second, or pairs to be turned half a head apart, instead of side by side."""
    config = form.transformer
    if config.position_layout == "halves" or config.positions not in ("sinusoidal", "rotary"):
        return form
    tensors = _width_in_halves(form) if config.positions == "sinusoidal" else _heads_in_halves(form)
    return Form(change(form.config, position_layout="halves"), tensors)


def _width_in_halves(form: Form) -> dict[str, Tensor]:
    """Every vector of the stack with its even numbers first: what reads it, writes it or norms it changes alike."""
    order = torch.cat((torch.arange(0, form.transformer.width, 2), torch.arange(1, form.transformer.width, 2)))
    written = ("join.weight", "join.bias", "narrow.weight", "narrow.bias", "norm.weight", "norm.bias")
    read = ("project.weight", "widen.weight", "embed.weight", "embed_source.weight", "token_types.weight", "classifier.weight")

    def moved(name: str, tensor: Tensor) -> Tensor:
        if name == "pooler.weight":
            return tensor[order][:, order]
        if name.startswith("masked_words.dense."):  # what comes out is normed and read in the order of old
            return tensor[order][:, order] if tensor.dim() == 2 else tensor[order]
        if name.endswith(written) or name == "pooler.bias":
            return tensor[order]
        if name.endswith((*read, "deembed.weight")):
            return tensor[:, order]
        return tensor

    return {name: moved(name, tensor) for name, tensor in form.tensors.items()}


def _heads_in_halves(form: Form) -> dict[str, Tensor]:
    """The rows that make queries and keys with the even numbers of each head first; their products are the same sums."""
    config = form.transformer
    turned = config.heads + (config.kv_heads or config.heads)
    head = torch.cat((torch.arange(0, config.key_width, 2), torch.arange(1, config.key_width, 2)))
    order = (torch.arange(turned)[:, None] * config.key_width + head).flatten()

    def moved(name: str, tensor: Tensor) -> Tensor:
        if ".attention.project." not in name:
            return tensor
        return torch.cat((tensor[order], tensor[len(order) :]))

    return {name: moved(name, tensor) for name, tensor in form.tensors.items()}


def as_table(form: Form) -> Form:
    """Sines and cosines as a table of positions that might have been learned."""
    config = form.transformer
    if config.positions != "sinusoidal":
        return form
    table = sinusoid(torch.arange(config.context), config.width, layout=config.position_layout)
    stacks = {"seq2seq": ("encoder", "decoder"), "lm": ("decoder",), "encoder": ("encoder",)}[form.config.kind]
    tables = {f"{stack}.positions.weight": table.clone() for stack in stacks}
    return Form(change(form.config, positions="learned"), form.tensors | tables)


def unscaled(form: Form) -> Form:
    """Embeddings and logits without a factor: it lies in the weights, and so the output has a matrix of its own."""
    config = form.transformer
    if not config.embedding_scale and config.logit_scale == 1.0:
        return form
    tensors = dict(form.tensors)
    writes = not isinstance(config, EncoderConfig) or config.masked_words
    place = "masked_words.deembed.weight" if isinstance(config, EncoderConfig) else "deembed.weight"
    if writes:
        tensors[place] = tensors["embed.weight" if config.tied else place] * config.logit_scale
    if config.embedding_scale:
        for name in ("embed.weight", "embed_source.weight"):
            if name in tensors:
                tensors[name] = tensors[name] * config.width**0.5
    return Form(change(form.config, embedding_scale=False, logit_scale=1.0, tied=False), tensors)


def biased(form: Form) -> Form:
    """A bias of zeros for every linear map, where queries, keys and values alone have one."""
    config = form.transformer
    if config.bias != "qkv":
        return form
    maps = ("attention.join.weight", "cross.join.weight", "feedforward.widen.weight", "feedforward.narrow.weight")
    zeros = {
        name.removesuffix("weight") + "bias": tensor.new_zeros(tensor.shape[0])
        for name, tensor in form.tensors.items()
        if name.endswith(maps)
    }
    return Form(change(form.config, bias="all"), form.tensors | zeros)


def by_head(form: Form) -> Form:
    """Queries, keys and values of one head below each other, then those of the next, as GPT-NeoX has them. No setting of ours says so."""
    config = form.transformer
    if config.kv_heads not in (None, config.heads):
        return form  # which GPT-NeoX has no place for anyway
    tensors = {
        name: tensor.unflatten(0, (3, config.heads, config.key_width)).transpose(0, 1).flatten(0, 2).contiguous()
        if ".attention.project." in name
        else tensor
        for name, tensor in form.tensors.items()
    }
    return Form(form.config, tensors)

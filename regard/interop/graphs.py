"""Our models as functions of plain tensors, to be written down as graphs: masks and caches are built from what comes in."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from regard.data.batch import Tokens
from regard.models import Encoder, LanguageModel, Seq2Seq
from regard.nn.cache import CacheView, KeyValues, LayerCache
from regard.nn.masks import Mask


@dataclass(frozen=True)
class GrowingLayer(LayerCache):
    """Keys and values that grow with every word, where ours have a buffer: a graph has no place to keep one."""

    grown: list[KeyValues] = field(default_factory=list)

    def extend(self, new: KeyValues) -> KeyValues:
        whole = KeyValues(torch.cat((self.key, new.key), 2), torch.cat((self.value, new.value), 2))
        self.grown.append(whole)
        return whole


@dataclass(frozen=True)
class GrowingCache(CacheView):
    """What came in, and in `grown` what goes out: all layers' keys and values (rows, kv_heads, length, head_width)."""

    grown: list[KeyValues] = field(default_factory=list)

    def layer(self, index: int) -> GrowingLayer:
        return GrowingLayer(self.key[index], self.value[index], self.slots, 0, self.grown)

    def stacked(self) -> tuple[Tensor, Tensor]:
        """(layers, rows, kv_heads, length, head_width)"""
        return torch.stack([pair.key for pair in self.grown]), torch.stack([pair.value for pair in self.grown])


class ReaderGraph(nn.Module):
    """An encoder with its heads: a vector for each token and for each text, and logits of labels and of missing words where it has such."""

    def __init__(self, model: Encoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """ids and mask (rows, length), 1 where a token stands and 0 at padding, which is on the right."""
        model, real = self.model, mask.bool()
        x = model.embed(ids)
        if model.token_types is not None:
            x = x + model.token_types(torch.zeros_like(ids))
        slots = torch.arange(ids.shape[1], device=ids.device)
        visible = real[:, None, None, :]
        if model.config.window is not None:
            visible = visible & ((slots[:, None] - slots).abs() < model.config.window)
        states = model.encoder(x, positions=slots[None], mask=Mask(visible))
        tokens = Tokens(ids, real, tail=True)
        found = [states, model.vectors(states, tokens)]
        if model.classifier is not None:
            found.append(model.classify(states, tokens))
        if model.masked_words is not None:
            found.append(model.fill(states))
        return tuple(found)


class SourceGraph(nn.Module):
    """A source, read once: each decoder layer's keys and values of it (layers, rows, kv_heads, source, head_width)."""

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        model = self.model
        embed = model.embed_source or model.embed
        slots = torch.arange(ids.shape[1], device=ids.device)
        states = model.encoder(embed(ids), positions=slots[None], mask=Mask(mask.bool()[:, None, None, :]))
        both = model.decoder.keys_values(states)
        return torch.stack([pair.key for pair in both]), torch.stack([pair.value for pair in both])


class TargetGraph(nn.Module):
    """The next words of targets, from those before, which the cache remembers, and from the source."""

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, ids: Tensor, key: Tensor, value: Tensor, source_key: Tensor, source_value: Tensor, source_mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """ids (rows, new) after the words in key and value (layers, rows, kv_heads, past, head_width) to logits and the longer cache."""
        slots = torch.arange(key.shape[3] + ids.shape[1], device=ids.device)
        new = slots[key.shape[3] :]
        cache = GrowingCache(key, value, new, slots[None])
        memory = [KeyValues(source_key[layer], source_value[layer]) for layer in range(len(self.model.decoder.layers))]
        states = self.model.decoder(
            self.model.embed(ids),
            memory,
            positions=new[None],
            mask=Mask((slots[None, :] <= new[:, None])[None, None]),
            memory_mask=Mask(source_mask.bool()[:, None, None, :]),
            cache=cache,
        )
        return self.model.logits(states), *cache.stacked()


class WriterGraph(nn.Module):
    """A language model: what follows prompts, padded on the left, and every word after them."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor, key: Tensor, value: Tensor, prefix: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """ids (rows, new), mask (rows, past + new) with 0 at padding; `prefix` (1,): how many slots were given and see each other."""
        slots = torch.arange(mask.shape[1], device=ids.device)
        new = slots[key.shape[3] :]
        seen = slots[None, :] <= new[:, None]  # (new, past + new)
        if prefix is not None:
            seen = seen | (slots < prefix)[None, :]
        if self.model.config.window is not None:
            seen = seen & ((new[:, None] - slots).abs() < self.model.config.window)
        own = new[:, None] == slots  # padding sees itself, so that nobody sees nothing
        visible = (seen[None] & mask.bool()[:, None, :]) | own[None]
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        cache = GrowingCache(key, value, new, positions)
        states = self.model.decoder(self.model.embed(ids), positions=positions[:, key.shape[3] :], mask=Mask(visible[:, None]), cache=cache)
        return self.model.logits(states), *cache.stacked()

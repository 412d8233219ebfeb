"""Training that begins with a bundle's weights instead of with chance: its shape and its tokenizer are the model's, heads may be new."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard.bundle import SOURCE_TOKENIZER, TOKENIZER, read_config
from regard.config import ModelConfig, Transformer
from regard.data.examples import Vocabularies
from regard.errors import ConfigError, nearest, shown
from regard.models import Network
from regard.recipe import DECIDED, KIND_OF, Recipe
from regard.shipped import find_bundle
from regard.storage import read_tensors, restored
from regard.text.tokenizer import Tokenizer

# What may differ from the bundle, because no weight depends on it.
FREE = ("dropout", "attention_dropout", "activation_dropout", "pooling", "pooler", "mask", "context", "split")
HEADS = ("classifier.", "masked_words.", "pooler.")


@dataclass(frozen=True)
class Beginning:
    """The bundle that a recipe begins from."""

    folder: Path
    config: ModelConfig
    vocabularies: Vocabularies

    @classmethod
    def of(cls, recipe: Recipe) -> Beginning | None:
        """None where training begins with chance."""
        if recipe.begins_from is None:
            return None
        folder = find_bundle(recipe.begins_from)
        config = read_config(folder)
        _check_kind(recipe, config, folder)
        if not (folder / TOKENIZER).is_file():
            raise ConfigError(
                f"model.from = {str(folder)!r} has no {TOKENIZER}, so it takes token ids and not text; import it again with one"
            )
        target = Tokenizer.load(folder / TOKENIZER)
        source = Tokenizer.load(folder / SOURCE_TOKENIZER) if (folder / SOURCE_TOKENIZER).is_file() else target
        _check_tags(recipe, source, folder)
        return cls(folder, config, Vocabularies(target, source))

    @property
    def fingerprint(self) -> str:
        """Of all that makes examples what they are."""
        return f"{self.vocabularies.target.fingerprint}-{self.vocabularies.source.fingerprint}"

    def adopted(self, recipe: Recipe) -> Recipe:
        """The recipe with the bundle's shape written into it, and the recipe's own changes to what may be changed."""
        shape = {key: value for key, value in self.config.model_dump().items() if key not in DECIDED}
        changes = {key: value for key, value in recipe.model.items() if key != "from"}
        for key, value in changes.items():
            self._check_change(key, value, shape)
        if recipe.data.max_length > self.config.context and "context" not in changes:
            raise ConfigError(
                f"data.max_length = {recipe.data.max_length}, but {self.folder} reads {self.config.context} tokens; "
                f"set it to {self.config.context} or less"
            )
        shape.pop("split")  # which its own rows decide, unless the recipe does
        return recipe.model_copy(update={"model": {**shape, **changes, "from": str(self.folder)}})

    @staticmethod
    def within_reach(recipe: Recipe) -> Recipe:
        """The recipe with no longer texts than the bundle reads, where it does not say how long they may be."""
        if recipe.begins_from is None or "max_length" in recipe.data.model_fields_set:
            return recipe
        longest = min(recipe.data.max_length, read_config(find_bundle(recipe.begins_from)).context)
        return recipe.model_copy(update={"data": recipe.data.model_copy(update={"max_length": longest})})

    def _check_change(self, key: str, value: Any, shape: dict[str, Any]) -> None:
        if key in DECIDED:
            raise ConfigError(f"model.{key} is decided by the task and the data; take it out")
        if key not in shape:
            raise ConfigError(
                f"[model]: unknown key '{key}' for {self.folder}, which is of kind {self.config.kind!r}; {nearest(key, shape)}"
            )
        if key not in FREE and value != shape[key]:
            raise ConfigError(
                f"model.{key} = {shown(value)}, but {self.folder} was made with {shape[key]!r}; "
                f"take model.{key} out, or train without model.from"
            )
        if key == "context" and isinstance(self.config, Transformer) and self.config.positions == "learned" and value != shape[key]:
            raise ConfigError(f"model.context = {value}, but {self.folder} has learned {shape[key]} positions; take model.context out")

    @torch.no_grad()
    def give(self, network: Network, say: Callable[[str], None]) -> None:
        """Writes the bundle's weights into a network; heads that the bundle has not, or for other labels, stay as chance made them."""
        theirs = restored(read_tensors(self.folder))
        ours = network.state_dict()
        same = getattr(self.config, "labels", ()) == getattr(network.config, "labels", ())
        left_out = {name for name in theirs if name not in ours or (name.startswith("classifier.") and not same)}
        theirs = {name: tensor for name, tensor in theirs.items() if name not in left_out}
        new = ours.keys() - theirs.keys()
        strange = next((name for name in new if not name.startswith(HEADS)), None)
        assert strange is None, f"a bundle of the same shape lacks {strange}"
        for name, tensor in ours.items():
            if name in theirs:
                tensor.copy_(theirs[name])
        heads = [sorted({name.split(".")[0] for name in names}) for names in (new, left_out)]
        told = [f"{what} {', '.join(found)}" for what, found in zip(("new:", "left out:"), heads, strict=True) if found]
        say("; ".join([f"begins with the weights of {self.folder}", *told]))


def _check_kind(recipe: Recipe, config: ModelConfig, folder: Path) -> None:
    wanted = (KIND_OF[recipe.task], *(("rnn", "lm") if recipe.task == "translate" else ()))
    if config.kind not in wanted:
        raise ConfigError(
            f"model.from = {str(folder)!r} is of kind {config.kind!r}, which can't learn to {recipe.task}; "
            f"give a bundle of kind {wanted[0]!r}, or another task"
        )


def _check_tags(recipe: Recipe, tokenizer: Tokenizer, folder: Path) -> None:
    """What files say they are written in must be what the bundle can be told to write."""
    for file in (*recipe.data.train, *recipe.data.dev, *recipe.data.test) if recipe.task == "translate" else ():
        if file.to is None and tokenizer.tags:
            known = ", ".join(tokenizer.tags)
            raise ConfigError(
                f"{folder} is told what to write by a tag; give each file one, as to = {tokenizer.tags[0]!r}, or --to "
                f"for all of them (known: {known})"
            )
        if file.to is not None and file.to not in tokenizer.tags:
            known = nearest(file.to, tokenizer.tags) if tokenizer.tags else "it knows none, so leave it out"
            raise ConfigError(f"to = {file.to!r}, but {folder} has no such tag; {known}")

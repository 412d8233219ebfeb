"""A model on disk: config, weights, tokenizer and card in one folder that can't be mismatched."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.config import KINDS, ModelConfig, parse_model
from regard.errors import BundleError, nearest
from regard.models import Network, build
from regard.presets import PRESETS, preset
from regard.storage import INDEX, SHARD_BYTES, Precision, read_json, read_tensors, replacing, restored, rounded, write_tensors

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
SOURCE_TOKENIZER = "source_tokenizer.json"
CARD = "README.md"
FORMAT = 1  # of the folder; an older regard refuses a newer one


@dataclass(frozen=True)
class Bundle:
    """A model and what belongs to it, as loaded from its folder."""

    folder: Path
    model: Network
    tokenizer: Path | None = None  # tokenizer.json, where the bundle has one
    source_tokenizer: Path | None = None  # that of the source, where it is another

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    def save(
        self,
        folder: str | Path | None = None,
        *,
        precision: Precision | None = None,
        card: str | None = None,
        shard_bytes: int = SHARD_BYTES,
    ) -> Path:
        """Writes the model as it is now, with its tokenizers and card, to where it came from or elsewhere."""
        old = self.folder / CARD
        return save_bundle(
            self.model,
            folder or self.folder,
            tokenizer=self.tokenizer,
            source_tokenizer=self.source_tokenizer,
            card=card or (old.read_text(encoding="utf-8") if old.is_file() else None),
            precision=precision,
            shard_bytes=shard_bytes,
        )


def save_bundle(
    model: Network,
    folder: str | Path,
    *,
    tokenizer: Path | None = None,
    source_tokenizer: Path | None = None,
    card: str | None = None,
    precision: Precision | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> Path:
    """Writes a bundle, in the model's own precision unless another is asked for.

    A bundle that stands there already is replaced as a whole; any other folder with files in it is left alone.
    """
    folder = Path(folder)
    refuse_place(folder)
    model = bare(model)
    if model.state_dict().keys() != outline(model.config).state_dict().keys():  # said before anything is replaced
        raise BundleError(
            "the model's weights are not those that its config describes, and could not be loaded again; save the whole model"
        )
    with replacing(folder) as new:
        # Every setting, defaults too, so that a later default never changes an old model.
        settings = {"format": FORMAT, **model.config.model_dump(mode="json")}
        (new / CONFIG).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        tensors = model.state_dict()
        write_tensors(new, tensors if precision is None else rounded(tensors, precision), shard_bytes)
        for name, file in ((TOKENIZER, tokenizer), (SOURCE_TOKENIZER, source_tokenizer)):
            if file is not None:
                shutil.copyfile(file, new / name)
        (new / CARD).write_text(card or default_card(model), encoding="utf-8", errors="replace")  # it may name files of any name
    return folder


def refuse_place(folder: Path) -> None:
    """An error, where no bundle may be written, since something else stands there."""
    if folder.exists() and not is_bundle(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise BundleError(f"{folder} exists and is not just a bundle; choose a new or empty folder")


def bare(model: Network) -> Network:
    """The model itself, out of what compilation or several processes wrapped it in."""
    inner: Any = model
    while not isinstance(inner, Network):
        inner = getattr(inner, "_orig_mod", None) or getattr(inner, "module", None)
        if inner is None:
            raise BundleError(f"a {type(model).__name__} is no model of ours; pass what build() or load_bundle() gave")
    return inner


def load_bundle(
    folder: str | Path, *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None, backend: str = "sdpa"
) -> Bundle:
    """Reads a bundle. The model comes back ready to use (dropout off); call `model.train()` to train it on."""
    folder = Path(folder)
    config = read_config(folder)
    tensors = restored(read_tensors(folder))
    model = outline(config, backend)  # no weights are made that would be thrown away
    fill(model, tensors, folder)
    tokenizer, source_tokenizer = (path if path.is_file() else None for path in (folder / TOKENIZER, folder / SOURCE_TOKENIZER))
    return Bundle(folder, model.to(device=device, dtype=dtype).eval(), tokenizer, source_tokenizer)


def outline(config: ModelConfig, backend: str = "sdpa") -> Network:
    """The model that a config describes, in shapes alone: every tensor has its size, and none a number yet."""
    try:
        with torch.device("meta"), _Undrawn():
            return build(config, backend)
    except (TypeError, RuntimeError) as error:
        if "verflow" not in str(error):
            raise
        raise BundleError("the config describes a model with more numbers than can be counted; copy it again from where it came") from error


class _Undrawn(TorchFunctionMode):
    """Random numbers are not drawn: what has no numbers needs none, yet to say so PyTorch would load its compiler, for most of a second."""

    DRAWN = (nn.init.normal_, nn.init.uniform_, Tensor.normal_, Tensor.uniform_)

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        return (args[0] if args else kwargs["tensor"]) if func in self.DRAWN else func(*args, **kwargs)


def read_config(folder: Path) -> ModelConfig:
    """A bundle's config, without its weights."""
    if not folder.is_dir():
        raise BundleError(f"{folder} is no folder; give the folder of a bundle")
    if not (folder / CONFIG).is_file():
        raise BundleError(f"{folder} is no bundle: it has no {CONFIG}; give the folder that has one")
    settings = read_json(folder / CONFIG)
    if "kind" not in settings and ("model_type" in settings or "architectures" in settings):
        raise BundleError(f"{folder} is a Hugging Face model, not a bundle; make one of it with: regard import {folder} OUT")
    if settings.pop("format", FORMAT) != FORMAT:
        raise BundleError(f"{folder} was written by a newer regard; upgrade to read it")
    return parse_model(settings, where=str(folder / CONFIG))


def find_config(name: str) -> ModelConfig:
    """The config of a preset or of a bundle's folder."""
    if name in PRESETS:
        return preset(name)
    if Path(name).is_dir():  # False, not an error, for a name that no folder can have
        return read_config(Path(name))
    raise BundleError(f"{name!r} is neither a preset nor a folder; {nearest(name, PRESETS)}")


def is_bundle(folder: Path) -> bool:
    """Whether a folder holds a bundle and nothing else, so that it may be replaced."""
    try:
        known = read_json(folder / CONFIG).get("kind") in KINDS
    except (BundleError, TypeError):
        return False
    ours = (CONFIG, TOKENIZER, SOURCE_TOKENIZER, CARD, INDEX)
    return known and all(path.is_file() and (path.name in ours or path.suffix == ".safetensors") for path in folder.iterdir())


def fill(model: Network, tensors: Mapping[str, Tensor], where: Path | str) -> None:
    """Gives a model its weights; each must be there, in its shape, and none more."""
    wanted = model.state_dict()
    missing, extra = sorted(wanted.keys() - tensors.keys()), sorted(tensors.keys() - wanted.keys())
    if missing:
        raise BundleError(f"{where}: the weights lack '{missing[0]}'{_more(missing)}; they belong to another config")
    if extra:
        raise BundleError(
            f"{where}: the weights have '{extra[0]}'{_more(extra)}, which the config knows nothing of; they belong to another config"
        )
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape:
            raise BundleError(f"{where}: '{name}' is {tuple(tensor.shape)} in the weights but {tuple(wanted[name].shape)} by the config")
    kinds = {tensor.dtype for tensor in tensors.values()}
    if len(kinds) > 1 or not all(kind.is_floating_point for kind in kinds):
        names = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
        raise BundleError(f"{where}: the weights are {names}; save them all in one floating-point precision")
    model.load_state_dict(dict(tensors), assign=True)


def default_card(model: Network) -> str:
    count = sum(parameter.numel() for parameter in model.parameters())
    config = model.config
    return f"# A regard bundle\n\nA model of kind `{config.kind}` with {count:,} parameters and a vocabulary of {config.vocabulary:,}.\n"


def _more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""

"""Folders that are written whole or not at all, their checksums, and the tensors in them: safetensors, one file or several."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save_file
from torch import Tensor

from regard.errors import BundleError

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
SUMS = "SHA256SUMS"  # as `sha256sum --check` reads it
SHARD_BYTES = 2 * 1024**3
LONGEST_HEADER = 1 << 23  # bytes in which a file lists its tensors, some 100,000; 85 MB take safetensors 10 s, and gigabytes of memory
WINDOWS = os.name == "nt"
Precision = Literal["float32", "float16", "bfloat16", "int8"]


def cache_folder() -> Path:
    """Where tokenised data is kept, and what was verified: REGARD_CACHE, or the user's cache folder."""
    if named := os.environ.get("REGARD_CACHE"):
        return Path(named)
    try:
        return Path.home() / ".cache" / "regard"
    except RuntimeError:  # a user without an entry, as in many containers
        raise BundleError("nobody knows where this user's home is; name a folder for the cache with REGARD_CACHE") from None


def at_home(name: str | Path) -> Path:
    """A path in which ~ stands for a home."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        raise BundleError(f"nobody knows where the home in {name} is; write the whole path") from None


def is_utf8(name: str | Path) -> bool:
    """Whether a name can be written down: that of a file may be any bytes, and those that are no text stand for themselves."""
    return not any("\ud800" <= letter <= "\udfff" for letter in str(name))


def readable_name() -> str:
    """What to do about a name that is not UTF-8, or is not taken for it."""
    coding = sys.getfilesystemencoding()
    return "rename it" if coding == "utf-8" else f"names are read as {coding} here, so set PYTHONUTF8=1, or LC_ALL=C.UTF-8"


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A temporary folder to fill, which then takes the place of `folder`. If anything fails, `folder` stays as it was."""
    folder = folder.resolve()  # a link goes on pointing where it points
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise BundleError(f"can't write to {folder.parent}: {error.strerror}; choose another folder") from error
    try:
        made.chmod(0o777 & ~UMASK)  # mkdtemp makes it private; a model is as open as what its owner makes
        yield made
        for path in made.rglob("*"):
            if path.is_file():
                path.chmod(0o666 & ~UMASK)  # safetensors makes its files private too
        for path in [*made.rglob("*"), made]:
            _sync(path)
        _put_in_place(made, folder)
    except (OSError, SafetensorError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        full = isinstance(error, SafetensorError) or error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "free some space" if full else "see that nothing else writes there and that you may"
        raise BundleError(f"could not write {folder}: {reason}; {remedy}, or choose another folder") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)


def write_sums(folder: Path) -> None:
    """Writes down what the files of a folder are, so that `damage` can tell when they are something else."""
    names = sorted(file.name for file in folder.iterdir())
    (folder / SUMS).write_text("".join(f"{_digest(folder / name)}  {name}\n" for name in names), encoding="utf-8")


def damage(folder: Path) -> str | None:
    """Which file of a folder is not as it was written, and in what way; None: all are."""
    sums = folder / SUMS
    try:
        lines = [line.split("  ", 1) for line in sums.read_text(encoding="utf-8").splitlines()]
        listed = {name: digest for digest, name in lines}
        present = {path.name for path in folder.iterdir() if not path.name.startswith(".")} - {SUMS}
    except (OSError, ValueError):
        return f"{sums} is missing or damaged"
    if present - listed.keys():
        return f"{sums} lacks {min(present - listed.keys())}"
    for name, digest in listed.items():
        if name not in present:
            return f"{folder / name} is missing"
        try:
            if _digest(folder / name) != digest:
                return f"{folder / name} is damaged: its checksum differs"
        except OSError as error:
            return f"can't read {folder / name}: {error.strerror}"
    return None


def cached(folder: Path, make: Callable[[Path], None], say: Callable[[str], None]) -> None:
    """Sees to it that a folder of the cache is there: as an earlier run left it, or made now, also where it is not as it was written."""
    problem = damage(folder) if os.path.lexists(folder) else None
    if problem is None and folder.is_dir():
        return
    if problem is not None:
        say(f"{problem}; it is made again")
    with replacing(folder) as new:
        make(new)
        write_sums(new)


def write_tensors(folder: Path, tensors: Mapping[str, Tensor], shard_bytes: int = SHARD_BYTES) -> None:
    """model.safetensors, or past a size several files and an index of which tensor is where."""
    shards: list[dict[str, Tensor]] = [{}]
    room = shard_bytes
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        if size > room and shards[-1]:
            shards.append({})
            room = shard_bytes
        shards[-1][name] = tensor.detach().contiguous()
        room -= size
    if len(shards) == 1:
        save_file(shards[0], folder / WEIGHTS, {"format": "pt"})
        return
    place: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file(shard, folder / file, {"format": "pt"})
        place |= dict.fromkeys(shard, file)
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": place}, indent=2) + "\n")


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Every tensor of a folder, by name."""
    if (folder / INDEX).is_file():
        place = read_json(folder / INDEX).get("weight_map")
        if not isinstance(place, dict) or not place:
            raise BundleError(f"{folder / INDEX} has no 'weight_map'; copy the folder again from where it came")
        files = sorted(set(map(str, place.values())))
        outside = next((file for file in files if Path(file).name != file or file in (".", "..")), None)
        if outside is not None:
            raise BundleError(f"{folder / INDEX} names {outside}, which is no file of its own folder; don't trust it")
    elif (folder / WEIGHTS).is_file():
        files = [WEIGHTS]
    else:
        pickled = next(folder.glob("*.bin"), None)
        if pickled is not None:
            raise BundleError(
                f"{pickled} holds pickled weights, which can run code when read; load it with its own library and save it as safetensors"
            )
        raise BundleError(f"{folder} has no {WEIGHTS}; is it the right folder?")
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors |= _read_file(folder / file)
    return tensors


SCALE = ".scale"  # beside a matrix in 8 bits: what each of its rows is multiplied by


def rounded(tensors: Mapping[str, Tensor], precision: Precision) -> dict[str, Tensor]:
    """The tensors as they are to lie on disk. In int8 matrices have 8 bits a number and a scale for each row, the rest half precision."""
    if precision != "int8":
        return {name: tensor.to(getattr(torch, precision)) for name, tensor in tensors.items()}
    laid: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.dim() != 2:
            laid[name] = tensor.to(torch.float16)
            continue
        scale = (tensor.detach().float().abs().amax(1) / 127).clamp(min=1e-12)
        laid[name] = (tensor.detach().float() / scale[:, None]).round().to(torch.int8)
        laid[name + SCALE] = scale
    return laid


def restored(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The numbers again, in float32 where they lay in 8 bits; anything else is given back as it was."""
    if not any(tensor.dtype == torch.int8 for tensor in tensors.values()):
        return dict(tensors)
    whole: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.dtype == torch.int8 and tensor.dim() == 2:
            scale = tensors.get(name + SCALE)
            if scale is None or scale.shape != tensor.shape[:1]:
                raise BundleError(f"the weights '{name}' are in 8 bits, but their scales are missing or too few; copy the folder again")
            whole[name] = tensor.float().mul_(scale.float()[:, None])
        elif not (name.endswith(SCALE) and name.removesuffix(SCALE) in tensors):
            whole[name] = tensor.float()
    return whole


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BundleError(f"can't read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BundleError(f"{path} is not UTF-8 text (byte {error.start}); copy it again from where it came") from error
    except RecursionError as error:
        raise BundleError(f"{path} is nested deeper than any config; don't trust it") from error
    except json.JSONDecodeError as error:
        raise BundleError(f"{path}, line {error.lineno}: not JSON ({error.msg}); copy it again from where it came") from error
    except ValueError as error:  # Python reads no number of thousands of digits
        raise BundleError(f"{path} has a number of more digits than any setting; don't trust it") from error
    if not isinstance(content, dict):
        raise BundleError(f"{path} should hold a JSON object, not a {type(content).__name__}")
    return content


def _read_file(path: Path) -> dict[str, Tensor]:
    if not os.path.isfile(path):  # which, unlike Path's, has no trouble with a name that is too long
        raise BundleError(f"{path} is missing, though {INDEX} names it; copy the folder again from where it came")
    try:
        with path.open("rb") as content:
            header = int.from_bytes(content.read(8), "little")
        if LONGEST_HEADER < header < path.stat().st_size:
            raise BundleError(f"{path} lists its tensors in {header:,} bytes, which is far more than any model has; don't trust it")
        if not is_utf8(path):  # safetensors opens no such file itself
            return load(path.read_bytes())
        with safe_open(path, framework="pt") as file:
            # Copies, because kernels round differently where a tensor is not aligned, and tensors in a file are not.
            return {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError) as error:
        size = path.stat().st_size
        raise BundleError(f"{path} is damaged or cut short ({size:,} bytes: {error}); copy it again from where it came") from error


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _put_in_place(made: Path, folder: Path) -> None:
    """Renames `made` to `folder`. What stood there is left at `made`, to be removed."""
    if not folder.exists():
        made.rename(folder)
    elif not _exchange(made, folder):
        old = made.with_name(f"{made.name}.old")
        folder.rename(old)
        try:
            made.rename(folder)
        except BaseException:  # Ctrl-C too must not leave nothing behind
            old.rename(folder)
            raise
        shutil.rmtree(old, ignore_errors=True)
    _sync(folder.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Swaps two folders in one step, so that a reader finds either the old or the new; False where the system can't."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):  # TypeError: Windows has no library without a name
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(renameat2(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0)


def _sync(path: Path) -> None:
    """Waits until the disk has it, so that a power cut after the rename finds all of it."""
    if WINDOWS and path.is_dir():
        return  # it can't be opened there, and what it names lies in a journal
    handle = os.open(path, os.O_RDWR if WINDOWS else os.O_RDONLY)  # Windows flushes only what may be written
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _read_umask() -> int:
    mask = os.umask(0)  # it can only be read by setting it
    os.umask(mask)
    return mask


UMASK = _read_umask()  # once, at import: in between, other threads would make files that all may write

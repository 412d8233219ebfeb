"""What this machine has: versions, devices, what is installed besides the core, and where things are kept."""

from __future__ import annotations

import os
import platform
import re
from collections import defaultdict
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from rich.console import Console
from rich.text import Text

from regard import __version__
from regard.errors import installing

CORE = ("torch", "tokenizers", "safetensors", "sacrebleu", "numpy")
OUR_OWN = "dev"  # an extra for those who work on regard itself


def findings() -> dict[str, Any]:
    """Everything that a report of a problem should say."""
    import torch

    from regard.decoding.products import FloatProduct, Int8Product, available, sums_in_32_bits
    from regard.errors import BundleError
    from regard.storage import cache_folder

    cache: Path | None = None
    with suppress(BundleError):  # nobody knows where home is
        cache = cache_folder()
    found: dict[str, Any] = {
        "regard": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "packages": {name: metadata.version(name) for name in CORE},
        "cuda": torch.version.cuda,
        "devices": _devices(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "packed_weights": available(FloatProduct),
        "int8": {"kernels": available(Int8Product), "sums_in_32_bits": sums_in_32_bits()},
        "extras": _extras(),
        "cache": {"folder": "nowhere: REGARD_CACHE names none, and no home is known", "writable": False}
        if cache is None
        else {"folder": str(cache), "writable": _writable(cache)},
    }
    return found | {"problems": _problems(found)}


def _devices() -> list[str]:
    import torch

    gpus = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    names = [f"cuda:{number}: {gpu.name}, {gpu.total_memory / 2**30:.0f} GiB" for number, gpu in enumerate(gpus)]
    return [*names, *(["mps"] if torch.backends.mps.is_available() else []), "cpu"]


def _extras() -> dict[str, dict[str, str | None]]:
    """The packages of each extra, with the version that is installed, or None."""
    found: dict[str, dict[str, str | None]] = defaultdict(dict)
    try:
        wanted = metadata.requires("regard") or []
    except metadata.PackageNotFoundError:  # run from its sources, without having been installed
        wanted = []
    for line in wanted:
        match = re.fullmatch(r"([\w.-]+)[^;]*;.*extra == ['\"]([\w-]+)['\"].*", line)
        if match and match[2] != OUR_OWN:
            found[match[2]][match[1]] = _version(match[1])
    return dict(found)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _writable(folder: Path) -> bool:
    """Whether it can be written to, or be made."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        with TemporaryFile(dir=there):  # permissions don't tell everything
            return True
    except OSError:
        return False


def _problems(found: dict[str, Any]) -> list[str]:
    problems = []
    if not found["cache"]["writable"]:
        problems.append(f"the cache {found['cache']['folder']} can't be written to; set REGARD_CACHE to a folder that can")
    if found["cuda"] is None and Path("/proc/driver/nvidia/version").exists():
        problems.append("there is an NVIDIA driver, but this PyTorch was built without CUDA; install one with it to use the GPU")
    return problems


def _of_int8(kernels: bool, sums_in_32_bits: bool) -> str:
    if not kernels:
        return "no kernels for this CPU"
    return "fast" if sums_in_32_bits else "only where it is asked for: this CPU has no VNNI"


def show(found: dict[str, Any], console: Console) -> None:
    """One line for each, and at the end what should be mended."""
    lines = {
        "regard": found["regard"],
        "Python": f"{found['python']} on {found['system']}",
        "PyTorch": f"{found['packages']['torch']}, {'without CUDA' if found['cuda'] is None else 'CUDA ' + found['cuda']}",
        "packages": ", ".join(f"{name} {version}" for name, version in found["packages"].items() if name != "torch"),
        "devices": "; ".join(found["devices"]),
        "threads": f"{found['threads']} of {found['cores']} cores{', weights packed for them' if found['packed_weights'] else ''}",
        "int8": _of_int8(**found["int8"]),
    }
    for extra, packages in found["extras"].items():
        parts = [f"{name} {version}" if version else f"{name} missing ({installing(extra)})" for name, version in packages.items()]
        lines[f"extra {extra}"] = ", ".join(parts)
    lines["cache"] = f"{found['cache']['folder']}{'' if found['cache']['writable'] else ', not writable'}"
    width = max(map(len, lines))
    for name, value in lines.items():
        console.print(Text.assemble((name.ljust(width + 2), "dim"), str(value)), soft_wrap=True)
    for problem in found["problems"]:
        console.print(Text(problem, style="bold"), soft_wrap=True)

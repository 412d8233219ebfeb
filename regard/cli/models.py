"""The models that come with regard: what each is, what it can do, and how large it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text


def findings() -> list[dict[str, Any]]:
    """A dict for each, by name."""
    from regard.shipped import shipped

    return [{"name": name, **_finding(folder)} for name, folder in shipped().items()]


def _finding(folder: Path) -> dict[str, Any]:
    from regard.bundle import read_config
    from regard.door.verbs import verbs_of
    from regard.shipped import about
    from regard.view.summary import summarise

    config = read_config(folder)
    return {
        "about": about(folder),
        "verbs": verbs_of(config),
        "languages": _languages(folder),
        "parameters": summarise(config).parameters,
        "bytes": sum(path.stat().st_size for path in folder.iterdir()),
        "folder": str(folder),
    }


def _languages(folder: Path) -> tuple[str, ...]:
    """What it can be told to write."""
    from regard.bundle import SOURCE_TOKENIZER, TOKENIZER
    from regard.text.tokenizer import Tokenizer

    source = folder / SOURCE_TOKENIZER
    return Tokenizer.load(source if source.is_file() else folder / TOKENIZER).tags


def show(found: Sequence[dict[str, Any]], console: Console) -> None:
    """A paragraph for each."""
    for model in found:
        console.print(Text.assemble((model["name"], "bold"), "  ", model["about"]), soft_wrap=True)
        lines = {
            "can": ", ".join(model["verbs"]),
            "--to": ", ".join(model["languages"]),
            "size": f"{model['parameters']:,} parameters, {model['bytes'] / 1e6:.1f} MB on disk",
            "card": str(Path(model["folder"]) / "README.md"),
        }
        for name, value in lines.items():
            if value:
                console.print(Text.assemble((f"  {name.ljust(8)}", "dim"), value), soft_wrap=True)

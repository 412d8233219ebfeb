"""Figures as files: PNG, SVG or PDF, as a name ends, and the same figure always in the same bytes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import RegardError
from regard.files import OutputError, refuse, write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
DATES = {".png": None, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}  # when it was made says nothing about what it shows


def check_picture(path: Path) -> None:
    """An error, where no picture can be written; for whoever would otherwise work first."""
    if path.suffix.lower() not in FORMATS:
        raise RegardError(f"{path}: a picture ends in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    refuse(path)


def write_figure(figure: Figure, path: Path, **how: Any) -> None:
    """Draws it first, so that a file is there whole or not at all."""
    from matplotlib import rc_context

    check_picture(path)
    kind, drawn = path.suffix.lower(), io.BytesIO()
    with rc_context({"svg.hashsalt": "regard"}):  # or else names within it are drawn by lot
        figure.savefig(drawn, format=kind[1:], metadata=DATES[kind], **how)
    write_file(path, drawn.getvalue())


def check_folder(folder: Path) -> None:
    """An error, where pictures can't be put."""
    if not folder.parent.is_dir():
        raise OutputError(f"can't make the folder {folder}: there is no folder {folder.parent}; make it first, or choose another")
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is a file; name a folder for the pictures")


def make_folder(folder: Path) -> None:
    """The folder that was asked for, in one that is there."""
    check_folder(folder)
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise OutputError(f"can't make the folder {folder}: {error.strerror}; choose another place") from error

"""The models that come with regard, so that it can be tried at once."""

from __future__ import annotations

from pathlib import Path

from regard.bundle import CARD, CONFIG, read_config
from regard.errors import BundleError, nearest
from regard.storage import at_home

FOLDER = Path(__file__).parent / "shipped_models"


def shipped() -> dict[str, Path]:
    """The folders of their bundles, by name; the translator first, because what several can do (score, evaluate) is asked of it."""
    folders = sorted((path.parent for path in FOLDER.glob(f"*/{CONFIG}")), key=lambda folder: (folder.name != "translator", folder.name))
    return {folder.name: folder for folder in folders}


def find_bundle(name: str | Path) -> Path:
    """Where a bundle lies: in the folder of that name, in that of the run that made it, or among those that come with regard."""
    folder = at_home(name)
    for place in (folder, folder / "bundle"):
        if (place / CONFIG).is_file():
            return place
    known = shipped()
    if str(name) in known:
        return known[str(name)]
    if folder.is_dir():
        return folder  # no bundle; whoever reads it says what it lacks
    raise BundleError(
        f"there is no model {str(name)!r}; give the folder of a bundle, such as the one that regard train made, "
        f"or the name of a model that comes with regard; {nearest(str(name), known)}"
    )


def about(folder: Path) -> str:
    """What a bundle is, in a line: the first of its card that is no heading."""
    card = folder / CARD
    lines = card.read_text(encoding="utf-8").splitlines() if card.is_file() else []
    return next(
        (line.strip() for line in lines if line.strip() and not line.startswith("#")), f"A model of kind {read_config(folder).kind}."
    )

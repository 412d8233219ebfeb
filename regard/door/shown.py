"""How a result shows itself in a notebook or a debugger: in a few lines, however much it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any

from torch import Tensor

LETTERS = 60  # of a text
ITEMS = 3  # of a tuple, a list or a mapping
MOST = 160  # letters of anything else


class Short:
    """A dataclass whose repr names what it has, and shows the first of it; `@dataclass(repr=False)` leaves it in force."""

    def __repr__(self) -> str:
        given = ((each, getattr(self, each.name)) for each in _fields(self) if each.repr)
        return f"{type(self).__name__}({', '.join(f'{each.name}={shown(value)}' for each, value in given if not _as_ever(each, value))})"


def shown(value: object, within: bool = False) -> str:
    """A value, or the first of its parts. `within`: another, where less of it is shown."""
    if isinstance(value, Tensor):
        return f"Tensor{list(value.shape)}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Short) or (within and isinstance(value, Sequence | Mapping) and not isinstance(value, str)):
        return f"{type(value).__name__}(…)"
    if isinstance(value, Mapping):
        own = [f"{shown(key, True)}: {shown(each, True)}" for key, each in list(value.items())[:ITEMS]]
        return f"{{{', '.join(_counted(own, len(value)))}}}"
    if isinstance(value, tuple | list):
        own = _counted([shown(each, True) for each in value[:ITEMS]], len(value))
        return f"[{', '.join(own)}]" if isinstance(value, list) else f"({', '.join(own)}{',' if len(value) == 1 else ''})"
    if isinstance(value, str):
        return repr(value) if len(value) <= LETTERS else f"{value[: LETTERS // 2]!r}… {len(value):,} characters"
    found = repr(value)
    return found if len(found) <= MOST else f"{type(value).__name__}(…)"


def _counted(first: list[str], count: int) -> list[str]:
    return first if count <= len(first) else [*first, f"… {count:,} in all"]


def _fields(result: Any) -> tuple[Field[Any], ...]:
    return fields(result)


def _as_ever(each: Field[Any], value: object) -> bool:
    """Whether it is what it is where nothing was given."""
    if isinstance(value, Tensor):
        return False
    made = each.default if each.default_factory is MISSING else each.default_factory()
    return value is made or (made is not MISSING and not isinstance(value, float) and value == made)

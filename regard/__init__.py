"""regard: a Transformer toolkit, complete, fast and see-through.

import regard

model = regard.load("run/bundle")
print(model.translate("I love you very much."))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.door import Model, load

__version__ = "0.1.0"
__all__ = ["Model", "__version__", "load"]


def __getattr__(name: str) -> Any:
    """The door is opened when it is first used: PyTorch takes a second to load, and `regard --help` needs none of it."""
    if name in ("Model", "load"):
        from regard import door

        return getattr(door, name)
    raise AttributeError(f"module 'regard' has no attribute {name!r}")


def __dir__() -> list[str]:
    """What is public, the door included: `dir` and `help` show it, and completion offers it."""
    return sorted((*__all__, *(name for name in globals() if name.startswith("__") and name not in ("__getattr__", "__dir__"))))

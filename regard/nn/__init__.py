"""Each idea of the notes as the smallest piece of code that says it."""

from regard.nn.attention import Attention
from regard.nn.backends import Attended, attend, using
from regard.nn.masks import Causal, Documents, Full, Mask, Padding, Prefix, Window
from regard.nn.tap import record, tap

__all__ = [
    "Attended",
    "Attention",
    "Causal",
    "Documents",
    "Full",
    "Mask",
    "Padding",
    "Prefix",
    "Window",
    "attend",
    "record",
    "tap",
    "using",
]

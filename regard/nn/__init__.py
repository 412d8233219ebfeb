"""Each idea of the notes as the smallest piece of code that says it."""

from regard.nn.attention import Attention
from regard.nn.backends import Attended, attend, using
from regard.nn.masks import Boundaries, Causal, Documents, Full, Mask, Padding, Prefix, Rule, Window
from regard.nn.tap import record, tap

__all__ = [
    "Attended",
    "Attention",
    "Boundaries",
    "Causal",
    "Documents",
    "Full",
    "Mask",
    "Padding",
    "Prefix",
    "Rule",
    "Window",
    "attend",
    "record",
    "tap",
    "using",
]

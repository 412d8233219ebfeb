"""regard: a Transformer toolkit, complete, fast and see-through."""

__version__ = "0.1.0"

"""How large a number may be, for settings, options and requests alike: more than anybody means, and less than what nothing can hold."""

from __future__ import annotations

from numbers import Integral

from regard.errors import ConfigError, shown

MOST = 2**31 - 1  # of whatever is counted
MOST_SEED = 2**63 - 1  # a 64-bit number with a sign, as TOML and PyTorch have them
MOST_FACTOR = 1e6  # of what is multiplied by: far above it, products are no numbers any more
# Of a model. Together they keep the size of every matrix a number of 64 bits, so that what is too large for a machine is said to be so.
MOST_LAYERS = 1024
MOST_WIDTH = 2**20
MOST_HEADS = 2**16
MOST_CONTEXT = 2**24  # tokens
MOST_VOCABULARY = 1_000_000  # that a tokenizer learns: four times the largest known
# Of decoding
MOST_HYPOTHESES = 1000  # kept open, drawn or given for a text: each holds a row of logits
MOST_LENGTH = 1_000_000  # tokens that are written
MOST_WEIGHT = 1000.0  # of a penalty or a reward
MOST_CHOSEN_AMONG = 1_000_000  # words, for top_k and for a place that is filled
MOST_SPANS = 1000  # of lengths, in a table or a plot
# Of a server
MOST_SECONDS = 86_400.0  # that a request may take: a day
MOST_WORKERS = 1024  # each is a thread


def within(name: str, value: object, what: str, least: int, most: int = MOST) -> None:
    """An error, where a number that was asked for is none, or out of its range; `what` it says."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) <= most:
        raise ConfigError(f"{name} = {shown(value)} should be {what}: a whole number from {least:,} to {most:,}")

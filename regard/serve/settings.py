"""What a server is told when it starts: who may ask, and how much."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

from regard.errors import ConfigError, shown
from regard.limits import MOST_SECONDS, MOST_WORKERS, within

LOOPBACK = ("localhost", "127.0.0.1", "::1")
MOST_OUTPUTS = 16  # hypotheses, samples or alternatives of a text: what each of them costs is time of all others
MOST_WORDS = 64  # banned or required
MOST_CHOICES = 100  # for a missing word
MOST_VALUES = 5_000  # in the body of a request, beside its texts: wishes, and the numbers of layers and positions
ORIGIN = re.compile(r"null|[a-z][a-z0-9+.-]*://[^\s/?#@*A-Z]+")  # as browsers write it, who are compared with it letter by letter


@dataclass(frozen=True)
class Limits:
    """How much is taken on. What is beyond is refused with a status and a message that say so, never half done."""

    body: int = 1 << 20  # bytes of a request
    texts: int = 128  # in a request
    characters: int = 10_000  # of a text
    waiting: int = 256  # texts that wait for their turn, of all requests together
    streams: int = 4  # continuations written word by word at once
    seconds: float = 60.0  # from the arrival of a request to its answer

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name != "seconds":
                within(name, value, "how much a server takes on", 1)
        if not 0 < self.seconds <= MOST_SECONDS:
            raise ConfigError(f"seconds = {shown(self.seconds)} should be how long a request may take: at most {MOST_SECONDS:,.0f}")

    @property
    def values(self) -> int:
        """Texts, numbers and keys in a request, two for each text."""
        return MOST_VALUES + 2 * self.texts


@dataclass(frozen=True)
class Settings:
    """The limits, who may ask, and what is shown beside answers."""

    limits: Limits = field(default_factory=Limits)
    api_key: str | None = None
    hosts: frozenset[str] = frozenset()  # names that requests may address; none: any
    origins: tuple[str, ...] = ()  # other sites whose pages may ask
    reads: str = "en"  # what translators read, which a bundle does not say
    writes: str | None = None  # what a translator without tags writes
    runs: Path | None = None  # a folder of trainings, whose figures are shown
    workers: int | None = None  # batches worked on at once; None: as many as suit the machine

    def __post_init__(self) -> None:
        if self.workers is not None:
            within("workers", self.workers, "how many batches are worked on at once", 1, MOST_WORKERS)
        if self.api_key is not None:
            _check_key(self.api_key)
        for origin in self.origins:
            if not ORIGIN.fullmatch(origin):
                every = "that would be every site: name each" if origin == "*" else "that is none"
                raise ConfigError(f"--allow-origin {origin!r}: {every}, in small letters and without a path, as https://example.org")


def _check_key(key: str) -> None:
    """Whether a key can be given in a header at all. Nothing of it is repeated: messages end up in logs."""
    if not key:
        raise ConfigError("the API key is empty; leave it out to let everyone ask")
    if any("\ud800" <= letter <= "\udfff" for letter in key):
        raise ConfigError("the API key is no UTF-8, and no request could match it; choose another for --api-key or REGARD_API_KEY")
    if key != key.strip(" \t"):
        raise ConfigError("the API key begins or ends with a space, which headers lose; give --api-key or REGARD_API_KEY without it")
    if any(letter < " " or letter == "\x7f" for letter in key):
        raise ConfigError("the API key has a line break or another control character, which no header can hold; choose another")

"""What a server counts, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The figures of one server: several in one process keep theirs apart."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = Counter("regard_requests", "Requests answered.", ["route", "status"], registry=self.registry)
        self.seconds = Histogram("regard_request_seconds", "From request to answer.", ["route"], buckets=SECONDS, registry=self.registry)
        self.refused = Counter("regard_refused", "Requests turned away: full, or late.", ["reason"], registry=self.registry)
        self.waiting = Gauge("regard_waiting_texts", "Texts that wait for their turn.", registry=self.registry)
        self.streams = Gauge("regard_streams", "Continuations being written word by word.", registry=self.registry)
        self.texts = Counter("regard_texts", "Texts worked on.", ["model", "verb"], registry=self.registry)
        self.tokens = Counter("regard_tokens", "Tokens read.", ["model", "verb"], registry=self.registry)
        self.batches = Histogram("regard_batch_texts", "Texts worked on at once.", ["model", "verb"], buckets=SIZES, registry=self.registry)
        self.busy = Counter("regard_busy_seconds", "Time spent working on batches.", registry=self.registry)

    def text_done(self, model: str, verb: str, tokens: int) -> None:
        self.texts.labels(model, verb).inc()
        self.tokens.labels(model, verb).inc(tokens)

    def batch(self, model: str, verb: str, texts: int, seconds: float) -> None:
        """So many were worked on at once, for so long."""
        self.batches.labels(model, verb).observe(texts)
        self.busy.inc(seconds)

    def request(self, route: str, status: int, seconds: float) -> None:
        self.requests.labels(route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self.registry)

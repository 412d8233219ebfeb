"""What a server should do with streams and stops and does not yet: each passes once requests of all kinds share one decoding loop.

They are strict, so that whoever builds that loop is told; anything but the expected failure is an error.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest

from regard.serve import streams
from regard.serve.settings import Limits, Settings
from tests.serve.live import Live, Start, together

ASKED = {"model": "writer", "prompt": "the cat", "max_tokens": 10, "temperature": 0}


def awaited(what: str) -> pytest.MarkDecorator:
    return pytest.mark.xfail(strict=True, raises=AssertionError, reason=f"awaits the one decoding loop: {what}")


def chunks(live: Live, asked: dict[str, Any]) -> list[dict[str, Any]]:
    reply = live.post("/v1/completions", asked | {"stream": True})
    lines = [line.removeprefix("data: ") for line in reply.body.decode().split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def written(found: Sequence[dict[str, Any]]) -> str:
    return "".join(choice["text"] for chunk in found for choice in chunk["choices"])


@awaited("a stream is written to its end, or says that it ran out of time")
def test_a_stream_that_runs_out_of_time_does_not_say_that_it_is_long_enough(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = start().post("/v1/completions", ASKED).json["choices"][0]["text"]
    begin = streams.stream_ids

    def slowly(*given: Any) -> tuple[list[int], Iterator[int]]:
        ids, words = begin(*given)
        return ids, (word for word in words if time.sleep(0.05) is None)

    monkeypatch.setattr(streams, "stream_ids", slowly)
    found = chunks(start(Settings(limits=Limits(seconds=0.12))), ASKED)
    assert written(found) == whole or found[-1]["choices"][0]["finish_reason"] != "length"


@awaited("a stop ends the decoding of its text, at that token")
def test_a_stop_ends_the_work_and_only_what_was_read_and_written_is_counted(live: Live) -> None:
    whole = live.post("/v1/completions", ASKED | {"logprobs": 0}).json
    tokens = whole["choices"][0]["logprobs"]["tokens"]
    assert len(tokens) > 4
    found = live.post("/v1/completions", ASKED | {"stop": tokens[2]}).json
    first = next(place for place, token in enumerate(tokens) if tokens[2] in token)
    assert found["choices"][0]["text"] == "".join(tokens[:first])
    assert found["choices"][0]["finish_reason"] == "stop"
    assert found["usage"]["completion_tokens"] <= first + 1


@awaited("streams take their places beside all others, instead of a thread each")
def test_eight_streams_at_once_are_all_taken(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    live, go, begin = start(), threading.Event(), streams.stream_ids

    def held(*given: Any) -> tuple[list[int], Iterator[int]]:
        ids, words = begin(*given)
        return ids, (word for place, word in enumerate(words) if place == 0 or go.wait(30))

    def status() -> int:
        with closing(http.client.HTTPConnection("127.0.0.1", live.port, timeout=60)) as connection:
            connection.request("POST", "/v1/completions", json.dumps(ASKED | {"stream": True}), {"content-type": "application/json"})
            answered = connection.getresponse()
            begun.release()
            answered.read()
            return answered.status

    def let_go() -> int:
        for _ in range(8):
            assert begun.acquire(timeout=30)
        go.set()
        return 0

    begun = threading.Semaphore(0)
    monkeypatch.setattr(streams, "stream_ids", held)
    try:
        *found, _ = together([status] * 8 + [let_go])
    finally:
        go.set()
    assert found == [200] * 8

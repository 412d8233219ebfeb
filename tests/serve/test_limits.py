"""Who may ask, how much, and that nothing that is sent stops the server or makes it fail."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from regard.serve import libretranslate
from regard.serve.markup import Parts
from regard.serve.security import POLICY
from regard.serve.settings import LOOPBACK, Limits, Settings
from tests.serve.live import Live, Start, together

PATHS = ["/api/translate", "/api/generate", "/api/classify", "/api/fill", "/api/embed", "/api/score", "/translate", "/detect"]
PATHS += ["/v1/completions", "/v1/chat/completions", "/v1/embeddings"]
JSON = {"content-type": "application/json"}
FORM = {"content-type": "application/x-www-form-urlencoded"}


def bodies() -> Iterator[tuple[str, bytes]]:
    """Bodies that no client should send, by name."""
    yield "nothing", b""
    yield "no JSON", b"{"
    yield "a number", b"7"
    yield "null", b"null"
    yield "a list", b"[]"
    yield "not UTF-8", b'{"texts": "\xff\xfe"}'
    yield "deep lists", b"[" * 200_000
    yield "deep and closed", b"[" * 100_000 + b"]" * 100_000
    yield "deep within", b'{"texts": ' + b"[" * 900 + b"]" * 900 + b"}"
    yield "deep objects", b'{"a":' * 100_000
    yield "a huge number", b'{"texts": "1", "seed": ' + b"9" * 5000 + b"}"
    yield "numbers that are none", b'{"texts": "1", "to": "back", "temperature": NaN, "length_penalty": Infinity}'
    yield "an exponent", b'{"texts": "1", "to": "back", "temperature": 1e400}'
    yield "many keys", json.dumps({f"key{number}": number for number in range(20_000)}).encode()
    yield "many texts", json.dumps({"texts": ["1"] * 5000, "q": ["1"] * 5000, "target": "back", "to": "back"}).encode()
    texts = {
        "NUL": "1\x002",
        "half a character": "\ud800 1",
        "the other half": "1 \udfff",
        "controls": "".join(map(chr, range(32))),
        "a long text": "a" * 200_000,
        "a long word": "ab" * 4_900,
        "names of tokens": "<to:it><end><pad><mask>[MASK]",
        "right to left": "\u202e\u200f1 2\ufeff",
        "marks": "a" + "\u0301" * 3000,
        "outside": "\U0010ffff\uffff\ufffe",
        "spaces": " \u3000\t" * 300,
        "empty": "",
        "a path": "../../../etc/passwd",
        "markup": "<script>alert(1)</script>",
    }
    for name, text in texts.items():
        for form in (text, [text], [text, "1 2"]):
            record = {"texts": form, "targets": form, "to": "back", "q": form, "target": "back", "prompt": form, "input": form}
            record |= {"model": "writer", "max_tokens": 3, "messages": [{"role": "user", "content": text}]}
            yield f"{name} as {type(form).__name__}", json.dumps(record).encode()
        yield f"{name} as a name", json.dumps({"texts": "1", "to": text, "model": text, "q": "1", "target": text, text: text}).encode()
        yield f"{name} as a wish", json.dumps({"texts": "1", "to": "back", "prefix": text, "ban": [text], "require": [text]}).encode()


BODIES = dict(bodies())


@pytest.mark.parametrize("path", PATHS)
def test_no_body_makes_it_fail(live: Live, path: str) -> None:
    failed = {}
    for name, body in BODIES.items():
        reply = live.ask("POST", path, body, JSON)
        if reply.status >= 500 or (reply.status >= 400 and not reply.json["error"]):
            failed[name] = (reply.status, reply.body)
    assert not failed
    assert live.get("/health").json["status"] == "ok"


def test_texts_for_a_model_that_reads_no_bytes_are_no_problem_either(live: Live) -> None:
    for name, body in BODIES.items():
        record = json.loads(body) if name.endswith(("str", "list")) else {}
        if isinstance(record, dict) and "texts" in record:
            reply = live.post("/api/embed", {"texts": record["texts"], "model": "critic"})
            assert reply.status < 500, name


def anything() -> st.SearchStrategy[object]:
    leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=6
    )


KEYS = [
    "texts",
    "to",
    "prefix",
    "alignment",
    "model",
    "beam_size",
    "n_best",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "samples",
    "seed",
    "mbr",
]
KEYS += [
    "max_length",
    "min_length",
    "no_repeat",
    "repetition_penalty",
    "ban",
    "require",
    "groups",
    "diversity",
    "coverage",
    "choices",
    "pooling",
]
KEYS += [
    "normalise",
    "targets",
    "q",
    "source",
    "target",
    "format",
    "alternatives",
    "api_key",
    "prompt",
    "messages",
    "input",
    "max_tokens",
    "n",
]
KEYS += ["stop", "stream", "stream_options", "logprobs", "echo", "encoding_format", "dimensions"]
SENSIBLE = st.sampled_from(["1 2", ["1", "2 3"], "back", "translator", "writer", "translator:back", 1, 2, 0.5, 0, True, "16+2x", [], {}])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(PATHS), st.dictionaries(st.sampled_from(KEYS), SENSIBLE | anything(), max_size=8))
def test_no_wrong_types_make_it_fail(live: Live, path: str, record: dict[str, object]) -> None:
    reply = live.ask("POST", path, json.dumps(record), JSON)
    assert reply.status < 500, reply.body


@pytest.mark.parametrize("path", [*PATHS, "/nowhere", "/"])
def test_ten_megabytes_are_refused(live: Live, path: str) -> None:
    body = json.dumps({"texts": "a" * 10_000_000}).encode()
    assert live.ask("POST", path, body, JSON).status == 413

    def chunks() -> Iterator[bytes]:  # without a length said beforehand
        for start in range(0, len(body), 1 << 16):
            yield body[start : start + (1 << 16)]

    with suppress(BrokenPipeError, ConnectionResetError):  # it may be refused before all was sent
        assert live.ask("POST", path, chunks(), JSON).status in (404, 405, 413)  # type: ignore[arg-type]
    assert live.get("/health").status == 200


def test_limits_on_count_and_length(start: Start) -> None:
    live = start(Settings(Limits(texts=3, characters=50, waiting=8)))
    asked = {"to": "back", "target": "back"}
    assert live.post("/api/translate", {"texts": ["1"] * 3, "to": "back"}).status == 200
    for path, key in (("/api/translate", "texts"), ("/translate", "q")):
        rest = {"to": "back"} if key == "texts" else {"target": "back"}
        many = live.post(path, {key: ["1"] * 4, **rest})
        assert (many.status, many.json["error"]) == (413, "4 texts in one request, and 3 are taken; send fewer at once")
        long = live.post(path, {key: "1" * 51, **rest})
        assert (long.status, long.json["error"]) == (413, "a text of 51 characters, and 50 are taken; send it in parts")
    assert live.post("/translate", {"q": "1\n" * 9, **asked}).status == 413  # more lines than can ever wait
    assert live.post("/v1/completions", {"model": "writer", "prompt": "a" * 51}).json["error"]["type"] == "invalid_request_error"
    assert live.post("/v1/completions", {"model": "writer", "prompt": "a" * 51, "stream": True}).status == 413


@pytest.mark.parametrize("format", ["text", "html"])
def test_others_are_answered_while_a_long_text_is_taken_apart(live: Live, monkeypatch: pytest.MonkeyPatch, format: str) -> None:
    name = "html_of" if format == "html" else "lines_of"
    apart: Callable[[str], Parts] = getattr(libretranslate, name)
    begun, go, in_time = threading.Event(), threading.Event(), list[bool]()

    def held(text: str) -> Parts:
        begun.set()
        in_time.append(go.wait(5))
        return apart(text)

    def look() -> int:
        assert begun.wait(20)
        status = live.get("/health").status
        go.set()
        return status

    monkeypatch.setattr(libretranslate, name, held)
    translate = partial(live.post, "/translate", {"q": "1 2 3", "target": "back", "format": format})
    reply, status = together([translate, look])
    assert (reply.status, status, in_time) == (200, 200, [True])


def test_a_body_that_does_not_come_is_not_waited_for(start: Start) -> None:
    live = start(Settings(Limits(seconds=0.5)))
    begun = time.monotonic()
    with socket.create_connection(("127.0.0.1", live.port)) as slow:
        slow.sendall(b"POST /api/translate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{")
        assert b" 408 " in slow.recv(4096)
    assert time.monotonic() - begun < 10


def test_every_answer_has_the_headers(live: Live) -> None:
    replies = [live.get(path) for path in ("/", "/health", "/metrics", "/api/models", "/nowhere", "/api/translate", "/openapi.json")]
    replies += [live.post("/api/translate", {}), live.post("/v1/completions", 7), live.ask("POST", "/api/fill", b"x" * (2 << 20), JSON)]
    for reply in replies:
        assert reply.headers["content-security-policy"] == POLICY
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["x-frame-options"] == "DENY"
        assert "server" not in reply.headers
        assert not any(name.startswith("access-control") for name in reply.headers)
    assert "'unsafe" not in POLICY
    assert replies[1].headers["cache-control"] == "no-store"


def test_pages_of_other_sites_may_not_ask(live: Live, start: Start) -> None:
    own, other = f"http://127.0.0.1:{live.port}", "https://elsewhere.example"
    asked = {"texts": "1", "to": "back"}
    assert live.post("/api/translate", asked, {"origin": own}).status == 200
    for origin in (other, "null", "http://127.0.0.1", "garbage"):
        reply = live.post("/api/translate", asked, {"origin": origin})
        assert reply.status == 403
        assert "access-control-allow-origin" not in reply.headers
    preflight = {"origin": other, "access-control-request-method": "POST", "access-control-request-headers": "content-type"}
    assert live.ask("OPTIONS", "/api/translate", headers=preflight).status == 403
    friendly = start(Settings(origins=(other,), api_key="k"))
    allowed = friendly.ask("OPTIONS", "/api/translate", headers=preflight)
    assert (allowed.status, allowed.headers["access-control-allow-origin"]) == (200, other)
    assert friendly.post("/api/translate", asked, {"origin": other, "x-api-key": "k"}).headers["access-control-allow-origin"] == other
    assert friendly.post("/api/translate", asked, {"origin": "https://third.example", "x-api-key": "k"}).status == 403


def test_other_names_of_this_machine_are_not_answered(start: Start) -> None:
    """A page elsewhere may have its own name point here: its requests still bear that name."""
    live = start(Settings(hosts=frozenset(LOOPBACK)))
    for host in (f"localhost:{live.port}", "127.0.0.1", f"[::1]:{live.port}", "LOCALHOST"):
        assert live.get("/health", {"host": host}).status == 200
    for host in ("evil.example", f"evil.example:{live.port}", "localhost.evil.example", "[::1", ""):
        assert live.get("/health", {"host": host}).status == 400


@pytest.mark.parametrize(
    "path", [*PATHS, "/metrics", "/api/models", "/v1/models", "/v1/models/writer", "/languages", "/openapi.json", "/nowhere"]
)
def test_with_a_key_nothing_is_said_without_it(start: Start, path: str) -> None:
    live = start(Settings(api_key="clé"))
    method = "POST" if path in PATHS else "GET"
    keys = [{}, {"authorization": "Bearer wrong"}, {"x-api-key": ""}, {"authorization": "Basic clé".encode().decode("latin-1")}]
    for headers in keys:
        reply = live.ask(method, path, b"{}" if method == "POST" else None, JSON | headers)
        assert reply.status == 401, headers
        assert reply.headers["www-authenticate"] == "Bearer"
    right = "clé".encode().decode("latin-1")
    assert live.ask(method, path, b"{}", JSON | {"authorization": f"Bearer {right}"}).status != 401
    assert live.ask(method, path, b"{}", JSON | {"x-api-key": right}).status != 401
    assert live.get("/health").status == live.get("/").status == 200  # the page asks for the key itself


@pytest.mark.parametrize("key", ["voilà", "Å", "Обух", "ЦАР", "clé†", "…ą\xa0"])
def test_a_key_may_end_in_any_character(start: Start, key: str) -> None:
    """In UTF-8 some end in bytes that are spaces in Latin-1."""
    live = start(Settings(api_key=key))
    sent = key.encode().decode("latin-1")
    for headers in ({"authorization": f"Bearer {sent}"}, {"authorization": f"bearer  {sent}\t "}, {"x-api-key": sent}):
        assert live.get("/api/models", headers).status == 200, headers
    assert live.get("/api/models", {"authorization": f"Bearer {sent[:-1]}"}).status == 401


@pytest.mark.parametrize(
    "path",
    [
        "/../settings.py",
        "/..%2fsettings.py",
        "/%2e%2e/settings.py",
        "/web/../app.py",
        "//etc/passwd",
        "/index.html/..",
        "/.hidden",
        "/\x00",
        "/index.html%00",
    ],
)
def test_no_path_leads_out_of_the_page(live: Live, path: str) -> None:
    with socket.create_connection(("127.0.0.1", live.port)) as raw:  # a client would tidy the path
        raw.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: raw.recv(65536), b""))
    assert answer.split(b" ")[1] in (b"404", b"400")
    assert b"import" not in answer


def test_garbage_on_the_wire_is_no_problem(live: Live) -> None:
    for garbage in (
        b"\x00" * 1000,
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: -5\r\n\r\n",
        b"A" * 100_000,
        b"\x16\x03\x01",
    ):
        with socket.create_connection(("127.0.0.1", live.port)) as raw:
            raw.sendall(garbage)
            raw.shutdown(socket.SHUT_WR)
            raw.settimeout(5)
            with suppress(ConnectionResetError):
                raw.recv(4096)
    assert live.get("/health").status == 200

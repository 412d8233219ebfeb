"""Requests as nobody should send them: good ones of every route, each with something wrong about it. A seed and a number say which."""

from __future__ import annotations

import gzip
import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from random import Random
from typing import Any

JSON, FORM = "application/json", "application/x-www-form-urlencoded"
SECONDS = 30.0  # in which everything is answered
STATUS = re.compile(rb"(?:HTTP/1\.1 1\d\d [^\r]*\r\n\r\n)*HTTP/1\.1 (\d{3}) ")


@dataclass(frozen=True)
class Request:
    """What is sent, in parts that can be spoilt one by one."""

    method: str
    path: str
    query: str = ""
    record: Any = None  # becomes the body
    body: bytes = b""
    fields: tuple[tuple[str, str], ...] = (("host", "localhost"),)
    version: str = "HTTP/1.1"
    framed: Callable[[bytes], tuple[list[str], bytes]] | None = None  # how the body is sent; None: by its length

    @property
    def raw(self) -> bytes:
        body = self.body or (b"" if self.record is None else json.dumps(self.record).encode())
        framing, sent = (self.framed or _by_length)(body)
        target = f"{self.path}?{self.query}" if self.query else self.path
        lines = [f"{self.method} {target} {self.version}", *(f"{name}: {value}" for name, value in self.fields), *framing, "", ""]
        return "\r\n".join(lines).encode("utf-8", "surrogatepass") + sent


def _by_length(body: bytes) -> tuple[list[str], bytes]:
    return [f"content-length: {len(body)}"] if body else [], body


def _posted(path: str, record: Any) -> Request:
    return Request("POST", path, record=record, fields=(("host", "localhost"), ("content-type", JSON)))


WRITING = {"beam_size": 2, "n_best": 2, "length_penalty": 0.5, "max_length": "4+1x", "ban": ["3"], "no_repeat": 3}
DRAWN = {"model": "writer", "max_tokens": 4, "temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.01, "seed": 1, "stop": ["."], "n": 2}
CHAT = [{"role": "system", "content": "be brief"}, {"role": "user", "content": [{"type": "text", "text": "the cat"}]}]
PARTS = b"".join(
    b'--b\r\ncontent-disposition: form-data; name="%s"\r\n\r\n%s\r\n' % field for field in ((b"q", b"1 2"), (b"target", b"back"))
)
PARTS += b"--b--\r\n"
GOOD = [
    *(Request("GET", path) for path in ("/", "/health", "/metrics", "/openapi.json", "/languages", "/api/models", "/v1/models/writer")),
    Request("GET", "/api/runs"),
    Request("GET", "/api/runs/reverse", "since=10"),
    Request("GET", "/api/trace", "text=1+2&to=back&parts=weights,output&layers=0&heads=0,1&candidates=3"),
    _posted("/api/translate", {"texts": ["1 2 3", "4"], "to": "back", "alignment": True, "split": "sentences"} | WRITING),
    _posted("/api/translate", {"texts": "1 2. 3 4.", "to": "back", "parts": True, "model": "translator", "max_length": 5}),
    _posted("/api/generate", {"texts": ["the cat"], "max_length": 4, "temperature": 0.8, "top_k": 3, "samples": 2, "seed": 7}),
    _posted("/api/classify", {"texts": ["a lovely film", "dull"]}),
    _posted("/api/fill", {"texts": "a [MASK] cat", "choices": 3}),
    _posted("/api/embed", {"texts": ["a film"], "pooling": "mean", "normalise": True, "model": "critic"}),
    _posted("/api/score", {"texts": ["1 2"], "targets": ["2 1"], "to": "back", "model": "translator"}),
    _posted("/api/trace", {"text": "1 2", "to": "back", "layers": [0], "heads": [1], "candidates": 3, "options": {"max_length": 4}}),
    _posted("/translate", {"q": ["1 2\n3", "4"], "source": "en", "target": "back", "alternatives": 1, "format": "text"}),
    _posted("/translate", {"q": "<p>1 <b>2</b> 3</p>", "source": "auto", "target": "back", "format": "html"}),
    _posted("/detect", {"q": "a film"}),
    _posted("/v1/completions", {"prompt": ["the cat", "a"], "logprobs": 1, "echo": True} | DRAWN),
    _posted("/v1/completions", {"prompt": "the", "stream": True, "stream_options": {"include_usage": True}} | DRAWN | {"n": 1}),
    _posted("/v1/chat/completions", {"messages": CHAT, "logprobs": True} | DRAWN),
    _posted("/v1/chat/completions", {"model": "translator:back", "messages": [{"role": "user", "content": "1 2"}], "max_tokens": 5}),
    _posted("/v1/embeddings", {"model": "critic", "input": ["a film"], "encoding_format": "base64"}),
    Request("POST", "/translate", body=b"q=1+2&q=3&target=back&format=text", fields=(("host", "localhost"), ("content-type", FORM))),
    Request("POST", "/translate", body=PARTS, fields=(("host", "localhost"), ("content-type", "multipart/form-data; boundary=b"))),
]


# What is wrong with a request. Each takes one and gives one that is worse.


def _deep(levels: int) -> Any:
    found: Any = 1
    for _ in range(levels):
        found = [found]
    return found


ODD: list[Any] = [
    None, True, False, 0, -1, 1, 17, 2**31, 2**53, 2**63, 2**64, -(2**70), 0.0, -0.0, 0.5, 1e308, 5e-324, "", " ", "\n", "a" * 300,
    "1. " * 900, "\x00", "\ud800", "\udfff 1", "e\u0301\u202e", "\U0010ffff", "[MASK]", "<end><pad>", "{{ 1/0 }}", "../..", "back",
    "translator", "writer", [], {}, [None], [[]], [{}], {"": ""}, ["1"] * 200, [0] * 300, list(range(40)), _deep(50), {"a": {"b": [1]}},
    ["", "\ud800"],
]  # fmt: skip
LITERAL = [
    "NaN", "Infinity", "-Infinity", "1e400", "9" * 5000, "-0", "01", "1.", "'a'", "undefined", "[" * 2000, '{"a":' * 2000, '"\\ud800"',
    '"\\x"', '"', "", "\x00", "//", "1e9999999999",
]  # fmt: skip


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every container with every key of it."""
    for key, value in list(node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()):
        yield node, key
        yield from _places(value)


def other_value(chance: Random, request: Request) -> Request:
    if not isinstance(request.record, dict) or not request.record:
        return replace(request, record=chance.choice(ODD))
    record = deepcopy(request.record)
    container, key = chance.choice([*_places(record)])
    way = chance.randrange(5)
    if way == 0 and isinstance(container, dict):
        container.pop(key, None)
    elif way == 1 and isinstance(container, dict):
        container[chance.choice(("", "x", "texts", "model", "\ud800", "a" * 200, key.upper()))] = chance.choice(ODD)
    elif way == 2:
        container[key] = [container[key]] * chance.choice((0, 1, 2, 200))
    else:
        container[key] = chance.choice(ODD)
    return replace(request, record=record)


def other_literal(chance: Random, request: Request) -> Request:
    """What no library for JSON would write."""
    text = json.dumps(request.record)
    found = [*re.finditer(r'"(?:[^"\\]|\\.)*"|-?\d[\d.e+-]*|true|false|null', text)]
    place = chance.choice(found).span() if found else (0, 0)
    return replace(request, body=(text[: place[0]] + chance.choice(LITERAL) + text[place[1] :]).encode("utf-8", "surrogatepass"))


def again(chance: Random, request: Request) -> Request:
    """A key that is there twice."""
    text = json.dumps(request.record)
    key = chance.choice([*request.record] if isinstance(request.record, dict) and request.record else ["a"])
    return replace(request, body=f"{{{json.dumps(key)}: {json.dumps(chance.choice(ODD))}, {text[1:]}".encode("utf-8", "surrogatepass"))


def other_bytes(chance: Random, request: Request) -> Request:
    body = request.body or json.dumps(request.record).encode()
    place = chance.randrange(len(body) + 1)
    strange = chance.choice((b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\x80", b"\x00", b"\r\n\r\n", b"\xf4\x90\x80\x80", b"\x7f"))
    encoding, packing = chance.choice(("utf-16", "utf-32", "utf-16-be")), chance.choice(("gzip", "deflate", "br"))
    packed = gzip.compress(body, mtime=0)
    ways = [
        body[:place],
        body[:place] + bytes([chance.randrange(256)]) + body[place + 1 :],
        body[:place] + strange + body[place:],
        b"\xef\xbb\xbf" + body,
        body.decode("latin-1").encode(encoding),
        body + body,
        body + b" " * chance.choice((1, 70_000, 1 << 20)),
    ]
    way = chance.randrange(len(ways) + 1)
    if way < len(ways):
        return replace(request, body=ways[way])
    packed = packed[: chance.choice((len(packed), len(packed) // 2))]
    return replace(request, body=packed, fields=(*request.fields, ("content-encoding", packing)))


FIELDS = [
    *(("content-type", kind) for kind in ("", "text/plain", f"{JSON}; charset=utf-16", "application/x+json", "a/b/c", ";", "\ud800", FORM)),
    *(("content-type", f"multipart/form-data{rest}") for rest in ("", '; boundary="', f"; boundary={'b' * 300}")),
    *(("host", name) for name in ("", "a b", "localhost:99999", "[::1", "\x01", "\xe9", "a" * 3000)),
    *(("range", part) for part in ("bytes=0-", "bytes=-1", "bytes=5-1", "bytes=0-0,9999999-", "bytes=" + "0-0," * 500, "bytes=a-b")),
    *(("connection", way) for way in ("upgrade", "close, keep-alive", "x")), ("upgrade", "websocket"), ("te", "trailers"),
    *(("content-length", size) for size in ("-1", "1e3", "9" * 40, "3, 3", "")), ("transfer-encoding", "gzip"), ("expect", "100-continue"),
    *(("authorization", key) for key in ("Bearer \xff", "Basic", "Bearer")), ("origin", "null"), ("origin", "https://example.org"),
    ("sec-fetch-site", "cross-site"), ("expect", "x"), ("if-none-match", "*"), ("if-range", "x"), ("if-modified-since", "never"),
    ("accept", "\x00"), ("cookie", "a=" + "b" * 9000), ("x" * 20_000, "y"), ("a b", "c"), ("", "x"), ("x-a", "1\r\n folded"), ("x-b", "\n"),
]  # fmt: skip


def other_field(chance: Random, request: Request) -> Request:
    fields = list(request.fields)
    match chance.randrange(4):
        case 0 if fields:
            del fields[chance.randrange(len(fields))]
        case 1:
            fields += [("x-many", "1")] * chance.choice((2, 100, 4000))
        case _:
            fields.insert(chance.randrange(len(fields) + 1), chance.choice(FIELDS))
    return replace(request, fields=tuple(fields))


METHODS = ["GET", "POST", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE", "TRACE", "CONNECT", "PRI", "get", "\xe9", "A" * 300, ""]
ENDS = [
    "", "/", "//", "/..", "/%2e%2e/%2e%2e/etc/passwd", "%00", "%ff", "%", "%zz", "%ed%a0%80", "/" + "a" * 5000, "/\\", "\xe9", "#x", " ",
]  # fmt: skip
PATHS = [
    "*",
    "http://localhost/health",
    "/",
    "",
    "/api",
    "/v1/models/" + "\xe9" * 9,
    "/v1/models/%C3%A9",
    "/api/runs/..",
    "/api/runs/%2e%2e",
]
QUERIES = [
    "", "a", "&" * 2000, "since=-1", "since=1e9", "since=" + "9" * 5000, "since=0&since=1", "text=%ff%00", "text=%ED%A0%80&to=back",
    "q=1&target=back", "to=back&text=" + "1+" * 2000, "text=1&to=back&layers=1,,2", "text=1&to=back&layers=" + "9," * 300,
    "text=1&candidates=0", "text=1&verb=x", "?" * 50, "a=%", "%00=1", "api_key=\x7f",
]  # fmt: skip


def other_address(chance: Random, request: Request) -> Request:
    match chance.randrange(4):
        case 0:
            return replace(request, method=chance.choice(METHODS))
        case 1:
            return replace(request, path=request.path + chance.choice(ENDS))
        case 2:
            return replace(request, path=chance.choice(PATHS))
        case _:
            return replace(request, query=chance.choice(QUERIES))


def other_framing(chance: Random, request: Request) -> Request:
    """Chunks of odd sizes, wrong sizes, two lengths, less or more than was said."""
    way, size, seed = chance.randrange(9), chance.choice((1, 2, 7, 100, 5000)), chance.random()

    def framed(body: bytes) -> tuple[list[str], bytes]:
        parts = [body[begin : begin + size] for begin in range(0, len(body), size)]
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
        chunked = ["transfer-encoding: chunked"]
        return [
            (chunked, chunks + b"0\r\n\r\n"),
            (chunked, chunks + b"0\r\nx-trailer: 1\r\n\r\n"),
            (chunked, chunks[: int(seed * len(chunks))]),
            (chunked, chunks.replace(b"\r\n", b"\n") + b"0\n\n"),
            (chunked, b"%x\r\n" % (1 << 80) + body),
            (chunked, b";a=b\r\n-1\r\n" + body),
            ([f"content-length: {len(body)}", *chunked], chunks + b"0\r\n\r\n"),
            ([f"content-length: {len(body) + size}"], body),
            ([f"content-length: {max(0, len(body) - size)}"], body),
        ][way]

    return replace(request, framed=framed)


def other_version(chance: Random, request: Request) -> Request:
    return replace(request, version=chance.choice(("HTTP/1.0", "HTTP/0.9", "HTTP/2.0", "HTTP/1.10", "http/1.1", "", "HTTP/1.1 x", "ICY")))


OF_BODIES = [other_value, other_value, other_value, other_literal, again, other_bytes]
OF_ALL = [other_field, other_address, other_framing, other_version]


def spoilt(seed: int, number: int) -> bytes:
    """One of the requests of that seed."""
    chance = Random(f"{seed}/{number}")
    request = chance.choice(GOOD)
    for _ in range(chance.choice((1, 1, 2, 3))):
        ways = OF_BODIES if request.method == "POST" and chance.random() < 0.7 else OF_ALL
        request = chance.choice(ways)(chance, request)
    return request.raw


def answered(port: int, raw: bytes) -> tuple[int, float]:
    """The status, 0 where the connection was closed without one, and how many seconds it took."""
    begun, said = time.monotonic(), b""
    with suppress(ConnectionError), socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connection:
        with suppress(ConnectionError):
            connection.sendall(raw)
        with suppress(OSError):  # it may be closed already
            connection.shutdown(socket.SHUT_WR)  # what is cut short is not waited for
        while came := connection.recv(1 << 16):
            said += came
    found = STATUS.match(said)
    return int(found[1]) if found else 0, time.monotonic() - begun

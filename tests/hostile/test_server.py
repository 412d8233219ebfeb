"""What a server holds against: odd requests, odd connections, odd settings and odd files, each of which it once did not."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from statistics import median
from urllib.parse import quote

import pytest

from regard.door import Model
from regard.errors import ConfigError
from regard.serve import connections
from regard.serve.settings import LOOPBACK, Limits, Settings
from tests.cli.running import run
from tests.serve.live import Held, Live, Start, together, until
from tests.signals import heard

ROOT = Path(__file__).parents[2]


# Requests


@pytest.mark.parametrize("number", [0, 1, 2**30, 2**31 - 1])
def test_chance_may_go_by_any_number_that_a_text_has(
    live: Live, models: dict[str, Model], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    """Without a seed it is drawn from 2^31; each part of the text has one 2^20 times as large, which is then kept apart from samples."""
    monkeypatch.setattr("regard.serve.openai.secrets.randbelow", lambda _: number)
    long = "1 2 3 4 5 6 7 8 9 0. " * 200
    asked = {"model": "translator:back", "messages": [{"role": "user", "content": long}], "temperature": 0.5}
    replies = together([lambda: live.post("/v1/chat/completions", asked)] * 3)
    wanted = models["translator"].translate(long, "back", temperature=0.5, numbers=[number])
    assert [reply.status for reply in replies] == [200] * 3
    assert {reply.json["choices"][0]["message"]["content"] for reply in replies} == {wanted.text}
    assert not caplog.records  # nor was it tried twice


@pytest.mark.parametrize("seed", [2**31, 2**53, 2**63 - 1, 2**63, 2**64 + 1, -1])
def test_no_seed_makes_it_fail(live: Live, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    told = {"model": "writer", "prompt": "the cat", "max_tokens": 3, "temperature": 1, "seed": seed}
    assert live.post("/v1/completions", told).status == live.post("/v1/completions", told | {"stream": True}).status == 200
    for path, body in (("translate", {"texts": "1. " * 99, "to": "back"}), ("trace", {"text": "1 2", "to": "back"})):
        wish = {"temperature": 1.0, "seed": seed}
        reply = live.post(f"/api/{path}", body | (wish if path == "translate" else {"options": wish}))
        assert reply.status in (200, 400)
    assert not caplog.records


def test_a_trace_from_an_address_is_refused_in_time_too(start: Start) -> None:
    """Refused before what a GET has for a body was looked at."""
    live = start(Settings(Limits(waiting=1, seconds=20)))
    held = Held(live)
    asked = {"texts": "1 2 3", "to": "back"}
    try:
        taken = [lambda: live.post("/api/translate", asked), lambda: held.begun.wait(20) and live.post("/api/translate", asked)]

        def then() -> list[int]:
            assert held.begun.wait(20)
            while live.desk.metrics.registry.get_sample_value("regard_waiting_texts") != 1:
                time.sleep(0.01)
            found = []
            for _ in range(3):
                with closing(http.client.HTTPConnection("127.0.0.1", live.port, timeout=5)) as connection:
                    connection.request("GET", f"/api/trace?text={quote('1 2')}&to=back")
                    found.append(connection.getresponse().status)
            held.let_go()
            return found

        *answered, refused = together([*taken, then])
    finally:
        held.let_go()
    assert refused == [429, 429, 429]
    assert [reply.status for reply in answered] == [200, 200]


# Whom it answers


LOOK_ALIKE = ["evil@localhost", "evil:word@localhost", "localhost/evil", "localhost?evil", "localhost#evil", "localhost:80:80"]


@pytest.mark.parametrize("host", LOOK_ALIKE)
def test_what_only_looks_like_this_machine_is_not_answered(start: Start, host: str) -> None:
    live = start(Settings(hosts=frozenset(LOOPBACK)))
    assert live.get("/health", {"host": host}).status == 400
    assert live.get("/health", {"host": f"LocalHost:{live.port}"}).status == 200


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("", "is empty; leave it out"),
        ("secret ", "begins or ends with a space"),
        ("\tsecret", "begins or ends with a space"),
        (b"secret\xff\xfe".decode("utf-8", "surrogateescape"), "is no UTF-8"),
        ("sec\nret", "control character"),
        ("secret\x7f", "control character"),
    ],
)
def test_a_key_that_no_request_can_bear_is_refused_at_the_start(key: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        Settings(api_key=key)
    assert "sec" not in str(refused.value)
    if key:
        done = run("serve", "--api-key", key, "--port", "0", "--model", tmp_path / "nowhere")
        assert (done.code, said in done.err, len(done.err.splitlines())) == (1, True, 1)


def test_an_empty_key_in_the_environment_lets_nobody_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As from a compose file whose ${KEY} is not set."""
    monkeypatch.setenv("REGARD_API_KEY", "")
    done = run("serve", "--port", "0", "--model", tmp_path / "nowhere")
    assert done.code == 2
    assert "REGARD_API_KEY is empty; unset it to let everyone ask" in re.sub(r"[│\s]+", " ", done.err)
    given = run("serve", "--port", "0", "--model", tmp_path / "nowhere", "--api-key", "k")
    assert "there is no model" in given.err


@pytest.mark.parametrize(
    ("origin", "said"),
    [
        ("*", "that would be every site: name each"),
        ("https://*.example.org", "that is none"),
        ("example.org", "that is none"),
        ("https://example.org/", "without a path"),
        ("https://Example.org", "in small letters"),
        ("", "that is none"),
    ],
)
def test_an_origin_that_no_browser_sends_is_refused(origin: str, said: str, tmp_path: Path) -> None:
    done = run("serve", "--allow-origin", origin, "--port", "0", "--model", tmp_path / "nowhere")
    assert (done.code, said in done.err, "as https://example.org" in done.err) == (1, True, True)


@pytest.mark.parametrize("origin", ["https://example.org", "http://[::1]:3000", "http://localhost:5173", "chrome-extension://abc", "null"])
def test_origins_that_browsers_send_are_taken(origin: str) -> None:
    assert Settings(origins=(origin,)).origins == (origin,)


# What lies in the folder of runs

RECIPES = {
    "deep": "a = " + "[" * 20_000,
    "digits": "[training]\nsteps = " + "9" * 5_000,
    "hexadecimal": "[training]\nsteps = 0x" + "f" * 5_000,
    "not UTF-8": b'task = "\xff"'.decode("latin-1"),
    "a table that is none": "training = 3\ntask = [1]",
}


def test_a_damaged_recipe_hides_no_other_run(start: Start, tmp_path: Path) -> None:
    for name, recipe in (RECIPES | {"whole": 'task = "lm"\n[training]\nsteps = 7'}).items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text('{"step": 3}\n')
        (tmp_path / name / "recipe.toml").write_bytes(recipe.encode("latin-1"))
    (tmp_path / "pipe").mkdir()
    (tmp_path / "pipe" / "metrics.jsonl").write_text('{"step": ' + "9" * 4_000 + "}\n")
    os.mkfifo(tmp_path / "pipe" / "recipe.toml")
    live = start(Settings(runs=tmp_path))
    reply = live.get("/api/runs")
    assert reply.status == 200
    found = {each["name"]: (each["step"], each["steps"], each["task"]) for each in reply.json["runs"]}
    assert found == dict.fromkeys(RECIPES, (3, None, None)) | {"whole": (3, 7, "lm"), "pipe": (None, None, None)}


# Connections


def test_an_answer_on_a_connection_that_is_kept_is_sent_at_once(live: Live) -> None:
    seconds = []
    with closing(http.client.HTTPConnection("127.0.0.1", live.port, timeout=20)) as connection:
        for _ in range(30):
            begun = time.perf_counter()
            connection.request("GET", "/health")
            connection.getresponse().read()
            seconds.append(time.perf_counter() - begun)
    assert median(seconds) < 0.02


BOTH = "content-length: 4\r\ntransfer-encoding: chunked\r\n"
INSIDE = "0\r\n\r\nGET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.mark.parametrize("settings", [Settings(), Settings(origins=("https://example.org",))], ids=["alone", "with other sites"])
@pytest.mark.parametrize("asked", ["POST /api/translate", "GET /health", "OPTIONS /api/translate"])
def test_a_request_that_ends_in_two_places_is_refused_with_all_that_follows(start: Start, settings: Settings, asked: str) -> None:
    """A proxy that goes by the length would never have looked at what is inside."""
    preflight = "origin: https://example.org\r\naccess-control-request-method: POST\r\n"
    live = start(settings)
    answer = exchanged(live, f"{asked} HTTP/1.1\r\nhost: localhost\r\n{preflight}{BOTH}\r\n{INSIDE}")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1  # and the connection is closed
    assert b"connection: close" in answer
    assert b"either a Content-Length or a Transfer-Encoding" in answer


def exchanged(live: Live, sent: str, shut: bool = False) -> bytes:
    """All that comes until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", live.port), timeout=20) as connection:
        connection.sendall(sent.encode())
        if shut:
            connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def post(path: str, record: object, version: str = "1.1") -> str:
    body = json.dumps(record)
    head = f"POST {path} HTTP/{version}\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    return f"{head}\r\n\r\n{body}"


ASKED = {"texts": "1 2 3", "to": "back"}
STREAMED = {"model": "writer", "prompt": "the cat", "max_tokens": 5, "temperature": 0, "stream": True}


@pytest.mark.parametrize(
    ("sent", "answers", "end"),
    [
        ("GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n", 1, b"}"),
        ("GET /health HTTP/1.0\r\n\r\n", 1, b"}"),
        ("GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n" * 3, 3, b"}"),
        (post("/api/translate", ASKED), 1, b"}"),
        (post("/api/translate", ASKED, "1.0"), 1, b"}"),
        (post("/v1/completions", STREAMED), 1, b"data: [DONE]\n\n\r\n0\r\n\r\n"),
    ],
    ids=["health", "in 1.0", "three at once", "a translation", "a translation in 1.0", "a stream"],
)
def test_a_client_that_says_no_more_gets_its_answer(live: Live, sent: str, answers: int, end: bytes) -> None:
    """As `nc -N` does; and the connection is closed after the last."""
    begun = time.monotonic()
    answer = exchanged(live, sent, shut=True)
    assert answer.count(b" 200 OK\r\n") == answers
    assert answer.endswith(end)
    assert time.monotonic() - begun < 15  # and not after the time that a connection is kept


@pytest.mark.parametrize(("version", "interim"), [("1.1", b"HTTP/1.1 100 Continue\r\n\r\n"), ("1.0", b"")])
def test_a_client_that_says_no_more_may_wait_for_long(start: Start, version: str, interim: bytes) -> None:
    live = start()
    held = Held(live)
    asked = post("/api/translate", ASKED, version)
    [answer, _] = together([lambda: exchanged(live, asked, shut=True), lambda: held.begun.wait(20) and (time.sleep(1), held.let_go())])
    assert answer.startswith(interim + b"HTTP/1.1 200 OK\r\n")


def test_a_client_that_goes_away_is_still_told_from_one_that_says_no_more(start: Start) -> None:
    live = start()
    held = Held(live)
    try:
        with socket.create_connection(("127.0.0.1", live.port), timeout=20) as connection:
            connection.sendall(post("/api/translate", ASKED).encode())
            assert held.begun.wait(20)
            assert len(live.server.server_state.connections) == 1
        until(lambda: not live.server.server_state.connections, 5)
    finally:
        held.let_go()


BEGINNINGS = [b"", b"GET /health HTTP/1.1\r\n", b"POST /translate HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n"]


def test_any_number_who_say_nothing_shut_nobody_out(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or begin what they never end: far more than there are places."""
    monkeypatch.setattr("regard.serve.run.SPARE", 60)
    live = start(Settings(Limits(waiting=36, streams=4)))
    with ExitStack() as stack:
        for number in range(300):
            idle = stack.enter_context(socket.create_connection(("127.0.0.1", live.port), timeout=20))
            idle.sendall(BEGINNINGS[number % 3])
        for _ in range(3):
            assert live.get("/health").status == 200
        assert live.post("/api/translate", ASKED).status == 200
        assert len(live.server.server_state.connections) <= 100


def test_whoever_is_worked_for_makes_no_room(start: Start) -> None:
    live = start()
    held = Held(live)
    live.server.config.limit_concurrency = 4
    with ExitStack() as stack:
        working = stack.enter_context(socket.create_connection(("127.0.0.1", live.port), timeout=20))
        working.sendall(post("/api/translate", ASKED).encode())
        assert held.begun.wait(20)
        for _ in range(9):
            stack.enter_context(socket.create_connection(("127.0.0.1", live.port), timeout=20))
        assert live.get("/health").status == 200
        held.let_go()
        assert working.recv(4096).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("first", [b"", b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"], ids=["a first", "a second"])
def test_a_request_that_does_not_come_to_its_end_is_not_waited_for(live: Live, monkeypatch: pytest.MonkeyPatch, first: bytes) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.5)
    begun = time.monotonic()
    with socket.create_connection(("127.0.0.1", live.port), timeout=20) as connection, suppress(ConnectionError):
        connection.sendall(first)
        assert connection.recv(4096)[:15] == (b"HTTP/1.1 200 OK" if first else b"")
        while True:
            connection.sendall(b"G")
            time.sleep(0.05)
            assert time.monotonic() - begun < 10


def test_nor_is_one_that_never_says_a_byte(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.3)
    with closing(http.client.HTTPConnection("127.0.0.1", live.port, timeout=20)) as kept:
        kept.request("GET", "/health")
        assert kept.getresponse().read()
        with socket.create_connection(("127.0.0.1", live.port), timeout=10) as connection, suppress(ConnectionError):
            assert connection.recv(1) == b""
        kept.request("GET", "/health")  # on the same connection: whoever has asked once has longer
        assert kept.getresponse().status == 200


LARGE = post("/api/trace", {"text": "1 2 3 4 5 " * 2, "to": "back", "candidates": 100})


@pytest.mark.parametrize("sent", [LARGE, "GET / HTTP/1.1\r\nhost: localhost\r\n\r\n" * 100], ids=["one that is large", "many"])
def test_answers_that_nobody_reads_are_let_go(start: Start, monkeypatch: pytest.MonkeyPatch, sent: str) -> None:
    monkeypatch.setattr(connections, "UNREAD_SECONDS", 1.0)
    live = start()
    live._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # of the connections that it takes
    with ExitStack() as stack:
        for _ in range(3):
            unread = stack.enter_context(socket.socket())
            unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            unread.connect(("127.0.0.1", live.port))
            unread.sendall(sent.encode())
        here = live.server.server_state.connections
        until(lambda: len(here) == 3 and all(each.transport.get_write_buffer_size() > 0 for each in here.copy()))
        until(lambda: not here, 10)


def test_an_answer_that_is_read_slowly_comes_whole(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "UNREAD_SECONDS", 0.3)
    monkeypatch.setattr(connections, "UNREAD_BYTES", 1 << 9)
    live = start()
    live._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    whole = exchanged(live, LARGE, shut=True).partition(b"\r\n\r\n")[2]
    assert len(whole) > 60_000
    begun, found = time.monotonic(), b""
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 13)
        slow.connect(("127.0.0.1", live.port))
        slow.sendall(LARGE.encode())
        while len(found.partition(b"\r\n\r\n")[2]) < len(whole):
            found += (came := slow.recv(1 << 11))
            assert came
            time.sleep(0.02)
    assert found.endswith(whole)
    assert time.monotonic() - begun > 2 * connections.UNREAD_SECONDS


def test_answers_that_wait_to_be_read_have_a_limit_together(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long before each of them would be let go."""
    monkeypatch.setattr(connections, "MOST_UNREAD", 150_000)
    live = start()
    live._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    here = live.server.server_state.connections
    with ExitStack() as stack:
        for _ in range(5):
            unread = stack.enter_context(socket.socket())
            unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            unread.connect(("127.0.0.1", live.port))
            unread.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n" * 100)
            until(lambda: any(each.transport.get_write_buffer_size() > 1 << 16 for each in here.copy()))
        until(lambda: 0 < len(here) <= 2, 10)
        assert live.get("/health").status == 200


def test_whoever_had_an_answer_stays_before_those_that_never_asked(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live.server.config, "limit_concurrency", 4)
    with closing(http.client.HTTPConnection("127.0.0.1", live.port, timeout=20)) as kept, ExitStack() as stack:
        for _ in range(3):
            kept.request("GET", "/health")
            assert kept.getresponse().read()
            for number in range(6):
                idle = stack.enter_context(socket.create_connection(("127.0.0.1", live.port), timeout=20))
                idle.sendall(BEGINNINGS[number % 3])
            assert live.get("/health").status == 200  # by now all of them have been let in
        own = kept.sock
        kept.request("GET", "/health")
        assert kept.getresponse().status == 200
        assert kept.sock is own  # and not another, since the first was closed


BROKEN = [
    ("POST /nowhere", "zz\r\n", b"HTTP/1.1 404 "),  # answered before it is read
    ("POST /api/translate", "5\r\n12345\r\nzz\r\n", b"HTTP/1.1 400 "),
    ("POST /translate", "5\r\n12345\r\n-1\r\n", b"HTTP/1.1 400 "),
    ("POST /api/translate", "1\r\n \r\n" * 2000, b"HTTP/1.1 400 "),
]


@pytest.mark.parametrize(("line", "body", "status"), BROKEN)
def test_what_comes_broken_after_its_beginning_is_no_error_of_ours(
    live: Live, caplog: pytest.LogCaptureFixture, line: str, body: str, status: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", live.port), timeout=20) as connection, suppress(ConnectionError):
        head = "host: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked"
        connection.sendall(f"{line} HTTP/1.1\r\n{head}\r\n\r\n".encode())
        time.sleep(0.1)
        connection.sendall(body.encode())
        said = b"".join(iter(lambda: connection.recv(65536), b""))
        assert said.startswith(status)
        assert (b"send larger ones" in said) is (len(body) > 1000)
    assert live.get("/health").status == 200
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


@pytest.mark.parametrize(
    "sent",
    ["POST /translate HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{", "GET / HTTP/1.1\r\nhost: localhost\r\n\r\n" * 100],
    ids=["does not ask to the end", "does not read"],
)
def test_nobody_who_idles_holds_up_its_end(models: dict[str, Model], monkeypatch: pytest.MonkeyPatch, sent: str) -> None:
    monkeypatch.setattr(connections, "LAST_SECONDS", 0.5)
    with ExitStack() as stack:
        with Live(models) as live:
            live._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            idle = stack.enter_context(socket.socket())
            idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            idle.connect(("127.0.0.1", live.port))
            idle.sendall(sent.encode())
            until(lambda: any(each.cycle is not None for each in live.server.server_state.connections.copy()))
            time.sleep(0.2)
            begun = time.monotonic()
        assert time.monotonic() - begun < 8


TOLD = """
import os, signal, sys
from regard.serve.run import bind, serve
from regard.serve.settings import Settings

def ready(address):
    print(address, flush=True)
    os.kill(os.getpid(), signal.Signals[sys.argv[1]])

with bind("127.0.0.1", 0) as bound:
    serve({}, Settings(), bound, ready)
"""


@pytest.mark.parametrize("sign", ["SIGTERM", "SIGINT"])
def test_whoever_has_read_the_address_can_end_it(sign: str, tmp_path: Path) -> None:
    command = heard([sys.executable, "-c", TOLD, sign])
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("http://127.0.0.1:")


def test_once_it_says_its_address_it_ends_when_told(bundle: Callable[[str], Path]) -> None:
    command = [sys.executable, "-m", "regard", "serve", "--port", "0", "--device", "cpu", "--model", str(bundle("critic"))]
    with subprocess.Popen(heard(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("regard: ")
        process.terminate()
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, "")

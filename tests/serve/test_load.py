"""Under load: refused at once when full, freed by those who leave, and nothing that was taken is lost when it stops."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from copy import copy
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from regard.door import Model
from regard.serve.cores import Cores
from regard.serve.desk import _workers, load_all
from regard.serve.settings import Limits, Settings
from tests.cli.running import run
from tests.serve.live import Held, Live, Reply, Start, together, until
from tests.signals import heard

ASKED = {"texts": "1 2 3", "to": "back"}


def waiting(live: Live) -> float:
    return live.desk.metrics.registry.get_sample_value("regard_waiting_texts") or 0.0


def send(live: Live, path: str, record: object) -> socket.socket:
    """A request whose answer nobody reads yet."""
    body = json.dumps(record).encode()
    connection = socket.create_connection(("127.0.0.1", live.port))
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def test_when_full_the_rest_are_told_to_come_again(start: Start) -> None:
    live = start(Settings(Limits(waiting=4)))
    held = Held(live)
    threads: list[tuple[threading.Thread, list[Reply]]] = []
    for count in range(5):
        got: list[Reply] = []
        threads.append((threading.Thread(target=lambda got=got: got.append(live.post("/api/translate", ASKED))), got))
        threads[-1][0].start()
        if count == 0:
            assert held.begun.wait(20)
    until(lambda: waiting(live) == 4)
    refused = live.post("/api/translate", ASKED)
    assert refused.status == 429
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert refused.json["error"] == "4 texts are waiting already; ask again in a while"
    assert live.get("/health").status == 200  # which needs no place
    held.let_go()
    for thread, got in threads:
        thread.join(30)
        assert got[0].status == 200
    assert live.post("/api/translate", ASKED).status == 200
    assert live.desk.metrics.registry.get_sample_value("regard_refused_total", {"reason": "full"}) == 1


def test_whoever_goes_away_frees_their_places(start: Start) -> None:
    live = start(Settings(Limits(waiting=4)))
    held = Held(live)
    first = send(live, "/api/translate", ASKED)
    assert held.begun.wait(20)
    crowd = [send(live, "/api/translate", {"texts": ["1", "2"], "to": "back"}) for _ in range(2)]
    until(lambda: waiting(live) == 4)
    assert live.post("/api/translate", ASKED).status == 429
    for connection in crowd:
        connection.close()
    until(lambda: waiting(live) == 0)
    held.let_go()
    assert live.post("/api/translate", ASKED).status == 200
    assert live.desk.metrics.registry.get_sample_value("regard_texts_total", {"model": "translator", "verb": "translate"}) == 2  # of 6
    assert b" 200 " in first.recv(4096)
    first.close()
    until(lambda: live.desk.metrics.registry.get_sample_value("regard_requests_total", {"route": "/api/translate", "status": "499"}) == 2)


def test_what_takes_too_long_is_given_up(start: Start) -> None:
    live = start(Settings(Limits(seconds=1.5)))
    held = Held(live)
    reply = live.post("/api/translate", ASKED)
    assert reply.status == 503
    assert reply.json["error"].startswith("there was no answer within 1.5 s")
    held.let_go()
    until(lambda: live.post("/api/translate", ASKED).status == 200)


def test_who_would_wait_in_vain_is_told_at_once(start: Start) -> None:
    live = start(Settings(Limits(seconds=10)))
    held = Held(live)
    one = send(live, "/api/translate", ASKED)
    assert held.begun.wait(20)
    live.desk.queue._speed = {(name, "translate"): 0.1 for name in live.desk.models}  # tokens in a second
    other = send(live, "/api/translate", ASKED)
    until(lambda: waiting(live) == 1)
    assert live.post("/api/translate", ASKED).status == 429
    held.let_go()
    for connection in (one, other):
        assert b" 200 " in connection.recv(4096)
        connection.close()


def test_one_long_batch_holds_up_nobody_where_there_is_another_worker(start: Start) -> None:
    live = start(Settings(workers=2))
    held = Held(live)
    long = send(live, "/api/translate", ASKED)
    assert held.begun.wait(20)
    live.desk.queue._work = held._work
    texts = [{"texts": f"{number} 2", "to": "back"} for number in range(8)]
    assert {reply.status for reply in together([partial(live.post, "/api/translate", own) for own in texts])} == {200}
    held.let_go()
    assert b" 200 " in long.recv(4096)
    long.close()


def test_a_worker_for_each_core_and_one_for_a_gpu(models: dict[str, Model]) -> None:
    assert [_workers(models.values(), Cores(total)) for total in (1, 2, 4, 64)] == [1, 2, 4, 4]
    elsewhere = copy(models["critic"])
    elsewhere.network = SimpleNamespace(device=torch.device("cuda"))  # type: ignore[assignment]
    assert _workers([*models.values(), elsewhere], Cores(8)) == 1


def test_streams_are_few_and_end_with_their_listener(start: Start) -> None:
    live = start(Settings(Limits(streams=1)))
    model = live.desk.models["writer"]
    asked = {"model": "writer", "prompt": "the", "max_tokens": 40, "temperature": 2.0, "stream": True}
    counted: list[int] = []
    original = type(model.network).step

    def step(self: object, *arguments: object, **named: object) -> object:
        counted.append(1)
        time.sleep(0.1)
        return original(self, *arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(model.network), "step", step)
        listener = send(live, "/v1/completions", asked)
        assert b"text/event-stream" in listener.recv(4096)
        refused = live.post("/v1/completions", asked)
        assert refused.status == 429
        assert "retry-after" in refused.headers
        listener.close()
        until(lambda: live.desk.metrics.registry.get_sample_value("regard_streams") == 0)
    assert len(counted) < 38
    assert live.post("/v1/completions", asked | {"max_tokens": 2}).status == 200


def test_many_clients_each_get_their_own(live: Live, models: dict[str, Model]) -> None:
    texts = [" ".join(str((start + place) % 10) for place in range(2 + start % 5)) for start in range(48)]
    replies = together([partial(live.post, "/api/translate", {"texts": text, "to": "same", "beam_size": 2}) for text in texts])
    wanted = models["translator"].translate(texts, "same", beam_size=2)
    assert [reply.json["answers"][0]["text"] for reply in replies] == [answer.text for answer in wanted]


def test_names_of_models_are_no_paths(bundle: Callable[[str], Path]) -> None:
    folder = bundle("critic")
    assert list(load_all([str(folder), f"mine={folder}"], "cpu")) == [folder.parent.name, "mine"]
    assert load_all([f"mine={folder}"], "cpu")["mine"].name == "mine"


class Process:
    """`regard serve` as people start it."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "regard", "serve", "--port", "0", "--device", "cpu", *arguments]
        self.process = subprocess.Popen(heard(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline().strip()
        if not self.line:
            raise AssertionError(self.process.communicate()[1])
        self.port = int(self.line.rpartition(":")[2])

    def end(self, sign: int) -> tuple[int, str]:
        self.process.send_signal(sign)
        _, messages = self.process.communicate(timeout=60)
        return self.process.returncode, messages


def test_sigterm_under_load_loses_no_request_that_was_taken(bundle: Callable[[str], Path]) -> None:
    running = Process("--model", f"digits={bundle('translator')}")
    assert running.line == f"regard: digits at http://127.0.0.1:{running.port}"
    done: list[int] = []
    refused: list[str] = []
    lost: list[str] = []
    stopping, begun = threading.Event(), threading.Barrier(25)

    def client(number: int) -> None:
        with closing(http.client.HTTPConnection("127.0.0.1", running.port, timeout=60)) as connection:
            begun.wait()
            ask(connection, number)

    def ask(connection: http.client.HTTPConnection, number: int) -> None:
        for _ in range(2000):
            body = json.dumps({"texts": " ".join("123456"[: 2 + number % 5]), "to": "back"})
            try:
                connection.request("POST", "/api/translate", body, {"content-type": "application/json"})
                response = connection.getresponse()
                response.read()
            except (http.client.RemoteDisconnected, ConnectionError) as error:
                # Closed before a word of it was answered: it came too late. Before the signal nothing may be closed.
                (refused if stopping.is_set() else lost).append(repr(error))
                return
            except http.client.HTTPException as error:  # half of an answer
                lost.append(repr(error))
                return
            if response.status == 503:
                refused.append("503")
                return
            done.append(response.status)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    begun.wait()
    until(lambda: len(done) > 40, 60)
    answered = metric(running.port)
    stopping.set()
    code, messages = running.end(signal.SIGTERM)
    for thread in threads:
        thread.join(60)
    assert answered > 0
    assert lost == []
    assert set(done) == {200}
    assert len(refused) == 24  # every client went on until it was turned away
    assert (code, messages) == (0, "")


def metric(port: int) -> float:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    return next(float(line.split()[-1]) for line in lines if line.startswith("regard_texts_total{"))


def test_a_request_that_waits_when_it_stops_is_answered(start: Start) -> None:
    """Taken, not yet begun, and the server is told to stop."""
    live = start()
    held = Held(live)
    first, second = send(live, "/api/translate", ASKED), None
    assert held.begun.wait(20)
    second = send(live, "/api/translate", ASKED)
    until(lambda: waiting(live) == 1)
    live.server.handle_exit(signal.SIGTERM, None)
    assert live.server.should_exit
    time.sleep(0.3)
    with pytest.raises(ConnectionError):
        live.get("/health")
    held.let_go()
    for connection in (first, second):
        assert b" 200 " in connection.recv(4096)
        connection.close()


def test_ctrl_c_ends_it_in_peace_and_a_taken_port_is_said(bundle: Callable[[str], Path]) -> None:
    running = Process("--model", str(bundle("critic")))
    told = run("serve", "--port", str(running.port))
    assert told.code == 1
    taken = f"can't serve at 127.0.0.1, port {running.port}: Address already in use; choose another with --host or --port"
    assert told.err == f"regard: {taken}\n"
    assert running.end(signal.SIGINT) == (0, "")

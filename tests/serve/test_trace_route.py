"""/api/trace gives what `model.trace` gives; /api/runs what a training writes, and nothing else on the disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from regard.door import Model
from regard.door.trace_making import Decoded, decoded
from regard.serve import trace_route, trace_work
from regard.serve.runs import MOST_BYTES, read
from regard.serve.settings import Limits, Settings
from regard.view.trace_json import as_json, size
from tests.serve.live import Live, Start


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("translator", {"text": "3 1 4", "to": "back", "options": {"beam_size": 3, "n_best": 2}}),
        ("translator", {"text": "3 1 4", "to": "back", "parts": ["weights", "qkv"], "heads": [1, 2], "positions": {"target": [0]}}),
        ("translator", {"text": "3 1 4", "to": "back", "options": {"temperature": 1.0, "seed": 4}, "prefix": "4"}),
        ("writer", {"text": "the cat", "options": {"max_length": 4, "beam_size": 1}}),
        ("critic", {"text": "a lovely film", "candidates": 3}),
        ("guesser", {"text": "the [MASK] sat", "verb": "fill"}),
    ],
)
def test_the_trace_of_the_library(live: Live, models: dict[str, Model], name: str, body: dict[str, object]) -> None:
    reply = live.post("/api/trace", {"model": name, **body})
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    own = {key: value for key, value in body.items() if key not in ("text", "to", "options")}
    wanted = as_json(models[name].trace(body["text"], body.get("to"), **own, **body.get("options", {})))  # type: ignore[arg-type]
    assert reply.json == json.loads(json.dumps(wanted))


def test_from_an_address(live: Live) -> None:
    reply = live.ask("GET", f"/api/trace?text={quote('3 1 4')}&to=back&parts=weights,search&layers=0&heads=1,3")
    assert reply.status == 200
    assert reply.json["attention"]["cross"]["heads"] == [1, 3]
    assert reply.json["output"] is None
    assert reply.json["search"] is not None
    assert live.ask("GET", "/api/trace?text=3&to=back&parts=wieghts").json["error"].endswith("did you mean 'weights'?")


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"text": "1", "model": "../../etc"}, 404, "there is no model"),
        ({"text": "1", "to": "back", "parts": ["wieghts"]}, 400, "parts"),
        ({"text": "1", "to": "back", "layers": [7]}, 400, "there is no 7"),
        ({"text": "1", "to": "back", "layers": [-1]}, 400, "layers"),
        ({"text": "1", "to": "back", "candidates": 10**9}, 400, "candidates"),
        ({"text": "1", "to": "back", "options": {"beam_size": 10**6}}, 400, "beam_size"),
        ({"text": "1", "to": "back", "options": {"texts": "more"}}, 400, "texts"),
        ({"text": "1", "to": "back", "verb": "generate", "model": "translator"}, 400, "not generate"),
        ({"text": "1" * 20_000, "to": "back"}, 413, "characters"),
        ({"text": "1 " * 200, "to": "back"}, 400, "trace a shorter one"),
        ({"text": " ", "to": "back"}, 400, "nothing in the text"),
        ({"text": "\ud800", "to": "back"}, 400, "half of a character"),
        ({"to": "back"}, 400, "text"),
        ({"text": "1", "unknown": 1}, 400, "unknown"),
    ],
)
def test_what_is_refused(live: Live, body: dict[str, object], status: int, message: str) -> None:
    reply = live.post("/api/trace", body)
    assert (reply.status, message in reply.json["error"]) == (status, True), reply.json


def test_what_is_too_large_is_refused_before_it_is_made(live: Live, models: dict[str, Model], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_route, "MOST_HELD", 10_000)
    reply = live.post("/api/trace", {"text": "1 2 3 4 5", "to": "back"})
    assert (reply.status, "ask for fewer layers" in reply.json["error"]) == (413, True)
    monkeypatch.setattr(trace_route, "MOST_HELD", 1 << 30)
    monkeypatch.setattr(trace_work, "MOST_SENT", size(models["translator"].trace("1 2 3 4 5", "back")) - 1)
    reply = live.post("/api/trace", {"text": "1 2 3 4 5", "to": "back"})
    assert reply.status == 200
    assert [each["part"] for each in reply.json["left_out"]] == ["inner"]
    assert reply.json["left_out"][0]["why"].endswith("; ask for fewer layers")


# What was written is kept for another look


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that were decoded for a trace, one after the other."""
    texts: list[str] = []

    def counted(model: Model, text: str, *others: Any) -> Decoded:
        texts.append(text)
        return decoded(model, text, *others)

    monkeypatch.setattr(trace_work, "decoded", counted)
    return texts


def test_another_look_writes_nothing_again(start: Start, models: dict[str, Model], written: list[str]) -> None:
    live, text = start(), "2 7 1 8"
    looks = [{"parts": ["search", "output", "weights"]}, {"parts": ["qkv", "vectors"], "layers": [0]}, {"parts": ["scores"], "heads": [1]}]
    for own in looks:
        reply = live.post("/api/trace", {"text": text, "to": "back", **own})
        assert reply.json == json.loads(json.dumps(as_json(models["translator"].trace(text, "back", **own))))  # type: ignore[arg-type]
    assert written == [text]
    for other in ({"to": "same"}, {"to": "back", "prefix": "8"}, {"to": "back", "options": {"beam_size": 2}}):
        reply = live.post("/api/trace", {"text": text, **other})
        own = {key: value for key, value in other.items() if key != "options"} | dict(other.get("options", {}))  # type: ignore[call-overload]
        assert reply.json["answer"]["text"] == models["translator"].translate(text, **own).text
    assert written == [text] * 4


def test_no_more_is_kept_than_there_is_room_for(models: dict[str, Model], written: list[str]) -> None:
    model = models["translator"]

    def look(remembered: trace_work.Remembered, *texts: str) -> None:
        for text in texts:
            remembered.decoded(model, text, "back", "translate", None, {})

    few = trace_work.Remembered(most_texts=2)
    look(few, "1", "2", "1", "3", "1", "2")  # when 3 came, 2 had not been looked at for longest
    assert written == ["1", "2", "3", "2"]
    assert len(few) == 2
    written.clear()
    small = trace_work.Remembered(most_nodes=400)
    look(small, *(f"{first} {second} 5" for first in range(5) for second in range(5)))
    assert 0 < len(small) < 25
    assert small.nodes <= 400
    none = trace_work.Remembered(most_nodes=10)
    look(none, "1 2 3", "1 2 3")
    assert len(none) == 0
    assert written[-2:] == ["1 2 3", "1 2 3"]


# Runs


def line(step: int, **figures: object) -> str:
    return json.dumps({"step": step, "time": 1.5, "kind": "train", **figures}) + "\n"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    for name in ("reverse", "with space & <b>"):
        (folder / name).mkdir(parents=True)
        (folder / name / "metrics.jsonl").write_text(line(50, loss=3.0) + line(100, loss=None))
    (folder / "reverse" / "recipe.toml").write_text('task = "translate"\n[training]\nsteps = 400\n')
    (folder / "no run").mkdir()
    (tmp_path / "metrics.jsonl").write_text(line(1, secret=True))
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "metrics.jsonl").write_text(line(1, secret=True))
    return folder


def test_runs_are_listed_and_read_as_they_grow(start: Start, runs: Path) -> None:
    live = start(Settings(runs=runs))
    listed = {run["name"]: run for run in live.ask("GET", "/api/runs").json["runs"]}
    assert set(listed) == {"reverse", "with space & <b>"}
    assert {key: listed["reverse"][key] for key in ("step", "steps", "task")} == {"step": 100, "steps": 400, "task": "translate"}
    assert listed["with space & <b>"]["steps"] is None
    first = live.ask("GET", "/api/runs/reverse").json
    assert [record["step"] for record in first["records"]] == [50, 100]
    assert first["records"][1]["loss"] is None
    nothing = live.ask("GET", f"/api/runs/reverse?since={first['since']}").json
    assert (nothing["records"], nothing["since"], nothing["reset"]) == ([], first["since"], False)
    with (runs / "reverse" / "metrics.jsonl").open("a") as file:
        file.write(line(150, loss=2.0) + '{"step": 200, "lo')  # half a line, as a reader may find it
    grown = live.ask("GET", f"/api/runs/reverse?since={first['since']}").json
    assert [record["step"] for record in grown["records"]] == [150]
    (runs / "reverse" / "metrics.jsonl").write_text(line(50, loss=3.0))  # taken back to an earlier step
    again = live.ask("GET", f"/api/runs/reverse?since={grown['since']}").json
    assert (again["reset"], [record["step"] for record in again["records"]]) == (True, [50])
    assert live.ask("GET", f"/api/runs/{quote('with space & <b>')}").status == 200


@pytest.mark.parametrize("name", ["..%2Fsecret", "../secret", "%2e%2e", "reverse%2F..%2F..%2Fsecret", "no%20run", "reverse%00", "%2Fetc"])
def test_a_name_is_never_a_path(start: Start, runs: Path, name: str) -> None:
    reply = start(Settings(runs=runs)).ask("GET", f"/api/runs/{name}")
    assert reply.status == 404
    assert b'secret": true' not in reply.body


def test_a_run_itself_and_no_runs(start: Start, live: Live, runs: Path) -> None:
    assert [run["name"] for run in start(Settings(runs=runs / "reverse")).ask("GET", "/api/runs").json["runs"]] == ["reverse"]
    assert start(Settings(runs=runs / "none")).ask("GET", "/api/runs").json == {"runs": []}
    assert live.ask("GET", "/api/runs").json == {"runs": []}
    refused = live.ask("GET", "/api/runs/reverse")
    assert (refused.status, "--runs DIR" in refused.json["error"]) == (404, True)
    assert live.ask("GET", "/api/runs/reverse?since=-1").status == 400


def test_figures_need_the_key_too(start: Start, runs: Path) -> None:
    live = start(Settings(Limits(), api_key="open sesame", runs=runs))
    for path in ("/api/runs", "/api/runs/reverse", "/api/trace?text=1&to=back"):
        assert live.ask("GET", path).status == 401
        assert live.ask("GET", path, headers={"authorization": "Bearer open sesame"}).status == 200


def test_long_files_come_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(line(step, loss=1.0, note="x" * 500) for step in range(4000)))
    steps, since, more, asked = [], 0, True, 0
    while more:
        found = read("run", path, since)
        steps += [record["step"] for record in found.records]
        since, more, asked = found.since, found.more, asked + 1
    assert steps == list(range(4000))
    assert asked == -(-path.stat().st_size // MOST_BYTES)
    path.write_bytes(b"[" * 100_000 + b"\n\xff\xfe\n[1]\n" + line(1).encode())  # what is no record is passed over
    assert [record["step"] for record in read("run", path, 0).records] == [1]

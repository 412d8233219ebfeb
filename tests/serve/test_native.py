"""/api gives what the library gives, whoever else is asking."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from regard.bundle import load_bundle
from regard.door import Model
from tests.serve.live import Held, Live, Reply, Start, together, until

DIGITS = ["1 2 3", "4 5 6 7", "8 9", "0 1 2 3 4", "7 7 1"]


def same(given: dict[str, object], wanted: dict[str, object]) -> None:
    """The same words, and the same numbers up to rounding, which goes by the shape of a batch."""
    assert given.keys() == wanted.keys()
    for name, value in wanted.items():
        if isinstance(value, float | list) and name != "alternatives":
            assert given[name] == pytest.approx(value, abs=1e-4), name
        elif name == "alternatives":
            for one, other in zip(given[name], value, strict=True):  # type: ignore[call-overload]
                same(one, other)
        else:
            assert given[name] == value, name


@pytest.mark.parametrize("options", [{}, {"beam_size": 1}, {"n_best": 3}, {"temperature": 1.0, "seed": 3, "samples": 2}])
def test_translations_are_those_of_the_library(live: Live, models: dict[str, Model], options: dict[str, object]) -> None:
    reply = live.post("/api/translate", {"texts": DIGITS, "to": "back", **options})
    assert reply.status == 200
    wanted = models["translator"].translate(DIGITS, "back", **options)  # type: ignore[call-overload]
    for given, other in zip(reply.json["answers"], wanted, strict=True):
        same(given, other.as_json())
    assert reply.json["model"] == "translator"
    assert reply.json["warnings"] == []


def test_generated_texts_are_those_of_the_library(live: Live, models: dict[str, Model]) -> None:
    prompts = ["the cat", "a bird", "rain", "the cat"]
    reply = live.post("/api/generate", {"texts": prompts, "max_length": 8, "seed": 5})
    for given, other in zip(reply.json["answers"], models["writer"].generate(prompts, max_length=8, seed=5), strict=True):
        same(given, other.as_json())


def test_labels_words_vectors_and_scores_are_those_of_the_library(live: Live, models: dict[str, Model]) -> None:
    films = ["a lovely story", "this film was awful"]
    for given, labelled in zip(live.post("/api/classify", {"texts": films}).json["answers"], models["critic"].classify(films), strict=True):
        same(given, labelled.as_json() | {"probabilities": pytest.approx(labelled.probabilities)})
    gaps = ["the cat sat on the [MASK].", "a [MASK] flew over the [MASK]."]
    filled = live.post("/api/fill", {"texts": gaps, "choices": 3}).json["answers"]
    wanted = [answer.as_json() for answer in models["guesser"].fill(gaps, choices=3)]
    assert [answer["text"] for answer in filled] == [answer["text"] for answer in wanted]
    assert filled[1]["choices"][0][0]["probability"] == pytest.approx(wanted[1]["choices"][0][0]["probability"], abs=1e-5)
    vectors = live.post("/api/embed", {"texts": films, "model": "critic", "normalise": True}).json["answers"]
    for vector, row in zip(vectors, models["critic"].embed(films, normalise=True).tolist(), strict=True):
        assert vector == pytest.approx(row, abs=1e-5)
    scored = live.post("/api/score", {"texts": "1 2 3", "targets": "3 2 1", "to": "back"}).json["answers"][0]
    same(scored, models["translator"].score("1 2 3", "3 2 1", to="back").as_json())
    scored = live.post("/api/score", {"texts": ["the cat sat"], "model": "writer"}).json["answers"][0]
    same(scored, models["writer"].score("the cat sat").as_json())


def test_alignment_has_a_row_for_each_word_and_sums_to_one(live: Live) -> None:
    [answer] = live.post("/api/translate", {"texts": "1 2 3", "to": "back", "alignment": True}).json["answers"]
    assert len(answer["alignment"]) == len(answer["log_probabilities"])
    assert all(sum(row) == pytest.approx(1, abs=1e-4) and len(row) == len(answer["source"]) for row in answer["alignment"])
    assert "attention" not in answer


def test_many_at_once_get_what_each_would_get_alone(start: Start, models: dict[str, Model]) -> None:
    """Different languages, options and seeds, from different clients, in shared batches."""
    live, chance = start(), random.Random(1)
    held = Held(live)
    asked = []
    for _ in range(40):
        text = " ".join(str(chance.randrange(10)) for _ in range(chance.randrange(2, 7)))
        options = chance.choice([{}, {}, {"temperature": 1.0}, {"temperature": 1.0, "seed": 9}])
        asked.append({"texts": text, "to": chance.choice(["back", "same"]), **options})
    asked += [{"texts": prompt, "max_length": 6} for prompt in ("the cat", "rain", "the cat")]
    paths = ["/api/translate"] * 40 + ["/api/generate"] * 3
    waiting = live.desk.metrics.registry
    calls = [partial(live.post, path, record) for path, record in zip(paths, asked, strict=True)]

    def let_go() -> None:
        until(lambda: (waiting.get_sample_value("regard_waiting_texts") or 0) + sum(held.batches) == len(asked))
        held.let_go()

    replies: list[Reply] = together([*calls, let_go])[:-1]
    assert max(held.batches) > 8  # they were worked on together
    assert len(held.batches) < 15
    for path, record, reply in zip(paths, asked, replies, strict=True):
        assert reply.status == 200, reply.body
        rest = {name: value for name, value in record.items() if name not in ("texts", "to")}
        if path == "/api/translate":
            wanted = models["translator"].translate(record["texts"], record["to"], **rest)  # type: ignore[call-overload]
        else:
            wanted = models["writer"].generate(record["texts"], **rest)
        assert reply.json["answers"][0]["text"] == wanted.text


def test_what_is_wrong_with_one_request_is_no_matter_of_others(start: Start, models: dict[str, Model]) -> None:
    live = start()
    held = Held(live)
    good = ["the cat sat on the [MASK].", "a [MASK] flew over the house."]
    asked = [good[0], ["rain falls on the [MASK] town.", "there is no gap in this."], good[1]]
    calls = [partial(live.post, "/api/fill", {"texts": texts}) for texts in asked]
    first = partial(live.post, "/api/classify", {"texts": "lovely"})  # keeps the worker busy while the others gather

    def let_go() -> None:
        until(lambda: live.desk.metrics.registry.get_sample_value("regard_waiting_texts") == 4)
        held.let_go()

    def later(call: partial[Reply]) -> Reply:
        assert held.begun.wait(20)
        return call()

    _, one, bad, other, _ = together([first, *(partial(later, call) for call in calls), let_go])
    assert held.batches == [1, 4]
    assert (one.status, bad.status, other.status) == (200, 400, 200)
    assert bad.json["error"].startswith("text 2: there is no [MASK] to fill")
    for text, reply in zip(good, (one, other), strict=True):
        assert reply.json["answers"][0]["text"] == models["guesser"].fill(text).text


def test_rules_that_leave_nothing_are_an_error_alone_and_in_company(start: Start) -> None:
    live = start()
    banned = {"texts": "1 2", "to": "back", "ban": [str(digit) for digit in range(10)], "min_length": 40, "max_length": 2}
    alone = live.post("/api/translate", banned)
    held = Held(live)
    first = partial(live.post, "/api/classify", {"texts": "lovely"})

    def later() -> Reply:
        assert held.begun.wait(20)
        return live.post("/api/translate", banned)

    def let_go() -> None:
        until(lambda: live.desk.metrics.registry.get_sample_value("regard_waiting_texts") == 2)
        held.let_go()

    _, *both, _ = together([first, later, later, let_go])
    assert [(reply.status, reply.body) for reply in both] == [(alone.status, alone.body)] * 2


def test_warnings_go_to_whom_they_concern(live: Live, models: dict[str, Model]) -> None:
    reply = live.post("/api/translate", {"texts": ["1 2", "1 2 3 4 5 6 " * 12], "to": "same"})
    assert reply.status == 200
    [warning] = reply.json["warnings"]
    assert warning.startswith("text 2: ")
    assert "parts" in warning
    assert live.post("/api/translate", {"texts": "1 2", "to": "same"}).json["warnings"] == []


@pytest.mark.parametrize(
    ("path", "record", "status", "message"),
    [
        ("/api/translate", {"texts": "1", "to": "bakc"}, 400, "did you mean 'back'?"),
        ("/api/translate", {"texts": "1"}, 400, "several languages"),
        ("/api/translate", {"texts": "1", "to": "back", "beam": 3}, 400, "beam: Extra inputs are not permitted"),
        ("/api/translate", {"texts": "1", "to": "back", "beam_size": 2, "n_best": 3}, 400, "n_best"),
        ("/api/translate", {"texts": "1", "to": "back", "beam_size": 2, "temperature": 1.0}, 400, "choose one of the two"),
        ("/api/translate", {"texts": "1", "to": "back", "max_length": "long"}, 400, "is no length"),
        ("/api/translate", {"texts": "1", "to": "back", "model": "writer"}, 400, "it can generate"),
        ("/api/translate", {"texts": "1", "to": "back", "model": "../translator"}, 404, "there is no model"),
        ("/api/fill", {"texts": "no gap"}, 400, "there is no [MASK]"),
        ("/api/score", {"texts": ["1", "2"], "targets": ["1"], "to": "back"}, 400, "2 texts for 1 targets"),
        ("/api/score", {"texts": "1", "to": "back"}, 400, "give both"),
        ("/api/classify", {}, 400, "texts: Field required"),
    ],
)
def test_what_is_wrong_is_said(live: Live, path: str, record: dict[str, object], status: int, message: str) -> None:
    reply = live.post(path, record)
    assert reply.status == status
    assert message in reply.json["error"]


def test_a_verb_that_no_model_can_do(start: Start, models: dict[str, Model]) -> None:
    reply = start(of={"critic": models["critic"]}).post("/api/translate", {"texts": "1"})
    assert reply.status == 400
    assert reply.json["error"] == "no model here can translate; those that are here: critic"


def test_models_health_and_the_page(live: Live, models: dict[str, Model], bundle: Callable[[str], Path]) -> None:
    cards = {card["name"]: card for card in live.get("/api/models").json["models"]}
    assert list(cards) == list(models)
    assert cards["translator"]["languages"] == ["back", "same"]
    assert cards["critic"]["labels"] == list(models["critic"].config.labels)  # type: ignore[union-attr]
    assert cards["writer"]["parameters"] == sum(each.numel() for each in load_bundle(bundle("writer")).model.parameters())
    assert live.get("/health").json == {"status": "ok", "models": list(models), "waiting": 0}
    page = live.get("/")
    assert page.status == 200
    assert page.headers["content-type"].startswith("text/html")
    assert live.get("/openapi.json").json["info"]["title"] == "regard"


def test_metrics_are_what_prometheus_reads(start: Start) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    live = start()
    live.post("/api/translate", {"texts": ["1 2", "3 4"], "to": "back"})
    live.get("/nowhere/at/all")

    def figures() -> dict[tuple[object, ...], float]:
        return {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(live.get("/metrics").body.decode())
            for sample in family.samples
        }

    batches = ("regard_batch_texts_count", ("model", "translator"), ("verb", "translate"))
    until(lambda: batches in figures())  # counted when the batch has ended, after its answers
    found = figures()
    assert found["regard_requests_total", ("route", "/api/translate"), ("status", "200")] == 1
    assert found["regard_requests_total", ("route", "other"), ("status", "404")] == 1
    assert found["regard_texts_total", ("model", "translator"), ("verb", "translate")] == 2
    assert found[batches] in (1, 2)  # two, where a second passed between the answers
    assert found["regard_waiting_texts",] == 0
    assert found["process_resident_memory_bytes",] > 1e6


def test_translations_in_parts(live: Live) -> None:
    """Line by line as /translate does, with the answer to each part; a long line in the parts that it is translated in."""
    text = "  1 2 3\n\n4 5\r\n" + "1 2 3 4 5 6. " * 6
    [answer] = live.post("/api/translate", {"texts": text, "to": "same", "parts": True}).json["answers"]
    plain = live.post("/translate", {"q": text, "source": "en", "target": "same"})
    assert answer["text"] == plain.json["translatedText"]
    given = [part["given"] for part in answer["parts"]]
    assert given[:2] == ["1 2 3", "4 5"]
    assert len(given) > 3
    assert answer["around"][:3] == ["  ", "\n\n", "\r\n"]
    both = zip(answer["parts"], answer["around"][1:], strict=True)
    assert answer["around"][0] + "".join(part["text"] + after for part, after in both) == answer["text"]
    assert all(part["tokens"] and part["ended"] in (True, False) for part in answer["parts"])
    assert live.post("/api/translate", {"texts": ["", " \n"], "to": "same", "parts": True}).json["answers"][1] == {
        "text": " \n", "parts": [], "around": [" \n"],
    }  # fmt: skip
    asked = {"texts": ["1 2", "1 2 3. 4 5 6. 1 2."], "to": "same", "split": "sentences", "temperature": 1.0, "seed": 4}
    drawn, whole = (live.post("/api/translate", asked | {"parts": parts}).json["answers"] for parts in (True, False))
    assert [answer["text"] for answer in drawn] == [answer["text"] for answer in whole]
    too_long = {"texts": ["1 2", "1 2 3 4 5 6" + " 1 2 3 4 5 6" * 11], "to": "same"}
    in_parts, together = (live.post("/api/translate", too_long | {"parts": parts}).json["warnings"] for parts in (True, False))
    assert in_parts == together != []
    refused = live.post("/api/translate", {"texts": "1", "to": "same", "parts": True, "prefix": "2"})
    assert refused.status == 400
    assert "leave one of the two out" in refused.json["error"]

"""Step by step: what could have been written, and why it was not."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.serve.live import Live
from tests.serve.page.visit import LOVE, Visit, document, number, texts


def test_candidates_and_why_others_were_dropped(visit: Visit, site: Live) -> None:
    page = visit.open("steps", text=LOVE, to="it")
    trace = document(site, model="translator", text=LOVE, to="it", options={"beam_size": 4, "n_best": 4})
    page.get_by_role("button", name="The next position").click()
    assert page.get_by_text("position 2 of 5", exact=True).is_visible()
    names = texts(page.locator(".bars .name"))
    assert names[:-1] == [token.strip() for token in trace["output"]["tokens"][1]]
    assert page.locator(".bars .chosen").inner_text() == trace["output"]["chosen"][1]["token"].strip()
    here = [node for node in trace["search"]["nodes"] if node["position"] == 2]
    rows = page.locator(".dropped tbody tr")
    assert rows.count() == len(here)
    assert [number(text) for text in texts(rows.locator("td:nth-child(3)"))] == pytest.approx([node["total"] for node in here], abs=6e-4)
    beaten = next(index for index, node in enumerate(here) if node["reason"] == "beaten")
    assert "4 continuations were more probable" in rows.nth(beaten).inner_text()
    drawn = page.locator(".tree g[role=button]")
    assert drawn.count() == sum(0 < node["position"] <= 2 for node in trace["search"]["nodes"])
    rows.nth(beaten).get_by_role("button").click()
    assert "beaten" in page.locator(".view-steps .made").first.inner_text()
    assert page.locator(".tree .picked").count() == 1
    page.get_by_role("button", name="Play").click()
    page.get_by_text("position 3 of 5", exact=True).wait_for()
    page.get_by_role("button", name="Stop").click()


@pytest.mark.parametrize("another", [False, True])
def test_only_what_the_numbers_bear_out_is_said_of_a_greedy_search(visit: Visit, another: bool) -> None:
    """Where the pass that is shown would have chosen another word than the one that wrote, it says so, and how far the two are apart."""

    def changed(route: Any) -> None:
        found = route.fetch().json()
        output, [first, *_] = found["output"], found["output"]["chosen"]
        found["model"] |= {"written_in": "int8", "traced_in": "float32"} if another else {"written_in": "float32", "traced_in": "float32"}
        for place, chosen in enumerate(output["chosen"]):
            found["answer"]["log_probabilities"][place] = math.log(chosen["probability"])
        if another:
            found["answer"]["log_probabilities"][0] = math.log(first["probability"] - 0.03)
            for column in ("tokens", "ids", "logits", "probabilities"):
                output[column][1].insert(0, output[column][1].pop(1))
            output["chosen"][1]["rank"] = 1
        route.fulfill(json=found)

    visit.page.route("**/api/trace", changed)
    page = visit.open("steps", text=LOVE, to="it", beam=1, target=1)
    said, aside = page.locator(".intro p").first.inner_text(), page.locator(".aside").first.inner_text()
    if another:
        assert "by the numbers below the most probable at 4 of 5 positions" in said
        assert "written in int8" in aside
        assert "second pass over it, in float32" in aside
        assert "differ by up to 0.030" in aside
        assert "is not the most probable here" in page.locator(".card .aside").inner_text()
    else:
        assert said.endswith("the most probable.")
        assert aside == "The answer was written in float32, and so is what is shown here."
        assert page.locator(".card .aside").count() == 0


def test_where_no_precision_is_known_nothing_is_said(visit: Visit) -> None:
    def changed(route: Any) -> None:
        found = route.fetch().json()
        found["model"] |= {"written_in": None, "traced_in": None}
        if found.get("output"):
            found["answer"]["log_probabilities"] = [math.log(chosen["probability"]) for chosen in found["output"]["chosen"]]
        route.fulfill(json=found)

    visit.page.route("**/api/trace", changed)
    for view, wanted in (("attention", ".weights td"), ("steps", ".tree"), ("inside", "#stage-cross-scores")):
        page = visit.open(view, text=LOVE, to="it")
        page.locator(wanted).first.wait_for()
        assert page.locator(".aside").count() == 0
        assert page.evaluate("[...document.getElementById('view').childNodes].map((own) => own.nodeType)").count(3) == 0


def test_a_trace_says_its_precision(site: Live) -> None:
    model = document(site, model="translator", text=LOVE, to="it", parts=["weights"])["model"]
    assert {model["written_in"], model["traced_in"]} <= {"int8", "float32"}
    model = document(site, model="critic", text="this film was lovely", parts=["weights"])["model"]
    assert model["written_in"] == model["traced_in"] == "float32"

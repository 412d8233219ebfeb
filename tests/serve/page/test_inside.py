"""Inside: one word through a layer, number by number."""

from __future__ import annotations

import numpy as np

from regard.view.trace_json import decoded
from tests.serve.live import Live
from tests.serve.page.visit import LOVE, Visit, document, texts, unfolded


def test_one_word_through_a_layer(visit: Visit, site: Live) -> None:
    page = visit.open("inside", text=LOVE, to="it", kind="encoder", source=2, layer=1, head=4)
    trace = document(site, model="translator", text=LOVE, to="it")
    stages = ["Embedding", "+ position", "Norm", "Q, K, V of head 4", "Scores", "Mask", "Softmax", "Weighted sum", "Heads joined"]
    stages += ["Projection", "Add", "Norm", "Feed-forward", "Add", "To layer 2"]
    assert texts(page.locator(".stage h3")) == stages
    vectors = trace["vectors"]["encoder"]
    for stage, wanted in (
        ("embedding", decoded(vectors["embeddings"])[2]),
        ("self-out", decoded(vectors["layers"][0]["attention"]["output"])[2]),
        ("next", decoded(vectors["layers"][1]["input"])[2]),
    ):
        card = page.locator(f"#stage-{stage}")
        shown = unfolded(card)
        np.testing.assert_allclose(shown, wanted.numpy(), atol=0.02, rtol=2e-3)  # halves, summed by the page
    weights, values = (decoded(trace["attention"]["encoder"][name]) for name in ("weights", "v"))
    card = page.locator("#stage-self-sum")
    shown = unfolded(card)
    np.testing.assert_allclose(shown, (weights[0, 3, 2] @ values[0, 3]).numpy(), atol=2e-4)
    page.get_by_role("button", name="On to layer 2").click()
    assert "layer=2" in page.url
    assert texts(page.locator(".stage h3"))[0] == "Input"


def test_the_decoder_has_cross_attention_and_ends_in_words(visit: Visit) -> None:
    page = visit.open("inside", text=LOVE, to="it", target=1, layer=3)
    assert texts(page.locator(".path > h2")) == ["Coming in", "Masked self-attention", "Cross-attention", "Feed-forward", "Going on"]
    assert page.locator("#stage-logits .chosen").inner_text() == "amo"
    assert page.locator("#stage-self-mask td.hidden").count() == 3  # of five positions, the second sees two

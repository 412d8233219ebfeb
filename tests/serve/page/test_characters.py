"""Characters that no token has as a whole: the tokens are bytes, and the page shows what these make."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from regard.door import load
from regard.shipped import shipped
from tests.serve.live import Live
from tests.serve.page.visit import Visit, texts

CAT = "\N{CAT}"
EMOJI = f"I love {CAT} and ខ."
MIXED = "Åre • © Ñandú ॐ"  # tokens such as " \\xc3" and " \\xe2\\x80", with a space before the bytes
JOINED = f"I love {CAT}\u200d\u2b1b and \U0001f1ee\U0001f1f9!"
PARTS = {  # and in how many tokens each is
    EMOJI: {CAT: 4},
    MIXED: {"Å": 2, "•": 2, "©": 2, "Ñ": 2, "ॐ": 2},
    JOINED: {CAT: 4, "U+200D": 2, "\u2b1b": 3, "\U0001f1ee": 4, "\U0001f1f9": 4},
}


def bytes_in(text: str) -> list[str]:
    return re.findall(r"\S*\\x\S*", text)


@pytest.mark.parametrize("text", PARTS)
def test_of_what_was_read(visit: Visit, text: str) -> None:
    page = visit.open(text=text, to="it")
    assert text.removesuffix(".") in " ".join(page.locator(".input").inner_text().split())
    page.locator(".input [role=button]", has_text=next(iter(PARTS[text]))).hover()
    assert not re.search(r"\\x|[¹²³⁴]", page.locator(".told").inner_text().split(" was looked ")[0])
    page = visit.open("attention", text=text, to="it", kind="encoder")
    names = texts(page.locator("#sentence .strip-row").first.get_by_role("button"))
    for character, parts in PARTS[text].items():
        assert [name for name in names if character in name] == [character + number for number in "¹²³⁴"[:parts]]
    assert texts(page.locator(".weights thead th span"))[1:-1] == names
    assert not bytes_in(page.locator(".weights").inner_text())
    at = names.index(f"{next(iter(PARTS[text]))}²")
    page = visit.open("inside", text=text, to="it", kind="encoder", source=at)
    assert f"“{names[at]}” is number" in page.locator("#stage-embedding").inner_text()
    assert texts(page.locator("#stage-self-softmax thead th"))[1:] == names
    assert not bytes_in(page.locator("#view").inner_text())


def test_of_what_was_written(visit: Visit) -> None:
    """The translator copies these; of other candidates parts may stay bytes."""
    page = visit.open(text=MIXED, to="it")
    assert page.locator(".output").inner_text() == MIXED
    assert texts(page.locator(".output .sure")) == MIXED.split()
    page.get_by_role("region", name="Every token").wait_for()
    names = texts(page.get_by_role("region", name="Every token").locator("tbody th"))
    assert names[:5] == ["Å¹", "Å²", "re", "•¹", "•²"]
    assert names[-3:] == ["ॐ¹", "ॐ²", "<end>"]
    page = visit.open("steps", text=MIXED, to="it", target=1)
    assert page.locator(".so-far").inner_text().endswith("Å¹ → writes Å²")
    assert page.locator(".bars .chosen").inner_text() == "Å²"
    assert [name.strip() for name in page.locator(".tree .best text:not(.figure)").all_text_contents()] == ["start", "Å¹", "Å²"]
    page.locator(".dropped tr.best button").click()
    assert "for Å²" in page.locator(".view-steps .made").first.inner_text()
    page = visit.open("inside", text=MIXED, to="it", target=1, layer=4)
    assert "Å²" in texts(page.locator("#stage-logits .chosen"))


def test_of_a_prompt(visiting: Callable[..., Visit]) -> None:
    if "everyday" not in shipped():
        pytest.skip("no language model comes with this installation")
    with Live({"everyday": load("everyday", device="cpu")}) as site:
        visit = visiting(site.address + "/")
        text = f"I like {CAT} and Åre"
        page = visit.open(text=text, length=4)
        page.locator(".facts", has_text="tokens").wait_for()
        assert page.locator(".prompt").inner_text().removeprefix("<start>").strip() == text
        assert not bytes_in(page.locator("#view").inner_text())
        page = visit.open("inside", text=text, length=4, target=5)
        assert f"“{CAT}²” is number" in page.locator("#stage-embedding").inner_text()

"""The models that come with regard: there, usable at once, and honest about themselves."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import regard
from regard.bundle import is_bundle
from regard.door import Model
from regard.door.judging import Evaluation
from regard.door.verbs import shipped_for
from regard.errors import BundleError, RegardError
from regard.shipped import about, find_bundle, shipped
from tests.cli.running import run

LANGUAGES = {"de": "German", "fr": "French", "pt": "Portuguese", "it": "Italian", "nl": "Dutch", "es": "Spanish", "hi": "Hindi"}
LOVE = {
    "de": "Ich liebe dich sehr.",
    "fr": "Je t'aime beaucoup.",
    "pt": "Eu te amo muito.",
    "it": "Ti amo molto.",
    "nl": "Ik hou heel erg van je.",
    "es": "Te quiero mucho.",
    "hi": "मैं तुमसे बहुत प्यार करता हूँ।",
}
CARD = (shipped()["translator"] / "README.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def _nothing_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REGARD_MODEL", raising=False)


@pytest.fixture(scope="module")
def translator() -> Model:
    return regard.load("translator", device="cpu")


def test_what_comes_with_regard() -> None:
    assert list(shipped()) == ["translator", "everyday"]
    for name, folder in shipped().items():
        assert is_bundle(folder)
        assert find_bundle(name) == folder
        assert max(path.stat().st_size for path in folder.iterdir()) < 20e6
        assert sum(path.stat().st_size for path in folder.iterdir()) < {"translator": 40e6, "everyday": 10e6}[name]


@pytest.mark.parametrize("to", LANGUAGES)
def test_it_translates(translator: Model, to: str) -> None:
    assert translator.languages == tuple(LANGUAGES)
    assert translator.translate("I love you very much.", to).text == LOVE[to]
    where = translator.translate("Where is the station?", to).text
    assert where.endswith("?")
    assert bool(re.search(r"[\u0900-\u097f]{3}", where)) == (to == "hi")  # Devanagari


def test_nothing_need_be_named(tmp_path: Path) -> None:
    asked = [sys.executable, "-m", "regard", "translate", "I love you very much.", "", "Where is the station?", "--to", "it"]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(asked, cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8", check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "Ti amo molto.\n\nDov'è la stazione?\n"


def test_it_writes(tmp_path: Path) -> None:
    """Without a model or a network: sentences that begin as they were told to, the same with the same seed."""
    asked = ["generate", "I would like to", "--samples", "4", "--format", "json", "--seed"]
    done = [run(*asked, seed) for seed in ("1", "1", "2")]
    assert [each.code for each in done] == [0, 0, 0]
    assert done[0].out == done[1].out != done[2].out
    found = json.loads(done[0].out)
    texts = [found["text"], *(other["text"] for other in found["alternatives"])]
    assert len(texts) == 4
    assert len(set(texts)) > 1
    for text in texts:
        assert text.startswith(" ")  # it goes on from the prompt
        assert text[-1] in '.!?"'
    assert shipped_for("generate") == "everyday"


def test_it_finds_english_likelier_than_nonsense() -> None:
    model = regard.load("everyday", device="cpu")
    said, shuffled = model.score(["Where is the nearest station?", "station Where nearest the is?"])
    assert said.log_probability > shuffled.log_probability + 5


def test_the_first_that_can_is_taken(translator: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {shipped_for(verb) for verb in translator.verbs} == {"translator"}
    asked: list[str] = []
    monkeypatch.setattr("regard.door.load", lambda name, **_: asked.append(str(name)) or translator)
    assert run("score", "I love you.", "Ti amo.", "--to", "it").code == 0
    monkeypatch.setattr(Model, "evaluate", lambda *_, **__: Evaluation("translator", "pairs.tsv", 1, {}))
    assert run("evaluate", "--data", "pairs.tsv", "--to", "it").code == 0
    assert asked == ["translator", "translator"]
    monkeypatch.setenv("REGARD_MODEL", "mine")
    assert run("evaluate", "--data", "pairs.tsv", "--to", "it").code == 0
    assert asked[-1] == "mine"


@pytest.mark.parametrize(("verb", "task"), [("classify", "classify"), ("fill", "mlm"), ("embed", "mlm or classify")])
def test_what_none_of_them_can(verb: str, task: str) -> None:
    done = run(verb, "a lovely film")
    wanted = f"no model that comes with regard can {verb}; give yours with --model, such as one trained with --task {task}"
    assert (done.code, done.out, done.err) == (1, "", f"regard: {wanted}\n")
    with pytest.raises(RegardError, match=re.escape(wanted)):
        shipped_for(verb)


def test_an_unknown_name() -> None:
    with pytest.raises(BundleError, match=r"there is no model 'transltor'; give the folder of a bundle.*; did you mean 'translator'\?"):
        regard.load("transltor")
    done = run("translate", "Hello.", "--model", "polyglot")
    assert done.code == 1
    assert "there is no model 'polyglot'; give the folder of a bundle" in done.err
    assert "known: everyday, translator" in done.err


def test_models_lists_them(translator: Model) -> None:
    told, other = json.loads(run("models", "--format", "json").out)
    assert (other["name"], other["parameters"]) == ("everyday", 8_805_440)
    assert "generate" in other["verbs"]
    assert told["name"] == "translator"
    assert told["about"] == about(shipped()["translator"])
    assert told["verbs"] == list(translator.verbs)
    assert told["languages"] == list(LANGUAGES)
    assert told["parameters"] == 34_997_248
    assert 35e6 < told["bytes"] < 40e6
    shown = run("models")
    assert (shown.code, shown.err) == (0, "")
    for part in ("translator", told["about"], "translate, score, evaluate", ", ".join(LANGUAGES), "34,997,248 parameters", "MB on disk"):
        assert part in shown.out


def test_the_other_card_says_what_it_is_too() -> None:
    card = (shipped()["everyday"] / "README.md").read_text(encoding="utf-8")
    results = (Path(__file__).parent.parent / "docs" / "results.md").read_text(encoding="utf-8")
    assert about(shipped()["everyday"]).startswith("Writes everyday English")
    assert "sentences of tatoeba.org, CC-BY 2.0 FR" in card
    [figures] = re.findall(r"as it lies here \| (\S+) \| (\S+) \|", card)
    assert f"perplexity {figures[0]} a token, {figures[1]} a word" in results


def test_info_knows_them() -> None:
    shown = json.loads(run("info", "translator", "--format", "json").out)
    assert (shown["name"], shown["parameters"]) == ("translator", 34_997_248)


def test_the_card_says_what_it_is() -> None:
    assert about(shipped()["translator"]).startswith("Translates everyday sentences from English into")
    for tag, language in LANGUAGES.items():
        assert language in about(shipped()["translator"])
        assert f"| {language} | `{tag}` |" in CARD
        assert re.search(rf"\| {language} \| [\d,]+ \| \d\d\.\d \| \d\d\.\d \|", CARD)
    for licence in ("CC-BY 2.0 FR", "CC-BY-SA 3.0", "CC0", "public domain", "free-software licences", "CC BY-SA 4.0"):
        assert licence in CARD
    assert "sentences from tatoeba.org, CC-BY 2.0 FR" in CARD


def test_the_page_of_results_has_the_same_figures() -> None:
    results = (Path(__file__).parent.parent / "docs" / "results.md").read_text(encoding="utf-8").replace("**", "")
    for language in LANGUAGES.values():
        [row] = re.findall(rf"\| {language} \| [\d,]+ \| \d\d\.\d \| \d\d\.\d \|", CARD)
        assert row in results


def test_a_bundle_without_a_card_is_told_by_its_kind(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((shipped()["translator"] / "config.json").read_bytes())
    assert about(tmp_path) == "A model of kind seq2seq."

"""A training ends with how good it is, what something simpler does on the same rows, and one thing to do next."""

from __future__ import annotations

import io
import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from regard.evaluation.baseline import Bigram, unigram
from regard.evaluation.metrics import perplexity
from regard.text.corpus import Row
from regard.training.checkpoint import Checkpoints
from regard.training.ending import Ending, ending, next_step
from regard.training.prepare import prepare
from regard.training.run import run_recipe
from regard.training.translator import Shipped
from regard.training.validate import Validation, quality_figure
from tests.training.test_run import _own_cache, recipe  # noqa: F401

GERMAN = {
    "Good morning.": "Guten Morgen.",
    "I love you very much.": "Ich liebe dich sehr.",
    "Where is the station?": "Wo ist der Bahnhof?",
    "My brother lives in Berlin.": "Mein Bruder wohnt in Berlin.",
    "She is reading a book.": "Sie liest ein Buch.",
    "We have no time.": "Wir haben keine Zeit.",
    "The cat sleeps on the bed.": "Die Katze schläft auf dem Bett.",
    "Do you speak English?": "Sprechen Sie Englisch?",
    "It is raining today.": "Heute regnet es.",
    "I would like a cup of coffee.": "Ich möchte eine Tasse Kaffee.",
}


def made(tmp_path: Path, rows: dict[str, str], **training: Any) -> Any:
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in rows.items()), encoding="utf-8")
    data = {"train": [str(path)], "dev": [str(path)], "keep_apart": False, "max_length": 64}
    return recipe(tmp_path, data=data, tokenizer={"kind": "bpe", "size": 300}, training={"steps": 300, **training})


def figures(bleu: float, exact: float = 0.0, loss: float = 1.0) -> dict[str, Any]:
    return {"loss": loss, "perplexity": 2.7, "accuracy": 0.5, "bleu": bleu, "chrf": 50.0, "exact": exact}


def ended(wanted: Any, measured: dict[str, Any], out: Path) -> Ending:
    return ending(wanted, prepare(wanted, None, lambda message: None), Validation(0.0, measured), out)


def written(out: Path, dev: list[tuple[int, float]]) -> None:
    """What a run has kept of its validations; a line that a kill cut short is no matter."""
    lines = [json.dumps({"step": step, "kind": "dev", "loss": loss}) for step, loss in dev]
    (out / "metrics.jsonl").write_text("\n".join([*lines, '{"step": 3, "ki']))


def test_a_pair_that_the_translator_knows(tmp_path: Path) -> None:
    found = ended(made(tmp_path, GERMAN), figures(6.3), tmp_path / "run")
    assert re.fullmatch(r"on 10 dev rows: BLEU 6.3, 0% exactly right; copying the source: BLEU \d.\d, 0%", found.lines[0])
    assert found.figures["translator"] == "de"
    assert found.figures["translator_bleu"] > 50
    assert found.lines[1].startswith("the translator that comes with regard knows these languages: BLEU ")
    begin = "next: begin with the translator instead of with nothing: regard train --task translate --from translator --to de "
    assert found.lines[2].startswith(begin)


def test_languages_that_it_does_not_know(tmp_path: Path) -> None:
    """One that nobody speaks; and where the source is copied, that it can copy too is nothing to tell."""
    chance = random.Random(0)
    words = ["nul", "ba", "keto", "dira", "fo", "lumi", "sarpe", "vex", "onti", "garu"]
    numbers = [[chance.randrange(10) for _ in range(5)] for _ in range(20)]
    made_up = {"".join(map(str, digits)): " ".join(words[digit] for digit in digits[::-1]) for digits in numbers}
    for rows in (made_up, {source: source for source in GERMAN}):
        found = ended(made(tmp_path, rows), figures(50.0), tmp_path / "run")
        assert "translator" not in found.figures
        assert len(found.lines) == 2


@pytest.mark.parametrize(
    ("measured", "dev", "says"),
    [
        (
            figures(70.0, exact=0.97),
            [(100, 2.0), (300, 1.0)],
            "see how it does on rows that it was not chosen by: regard evaluate --model RUN",
        ),
        (
            figures(2.0),
            [(100, 2.0), (300, 1.0)],
            "it is no better than that: look at the data with regard data check, then give it more steps",
        ),
        (
            figures(30.0),
            [(100, 2.0), (200, 1.5), (300, 1.0)],
            "give it more steps, for dev was still getting better: regard train --resume",
        ),
        (
            figures(30.0),
            [(100, 1.0), (200, 1.5), (300, 2.0)],
            "give it more data: its loss on dev was lowest at step 100, and what came after",
        ),
        (
            figures(30.0),
            [(100, 2.0), (200, 1.0), (300, 1.0)],
            "more data would help most; how good it is on other rows says regard evaluate",
        ),
    ],
)
def test_one_next_step_by_the_figures(tmp_path: Path, measured: dict[str, Any], dev: list[tuple[int, float]], says: str) -> None:
    written(tmp_path, dev)
    said = next_step(made(tmp_path, GERMAN), Validation(0.0, measured), {"baseline_bleu": 4.0}, None, tmp_path)
    assert said.startswith(says.replace("RUN", str(tmp_path)))
    assert ("training.steps=600" in said) == ("more steps" in said)


def test_answers_of_a_single_word_are_measured_in_characters(tmp_path: Path) -> None:
    """BLEU is 0 however good they are."""
    found = ended(made(tmp_path, {f"word{number}": f"{number}drow" for number in range(9)}), figures(0.0, exact=0.4), tmp_path / "run")
    assert re.fullmatch(r"on 9 dev rows: chrF 50.0, 40% exactly right; copying the source: chrF \d\d.\d, 0%", found.lines[0])
    assert "baseline_chrf" in found.figures


def test_the_translator_is_named_only_where_it_is_better(tmp_path: Path) -> None:
    for bleu, begins in ((20.0, "begin with the translator"), (60.0, "more data would help")):
        said = next_step(made(tmp_path, GERMAN), Validation(0.0, figures(bleu)), {"baseline_bleu": 4.0}, Shipped("de", 50.0), tmp_path)
        assert said.startswith(begins)


@pytest.mark.parametrize(
    ("task", "own", "simple"),
    [
        ("translate", "on 10 dev rows: ", "; copying the source: "),
        ("classify", " dev rows: ", "; always saying 'cats': "),
        ("lm", " dev examples: perplexity ", "; going by how frequent tokens are: "),
        ("mlm", " dev examples: perplexity ", "; going by how frequent tokens are: "),
    ],
)
def test_every_task_says_it_and_keeps_it(tmp_path: Path, task: str, own: str, simple: str) -> None:
    console = Console(file=io.StringIO(), width=200)
    run_recipe(recipe(tmp_path, task, {"steps": 20}), tmp_path / "run", console=console)
    said = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert own in said[-3]
    assert simple in said[-3]
    assert said[-2].startswith("next: ")
    assert said[-1] == f"the bundle is in {tmp_path / 'run' / 'bundle'}"
    record = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert (record["kind"], record["step"], record["said"]) == ("end", 20, said[-3:-1])
    assert any(key.startswith("baseline_") for key in record)


def test_without_dev_it_says_how_to_give_one(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=200)
    run_recipe(recipe(tmp_path, training={"steps": 5}, data={"dev_share": 0.0}), tmp_path / "run", console=console)
    assert "no quality is known: there was nothing to validate on; give a file of rows that training does not see, with --dev" in (
        console.file.getvalue()  # type: ignore[attr-defined]
    )


def test_frequencies_are_counted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.evaluation.baseline.AT_ONCE", 7)
    tokens = np.random.default_rng(0).integers(0, 9, 100).astype(np.uint16)
    counted = Bigram.of(tokens[:-1], tokens[1:], 9).frequency(tokens[:20])
    assert unigram(tokens[1:], tokens[:20], 9) == pytest.approx(perplexity(-float(counted.sum()), 20))


def test_a_lucky_run_of_four_words_is_not_the_best_of_single_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where answers are single words, BLEU is 0 when they are right and more than that when they are long and wrong."""
    rows = {f"word{number}": f"drow{number}" for number in range(10)}
    wanted = made(tmp_path, rows, steps=30, validate_every=10, checkpoint_every=10)
    answers = iter([["drow0 a b c d"] * 10, list(rows.values()), list(rows.values()), list(rows.values())])
    monkeypatch.setattr("regard.training.validate._written", lambda *arguments: next(answers))
    run_recipe(wanted, tmp_path / "run", console=Console(quiet=True))
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    first, second = (record for record in records if record["kind"] == "dev" and record["step"] < 30)
    assert first["bleu"] > second["bleu"] == 0
    kept = Checkpoints(tmp_path / "run" / "checkpoints", 3, 1).best(lambda message: None)
    assert kept is not None
    assert kept.step == 20


def test_what_translations_are_judged_by_goes_by_the_references() -> None:
    short, long = Row(("a", "one two three"), "", 1), Row(("a", "one two three four"), "", 1)
    assert quality_figure([short, short, long]) == "chrf"
    assert quality_figure([short, long]) == "bleu"

"""The verbs that ask a model: lines in, answers out, and what is said when something is wrong."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import sacrebleu

from regard.cli.lines import LINES_AT_ONCE
from regard.door import Model
from tests.cli.running import Done, interrupted, read_along, run
from tests.door.trained import POEM, digits, reviews

Bundles = Callable[[str], Path]
Models = Callable[[str], Model]
LONG = " ".join("123456789" * 5)
STRANGE = ["", "  ", "🦆🦆 1", "\x00\x01\x02 3", "a\ttab", "l\u2028s\u0085e\x0bp", "e\u0301", "<end> <to:back>", "1\r2", "\ufeff4"]


def lines_of(count: int, seed: int = 3) -> list[str]:
    """Digits, and among them what is empty, over-long or strange."""
    chance = random.Random(seed)
    made = [" ".join(line) for line in digits(count, seed)]
    for place in range(1, count, 7):
        made[place] = chance.choice(STRANGE)
    for place in range(50, count, 400):
        made[place] = LONG
    return made


def failed(done: Done, *says: str) -> None:
    """It ended with 1, said why in one line, and gave nothing."""
    assert (done.code, done.out) == (1, ""), done
    assert done.err.startswith("regard: ")
    assert done.err.count("\n") == 1
    for part in says:
        assert part in done.err


# Lines in, lines out


def test_lines_in_lines_out(bundle: Bundles, model: Models) -> None:
    lines = ["1 2 3", "", LONG, "🦆", "a\x00b\tc", "4 5"]
    done = run("translate", "-m", bundle("translator"), "--to", "back", stdin="\n".join(lines) + "\n")
    assert done.code == 0
    assert len(done.lines) == len(lines)
    assert done.lines[1] == ""
    translator = model("translator")
    assert [done.lines[place] for place in (0, 3, 5)] == [translator.translate(lines[place], "back").text for place in (0, 3, 5)]
    name = bundle("translator")
    assert done.err == f"regard: standard input, line 3: 46 tokens, and {name} reads 31 at once; it was translated in 2 parts\n"


@pytest.mark.parametrize("verb", ["translate", "generate", "classify", "embed", "score"])
def test_every_verb_keeps_count_and_order(bundle: Bundles, tmp_path: Path, verb: str) -> None:
    name = {"translate": "translator", "generate": "writer", "score": "writer"}.get(verb, "critic")
    more = {"translate": ["--to", "back"], "generate": ["--max-length", "3"]}.get(verb, [])
    lines = [line[:40] for line in lines_of(60)]
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"{line}\n" for line in lines), newline="")
    whole = run(verb, "-m", bundle(name), *more, "--input", path)
    assert whole.code == 0, whole.err
    assert len(whole.lines) == 60
    some = [place for place in (0, 1, 8, 15, 22, 33) if not lines[place].startswith("\ufeff")]  # which at the start of a file is a mark
    alone = [run(verb, "-m", bundle(name), *more, stdin=f"{lines[place]}\n") for place in some]
    if verb in ("translate", "classify"):  # numbers differ in the last digit, and chance goes by the line
        assert [done.lines for done in alone] == [[whole.lines[place]] for place in some]
    out = tmp_path / "out"
    written = run(verb, "-m", bundle(name), *more, "--input", path, "--output", out)
    assert (written.code, written.out) == (0, "")
    assert out.read_bytes().decode() == whole.out
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_batches_do_not_matter(bundle: Bundles, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor for what is drawn by chance, whatever is empty or over-long before it."""
    for more in (["--beam-size", "2"], ["--temperature", "1", "--seed", "7"], ["--mbr", "3"]):
        outputs = set()
        for size in (5, 2048):
            monkeypatch.setitem(LINES_AT_ONCE, "cpu", size)
            done = run("translate", "-m", bundle("translator"), "--to", "same", *more, stdin="\n".join(lines_of(70)))
            assert len(done.lines) == 70
            outputs.add(done.out)
        assert len(outputs) == 1


def piped(lines: list[str], bundle: Path, *more: str) -> tuple[list[str], str]:
    """A process of its own between two pipes, as `cat file | regard translate > out` is."""
    command = [sys.executable, "-W", "error", "-m", "regard", "translate", "-m", str(bundle), "--to", "back", *more]
    done = subprocess.run(command, input="".join(f"{line}\n" for line in lines).encode(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().split("\n")[:-1], done.stderr.decode()


def check_many(lines: list[str], found: list[str], said: str, model: Model) -> None:
    assert len(found) == len(lines)
    assert all(not output for line, output in zip(lines, found, strict=True) if not line.strip())
    long = [number for number, line in enumerate(lines, 1) if line == LONG]
    named = [int(line.split("line ")[1].split(":")[0]) for line in said.splitlines() if "tokens, and" in line]
    assert named == long[:20]
    assert ("more warnings of this kind" in said) == (len(long) > 20)
    for place in random.Random(0).sample(range(len(lines)), 25):
        if lines[place] != LONG:
            text = lines[place].removeprefix("\ufeff") if place == 0 else lines[place]
            assert found[place] == model.translate(text, "back", beam_size=1, max_length=8).text


def test_three_thousand_lines(bundle: Bundles, model: Models) -> None:
    lines = lines_of(3000)
    found, said = piped(lines, bundle("translator"), "--beam-size", "1", "--max-length", "8")
    check_many(lines, found, said, model("translator"))


@pytest.mark.slow
def test_a_hundred_thousand_lines_in_the_same_memory(bundle: Bundles, model: Models) -> None:
    lines = lines_of(100_000)
    command = [sys.executable, "-m", "regard", "translate", "-m", str(bundle("translator")), "--to", "back", "--beam-size", "1"]
    with subprocess.Popen(
        [*command, "--max-length", "8"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        content = "".join(f"{line}\n" for line in lines).encode()
        sender = threading.Thread(target=lambda: (process.stdin.write(content), process.stdin.close()))
        sender.start()  # beside us, so that no pipe waits for the other
        found: list[str] = []
        high: list[int] = []
        for line in process.stdout:
            found.append(line.decode().removesuffix("\n"))
            if len(found) in (20_000, 90_000):  # what is left is more than the pipe holds, so that the process is still there
                status = Path(f"/proc/{process.pid}/status").read_text()
                high.append(int(status.split("VmHWM:")[1].split()[0]))
        sender.join()
        said = process.stderr.read().decode()
    assert process.returncode == 0
    check_many(lines, found, said, model("translator"))
    assert high[1] <= 1.03 * high[0]


def test_whoever_reads_along_gets_lines_as_they_come(bundle: Bundles) -> None:
    read_along(["-m", "regard"], bundle("translator"), [b"1 2 3\n", b"\n", b"4\n"])


def test_ctrl_c_leaves_nothing_half_written(bundle: Bundles, tmp_path: Path) -> None:
    interrupted(["-m", "regard"], bundle("translator"), tmp_path)


# What is printed


def test_json(bundle: Bundles, model: Models) -> None:
    done = run("translate", "-m", bundle("translator"), "--to", "back", "--format", "json", "--n-best", "2", "--attention", stdin="1 2\n\n")
    first, empty = map(json.loads, done.lines)
    expected = model("translator").translate("1 2", "back", n_best=2)
    assert first["text"] == expected.text
    assert first["score"] == pytest.approx(expected.score, abs=1e-5)
    assert [each["text"] for each in first["alternatives"]] == [each.text for each in expected.alternatives]
    assert np.array(first["attention"]["cross"]).sum(-1) == pytest.approx(1, abs=1e-5)
    assert np.array(first["alignment"]).shape == (len(first["log_probabilities"]), len(first["source"]))
    assert (empty["text"], empty["tokens"]) == ("", [])


def test_several_outputs_say_which_text_they_are_of(bundle: Bundles, model: Models) -> None:
    done = run("translate", "1 2", "", "3 4 5", "-m", bundle("translator"), "--to", "back", "--n-best", "3")
    rows = [line.split("\t") for line in done.lines]
    assert [row[0] for row in rows] == ["1", "1", "1", "2", "3", "3", "3"]
    best = model("translator").translate("1 2", "back", n_best=3)
    assert [row[2] for row in rows[:3]] == [best.text, *(each.text for each in best.alternatives)]
    assert float(rows[0][1]) == pytest.approx(best.score, abs=1e-5)
    drawn = run("generate", "the", "-m", bundle("writer"), "--samples", "3", "--seed", "2")
    assert [line.split("\t")[0] for line in drawn.lines] == ["1", "1", "1"]
    assert all(line.split("\t")[2].startswith("the") for line in drawn.lines)
    for more in (["--n-best", "1"], ["--mbr", "4"], ["--samples", "1"]):  # one output each is one line each
        assert "\t" not in run("translate", "1 2", "-m", bundle("translator"), "--to", "back", *more).out


def test_generating(bundle: Bundles, model: Models) -> None:
    writer = bundle("writer")
    assert run("generate", "rain falls", "-m", writer, "--temperature", "0").out == "rain falls on the old town\n"
    assert run("generate", "rain falls", "my sister", "-m", writer, "--temperature", "0").lines == [POEM[4], POEM[3]]
    assert run("generate", "", "-m", writer, "--temperature", "0").lines[0] in POEM
    assert run("generate", "héllo", "-m", writer, "--temperature", "0").lines == [POEM[5]]
    drawn = [run("generate", "a", "-m", writer, "--seed", "3", "--temperature", "2").out for _ in range(2)]
    assert drawn[0] == drawn[1] == "a" + model("writer").generate("a", seed=3, temperature=2.0).text + "\n"
    told = json.loads(run("generate", "rain falls", "-m", writer, "--temperature", "0", "--format", "json").out)
    assert (told["prompt"], told["text"]) == ("rain falls", " on the old town")


def test_labels_words_vectors(bundle: Bundles, tmp_path: Path) -> None:
    assert [line.split("\t")[0] for line in run("classify", "lovely film", "awful film", "-m", bundle("critic")).lines] == ["good", "bad"]
    told = json.loads(run("classify", "lovely film", "-m", bundle("critic"), "--format", "json").out)
    assert told["label"] == "good"
    assert sum(told["probabilities"].values()) == pytest.approx(1)
    filled = run("fill", "the cat [MASK] on the [MASK].", "-m", bundle("word_guesser"), "--choices", "2").lines[0].split("\t")
    assert filled[0] == "the cat sat on the mat."
    assert [len(place.split(", ")) for place in filled[1:]] == [2, 2]
    arguments = ["embed", "a cat", "", "🦆", "-m", bundle("critic"), "--normalise"]
    rows = [json.loads(line) for line in run(*arguments).lines]
    run(*arguments, "--output", tmp_path / "v.npy")
    run(*arguments, "--output", tmp_path / "v.jsonl")
    matrix = np.load(tmp_path / "v.npy")
    assert matrix.dtype == np.float32
    assert matrix == pytest.approx(np.array(rows), abs=1e-7)
    assert [json.loads(line) for line in (tmp_path / "v.jsonl").read_text().splitlines()] == rows
    assert np.linalg.norm(matrix, axis=1) == pytest.approx(1)


def test_scores(bundle: Bundles, tmp_path: Path) -> None:
    translator, more = bundle("translator"), ["--to", "back", "-m", bundle("translator")]
    told = json.loads(run("translate", "1 2 3", *more, "--format", "json").out)
    assert told["ended"]
    assert float(run("score", "1 2 3", told["text"], *more).out) == pytest.approx(told["log_probability"], abs=1e-4)
    again = run("score", *more, "--format", "json", stdin=f"1 2 3\t{told['text']}\n1\t\n")
    assert json.loads(again.lines[0])["log_probability"] == pytest.approx(told["log_probability"], abs=1e-4)
    assert json.loads(again.lines[1])["tokens"] == ["<end>"]
    assert run("score", "a\ttab", "1", *more).code == 0
    failed(run("score", "1 2", *more), "text 1: score takes a source, a tab and its translation, or the two as arguments")
    failed(run("score", *more, stdin="1\t2\n3\n"), "standard input, line 2: score takes a source, a tab and its translation")
    failed(run("score", *more, stdin=f"1\t2\n{LONG}\t1\n"), "standard input, line 2: the source has 47 tokens and", str(translator))
    assert len(run("score", "-m", bundle("writer"), stdin="the cat\n\n").lines) == 2
    failed(run("score", "a", "b", "-m", bundle("writer")), "is a language model: give it texts to score, without targets")


# Figures


def test_evaluating_translations(bundle: Bundles, tmp_path: Path) -> None:
    rows = digits(30, seed=8)
    path, out = tmp_path / "pairs.tsv", tmp_path / "out.txt"
    path.write_text("".join(f"{' '.join(row)}\t{' '.join(row[::-1])}\n" for row in rows))
    shown = run("evaluate", "--data", path, "--to", "back", "-m", bundle("translator"), "--hypotheses", out)
    assert (shown.code, shown.err) == (0, "")
    hypotheses, references = out.read_text().splitlines(), [" ".join(row[::-1]) for row in rows]
    bleu = sacrebleu.metrics.BLEU()  # type: ignore[attr-defined]
    assert f"{bleu.corpus_score(hypotheses, [references]).score:.2f}" in shown.out
    assert str(bleu.get_signature()) in shown.out
    told = json.loads(run("evaluate", "--data", path, "--to", "back", "-m", bundle("translator"), "--format", "json").out)
    assert told["bleu"]["value"] == pytest.approx(sacrebleu.corpus_bleu(hypotheses, [references]).score)
    assert told["chrf"]["value"] == pytest.approx(sacrebleu.corpus_chrf(hypotheses, [references]).score)
    assert told["ter"]["value"] == pytest.approx(sacrebleu.corpus_ter(hypotheses, [references]).score)
    (tmp_path / "source.txt").write_text("".join(f"{' '.join(row)}\n" for row in rows))
    (tmp_path / "target.txt").write_text("".join(f"{reference}\n" for reference in references))
    two = ["--data", tmp_path / "source.txt", "--target", tmp_path / "target.txt", "--to", "back", "--format", "json"]
    assert json.loads(run("evaluate", *two, "-m", bundle("translator")).out)["bleu"] == told["bleu"]


def test_evaluating_two_models(bundle: Bundles, tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{' '.join(row)}\t{' '.join(row[::-1])}\n" for row in digits(30, seed=8)))
    both = ["--data", path, "--to", "back", "-m", bundle("translator"), "-m", bundle("other_translator")]
    shown = run("evaluate", *both, "--hypotheses", tmp_path / "a", "--hypotheses", tmp_path / "b")
    assert shown.code == 0, shown.err
    assert "is better by" in " ".join(shown.out.split())
    assert [len((tmp_path / name).read_text().splitlines()) for name in "ab"] == [30, 30]
    told = json.loads(run("evaluate", *both, "--format", "json").out)
    assert len(told["models"]) == 2
    assert {row["figure"] for row in told["difference"]["differences"]} == {"BLEU", "chrF", "TER"}
    assert run("evaluate", *both, "-m", bundle("recurrent")).code == 2


def test_evaluating_labels_and_texts(bundle: Bundles, tmp_path: Path) -> None:
    films = tmp_path / "films.tsv"
    films.write_text("".join(f"{label}\t{text}\n" for label, text in reviews(20, seed=4)))
    shown = run("evaluate", "--data", films, "-m", bundle("critic"))
    assert "accuracy 100.0% of 20 examples" in shown.out
    assert json.loads(run("evaluate", "--data", films, "-m", bundle("critic"), "--format", "json").out)["accuracy"] == 1
    films.write_text("good\tlovely\nbaad\tdull\n")
    failed(run("evaluate", "--data", films, "-m", bundle("critic")), f"{films}, line 2: ", "knows no label 'baad'; did you mean 'bad'?")
    poem = tmp_path / "poem.txt"
    poem.write_text("\n".join(POEM))
    assert "perplexity per word" in run("evaluate", "--data", poem, "-m", bundle("writer")).out
    assert json.loads(run("evaluate", "--data", poem, "-m", bundle("guesser"), "--format", "json").out)["perplexity"] > 1
    assert run("evaluate", "--data", poem, "-m", bundle("writer"), "--hypotheses", tmp_path / "h").code == 2
    assert not (tmp_path / "h").exists()


# What is wrong is said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["translate", "1", "-m", "nowhere"], ["there is no model 'nowhere'"]),
        (["generate", "1", "-m", "translator"], ["is an encoder-decoder: it can translate, score and evaluate, but not generate"]),
        (["translate", "1", "-m", "writer"], ["is a language model", "but not translate; choose a model trained with --task translate"]),
        (["fill", "1", "-m", "critic"], ["is an encoder: it can classify, embed and evaluate, but not fill"]),
        (["classify", "1", "-m", "guesser"], ["but not classify; it was trained without labels"]),
        (["embed", "1", "-m", "writer"], ["but not embed"]),
        (["score", "1", "-m", "critic"], ["but not score"]),
        (["translate", "1", "-m", "translator"], ["writes several languages", "--to): back, same"]),
        (["translate", "1", "-m", "translator", "--to", "bakc"], ["can't write 'bakc'; did you mean 'back'?"]),
        (["translate", "1", "-m", "translator", "--to", "back", "--device", "foo"], ["the device 'foo' can't be used here"]),
        (["translate", "1", "-m", "translator", "--to", "back", "--beam-size", "0"], ["'beam_size' = 0"]),
        (["translate", "1", "-m", "translator", "--to", "back", "--max-length", "x"], ["'x' is no length"]),
        (["translate", "1", "-m", "translator", "--input", "x"], ["there is text to work on, and the file x as well"]),
        (["translate", "-m", "translator", "--to", "back", "--input", "no.txt"], ["no.txt"]),
        (["generate", "x" * 60, "-m", "writer"], ["text 1: the prompt is 62 tokens long", "has a context of 48; shorten it"]),
        (["generate", "x" * 60, "y", "-m", "writer"], ["text 1: the prompt is 62 tokens long"]),
        (["fill", "nothing", "-m", "guesser"], ["text 1: there is no [MASK] to fill", "'nothing'"]),
        (["embed", "x", "-m", "critic", "--pooling", "meen"], ["pooling = 'meen' is unknown; did you mean 'mean'?"]),
        (["evaluate", "--data", "no.tsv", "-m", "translator"], ["no.tsv"]),
    ],
)
def test_errors(bundle: Bundles, tmp_path: Path, arguments: list[str], says: list[str]) -> None:
    """Nothing is printed, and a file that was to be written is as it was."""
    names = ("translator", "writer", "critic", "guesser")
    whole = [str(bundle(word)) if word in names else word for word in arguments]
    failed(run(*whole), *says)
    if arguments[0] != "evaluate":
        out = tmp_path / "out"
        out.write_text("as it was")
        failed(run(*whole, "--output", out), *says)
        assert out.read_text() == "as it was"
        assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["out"]


def test_an_error_midway_leaves_a_file_alone(bundle: Bundles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LINES_AT_ONCE, "cpu", 2)
    lines = tmp_path / "lines.txt"
    lines.write_text("a [MASK]\nb [MASK]\nc [MASK]\nnothing\n")
    done = run("fill", "-m", bundle("guesser"), "--input", lines, "--output", tmp_path / "out")
    failed(done, f"{lines}, line 4: there is no [MASK] to fill")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["lines.txt"]


@pytest.mark.parametrize("broken", ["weights", "tokenizer", "missing", "config"])
def test_broken_bundles(bundle: Bundles, tmp_path: Path, broken: str) -> None:
    folder = Path(shutil.copytree(bundle("translator"), tmp_path / "b"))
    if broken == "weights":
        (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:999])
    elif broken == "tokenizer":
        shutil.copy(bundle("guesser") / "tokenizer.json", folder / "tokenizer.json")
    elif broken == "missing":
        (folder / "tokenizer.json").unlink()
    else:
        (folder / "config.json").write_text("{")
    done = run("translate", "1 2", "-m", folder, "--to", "back", "--output", tmp_path / "out")
    failed(done, str(folder))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["evaluate", "--data", "y", "--hypotheses", "a", "--hypotheses", "b"], "--hypotheses is given more often than --model"),
        (["translate", "1", "-m", "x", "--attention"], "need --format json"),
        (["generate", "1", "-m", "x", "--attention"], "need --format json"),
        (["evaluate", "-m", "x", "--data", "y", "--only", "z"], "write a column or key and its value, as 2=tatoeba"),
        (["evaluate", "-m", "x", "--data", "y", "--hypotheses", "a", "--hypotheses", "b"], "--hypotheses is given more often than --model"),
        (["fill", "x", "-m", "x", "--choices", "0"], "should be greater than or equal to 1"),
    ],
)
def test_wrong_usage(arguments: list[str], says: str) -> None:
    done = run(*arguments)
    assert (done.code, done.out) == (2, "")
    assert says in " ".join(done.err.replace("│", " ").split())


def test_help_says_what_several_outputs_look_like() -> None:
    shown = " ".join(run("translate", "--help").out.replace("│", " ").split())
    assert "number of the text, score, output, tabs between" in shown
    assert "An empty line gives an empty line" in shown


def test_no_warnings_from_python(bundle: Bundles) -> None:
    command = [sys.executable, "-W", "error", "-m", "regard", "fill", "the cat [MASK]", "-m", str(bundle("guesser"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")

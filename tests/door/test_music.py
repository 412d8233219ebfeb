"""Pieces of music from models that know nothing, and from the command line: always whole, in range and in metre."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

pytest.importorskip("miditok", reason="needs the extra music")

from regard.bundle import save_bundle
from regard.decoding.settings import Rules
from regard.door import Model, load
from regard.door import writing as door_writing
from regard.door.music import compose, grammar_of, is_music
from regard.errors import ConfigError, CorpusError, RegardError
from regard.evaluation.baseline import baselines, in_pairs
from regard.evaluation.piece import faults_of_events, faults_of_file
from regard.models import build
from regard.presets import preset
from regard.recipe import DataFile, TokenizerSettings, parse_change
from regard.text.midi import to_events, to_midi, vocabulary
from regard.text.tokenizer import Tokenizer
from regard.training.fit import fitting_recipe
from regard.training.prepare import prepare
from regard.training.run import run_recipe
from tests.cli.running import run
from tests.text.tunes import MARCH, MARCH_FILE, WALTZ_FILE, midi_file, ticks

CONTEXT = 200


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model over events with random weights: it finds everything about as likely."""
    folder = tmp_path_factory.mktemp("music")
    tokenizer = Tokenizer.train([" ".join(vocabulary())], TokenizerSettings(kind="word", size=300))
    tokenizer.save(folder / "tokenizer.json")
    torch.manual_seed(1)
    small: dict[str, Any] = {"layers": 1, "width": 32, "heads": 4, "kv_heads": 4, "feedforward": 64, "context": CONTEXT}
    network = build(preset("llama-tiny", vocabulary=tokenizer.size + 3, **small, pad_token=tokenizer.pad_id,
                           start_token=tokenizer.start_id, end_token=tokenizer.end_id))  # fmt: skip
    save_bundle(network, folder / "bundle", tokenizer=folder / "tokenizer.json")
    return folder / "bundle"


@pytest.fixture(scope="module")
def model(bundle: Path) -> Model:
    return load(bundle, device="cpu")


def faults_but_the_end(events: str) -> list[str]:
    """Without that of a last note which was cut short."""
    return [fault for fault in faults_of_events(events) if not fault.endswith("a piece ends with a whole note")]


@pytest.mark.parametrize("seed", range(4))
def test_whatever_it_has_learned_its_pieces_are_whole(model: Model, seed: int) -> None:
    events = compose(model, temperature=1.5, top_p=1.0, seed=seed)
    content = to_midi(events)
    assert faults_of_file(content) == []
    assert faults_but_the_end(events) == []
    assert len(events.split()) < CONTEXT


def test_without_its_grammar_they_are_not(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_writing, "grammar_of", lambda *_: None)
    assert len(faults_but_the_end(compose(model, temperature=1.5, top_p=1.0, seed=0))) > 10


@pytest.mark.parametrize("options", [{"beam_size": 3}, {"beam_size": 1}, {"temperature": 0.7, "top_k": 5}], ids=["beam", "greedy", "top-k"])
def test_in_every_way_of_decoding(model: Model, options: Any) -> None:
    events = model.generate("", max_length=60, min_length=50, **options).text
    assert len(events.split()) > 10
    assert faults_but_the_end(events) == []


@pytest.mark.gpu
def test_on_a_gpu_too(bundle: Path) -> None:
    """Where each position is replayed from a recording."""
    model = load(bundle, device="cuda")
    assert faults_but_the_end(compose(model, temperature=1.5, top_p=1.0, seed=0, min_length=CONTEXT)) == []


def test_a_primer_is_where_it_goes_on_from(model: Model) -> None:
    primer = " ".join(to_events(WALTZ_FILE, "waltz").split()[:100])
    events = compose(model, primer, seed=5)
    assert events.startswith(primer)
    assert len(events.split()) > 100
    assert faults_of_file(to_midi(events)) == []


def test_longer_than_the_context(model: Model) -> None:
    primer = to_events(MARCH_FILE, "march")
    long: Any = {"max_length": 2 * CONTEXT, "min_length": 2 * CONTEXT}
    events = compose(model, primer, **long, seed=2)
    assert len(events.split()) == len(primer.split()) + 2 * CONTEXT
    assert faults_but_the_end(events) == []
    assert events == compose(model, primer, **long, seed=2)
    assert events != compose(model, primer, **long, seed=3)


def test_a_bar_that_is_too_full(model: Model) -> None:
    chord = " ".join(f"Pitch_{pitch} Velocity_63 Duration_1" for pitch in range(40, 100))
    with pytest.raises(CorpusError, match="the last bar has more than 99 events"):
        compose(model, f"Bar Beats_4 Position_0 {chord} Position_1 {chord}")


def test_what_is_asked_for_in_vain(model: Model) -> None:
    with pytest.raises(ConfigError, match="samples asks for several pieces, and a file holds one"):
        compose(model, samples=2)
    with pytest.warns(UserWarning, match="1 of the primer's 3 events never came up"):
        compose(model, "Bar Beats_7 Position_0", max_length=5)


def test_text_is_no_music(tmp_path: Path) -> None:
    for kind in ("word", "bpe", "char"):
        tokenizer = Tokenizer.train(["Bar none, a Position is 0."], TokenizerSettings(kind=kind, size=400))
        assert not is_music(tokenizer)
        assert grammar_of(tokenizer, tokenizer.size) is None


def test_a_grammar_survives_being_a_rule(model: Model) -> None:
    rules = Rules(grammar=grammar_of(model.tokenizer, model.config.vocabulary))
    assert Rules(**rules.model_dump()) == rules


def test_from_files_to_a_model_to_a_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trained for seconds on marches in twelve keys, it foretells one in another rhythm better than a bigram does."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    songs = tmp_path / "songs"
    songs.mkdir()
    for number in range(40):
        shifted = [((start + (number % 3) * (start % 16 > 0)), length, pitch + number % 7) for start, length, pitch in MARCH]
        (songs / f"{number}.mid").write_bytes(midi_file(ticks(shifted)))
    asked = ["data.max_length=128", "model.preset=llama-tiny", "model.layers=2", "model.width=64", "model.heads=4", "model.kv_heads=4",
             "model.feedforward=128", "training.steps=60", "training.lr=5e-3", "training.warmup=5",
             "training.batch_tokens=1032"]  # fmt: skip
    data = [
        f'{part}=[{{path="{songs}", only={{part=["{part}"]}}, transpose={keys}}}]' for part, keys in (("train", "[-5,6]"), ("dev", "[0,0]"))
    ]
    recipe = fitting_recipe("lm", [str(songs)], [], [parse_change(change) for change in (*asked, *(f"data.{file}" for file in data))], None)
    bundle = run_recipe(recipe, tmp_path / "run", console=Console(quiet=True))
    prepared = prepare(recipe, None, lambda _: None)
    train, dev = (in_pairs(np.asarray(store.target.tokens), np.asarray(store.target.edges)) for store in (prepared.train, prepared.dev))
    bigram = baselines(train, dev, len(prepared.vocabularies.target))["bigram"]
    model = load(bundle, device="cpu")
    measured = model.evaluate(DataFile(path=str(songs), only={"part": ("dev",)}))
    assert measured.counts == (len(dev[1]) // measured.examples,) * measured.examples  # over the same events, each song's end among them
    assert measured.figures["perplexity"] < 0.8 * bigram
    piece = to_midi(compose(model, seed=1))
    assert faults_of_file(piece) == []


def test_from_the_command_line(bundle: Path, tmp_path: Path) -> None:
    piece, again = tmp_path / "piece.mid", tmp_path / "again.mid"
    for output in (piece, again):
        assert run("generate", "--model", bundle, "--output", output, "--seed", "3", "--max-length", "150").code == 0
    assert piece.read_bytes() == again.read_bytes()
    assert faults_of_file(piece.read_bytes()) == []
    primer = tmp_path / "primer.mid"
    primer.write_bytes(MARCH_FILE)
    assert run("generate", "--model", bundle, "--input", primer, "--output", again, "--max-length", "60").code == 0
    assert to_events(again.read_bytes(), "again").startswith(to_events(MARCH_FILE, "march"))


def test_errors_on_the_command_line(bundle: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.mid"
    broken.write_bytes(MARCH_FILE[:50])
    done = run("generate", "--model", bundle, "--input", broken, "--output", tmp_path / "piece.mid")
    assert (done.code, "broken.mid is no MIDI file, or damaged" in done.err) == (1, True)
    done = run("generate", "--model", bundle, "--input", broken)
    assert (done.code, "MIDI file" in done.err) == (2, True)
    done = run("generate", "a song", "--model", bundle, "--output", tmp_path / "piece.mid")
    assert (done.code, "primer.mid" in done.err) == (2, True)
    assert not (tmp_path / "piece.mid").exists()
    done = run("generate", "--model", bundle, "--output", tmp_path / "none" / "piece.mid")
    assert (done.code, "there is no folder" in done.err) == (1, True)


def test_a_model_of_text_writes_none(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    text = Tokenizer.train(["some text"], TokenizerSettings(kind="word", size=50))
    monkeypatch.setattr(model, "_tokenizer", text)
    with pytest.raises(RegardError, match="writes text and no music; choose a model that was trained on MIDI files"):
        compose(model)

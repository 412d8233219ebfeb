"""regard import: what it is given shows what it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from regard.bundle import load_bundle
from tests.cli.running import run
from tests.interop import ggufs
from tests.interop.test_huggingface import saved
from tests.interop.test_llama2c import made


def test_a_hugging_face_folder(tmp_path: Path) -> None:
    saved("gpt2", tmp_path / "theirs")
    done = run("import", tmp_path / "theirs", tmp_path / "ours")
    assert (done.code, done.out) == (0, "")
    assert "decoder-only: 2 layers" in done.err
    assert load_bundle(tmp_path / "ours").config.vocabulary == 61


@pytest.mark.parametrize("name", ["tiny.gguf", "tiny"])
def test_a_gguf_file(name: str, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    words = ggufs.byte_level()
    path = ggufs.write(tmp_path / name, ggufs.llama(len(words["tokens"])), words, "Q8_0")
    done = run("import", path, tmp_path / "ours", "--precision", "float16")
    assert (done.code, done.out) == (0, "")
    assert "2 layers" in done.err
    told = run("generate", "the village", "--model", tmp_path / "ours", "--max-length", "4", "--device", "cpu")
    assert told.out.startswith("the village")


def test_a_llama2c_file(tmp_path: Path) -> None:
    file = made(tmp_path)
    assert run("import", file, tmp_path / "ours").code == 0
    (tmp_path / "tokenizer.bin").rename(tmp_path / "words.bin")
    assert "name its tokenizer with --tokenizer" in run("import", file, tmp_path / "other").err
    assert run("import", file, tmp_path / "other", "--tokenizer", tmp_path / "words.bin").code == 0
    assert run("generate", "ab", "--model", tmp_path / "other", "--max-length", "4", "--device", "cpu").code == 0


def test_what_it_is_not(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    done = run("import", tmp_path / "notes.txt", tmp_path / "out")
    assert done.code == 1
    assert "a file of no kind that is known here; give a Hugging Face folder, a .gguf or a llama2.c .bin file" in done.err
    done = run("import", tmp_path / "none.gguf", tmp_path / "out")
    assert (done.code, "is no folder" in done.err) == (1, True)
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\x03\x00")
    done = run("import", tmp_path / "cut.gguf", tmp_path / "out")
    assert (done.code, "cut off or damaged" in done.err, "Traceback" in done.err) == (1, True, False)
    done = run("import", tmp_path, tmp_path / "out", "--tokenizer", "x")
    assert (done.code, "--tokenizer is for llama2.c files" in done.err) == (2, True)
    assert not (tmp_path / "out").exists()

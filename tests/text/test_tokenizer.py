"""Text to tokens and back: nothing is lost, nothing in a text is taken for a special token, and training is repeatable."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st

from regard.errors import BundleError, ConfigError, CorpusError, RegardError
from regard.recipe import TokenizerSettings
from regard.text.tokenizer import Tokenizer

TEXTS = [
    "The cat sat on the mat, and the dog sat on the cat.",
    "Il gatto dorme; l'acqua è fredda. Don't wake the well-known cat!",
    "नमस्ते दुनिया, नमस्ते",
    "In 1984 (a year) 3.14 cats said: “hello”.",
]
KINDS = ("bpe", "unigram", "char", "word")
TAGS = ("it", "de")


@cache
def trained(kind: str, lowercase: bool = False, size: int = 320) -> Tokenizer:
    settings = TokenizerSettings.model_validate({"kind": kind, "size": size, "lowercase": lowercase})
    return Tokenizer.train(iter(TEXTS * 3), settings, TAGS)


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_come_first(kind: str) -> None:
    tokenizer = trained(kind)
    assert (tokenizer.pad_id, tokenizer.start_id, tokenizer.end_id, tokenizer.mask_id) == (0, 1, 2, 3)
    unknown = kind in ("char", "word")
    assert tokenizer.unknown_id == (4 if unknown else None)
    assert tokenizer.tags == TAGS
    names = ["<pad>", "<start>", "<end>", "<mask>", *(["<unk>"] if unknown else []), "<to:it>", "<to:de>"]
    assert tokenizer.pieces(range(len(names))) == names
    assert tokenizer.decode(range(len(names))) == ""
    assert len(tokenizer) == tokenizer.size <= 320


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@given(text=st.text())
@example("")
@example("  two  spaces  ")
@example("\n\t line\r\n")
@example("\0 \u0301 \u2028 👩‍👩‍👧 \ufeff")
@example("<pad><start><end><mask><to:it> <to:de>")
@example("<0x41> Ġ Ċ ▁")
def test_bytes_lose_nothing(kind: str, text: str) -> None:
    tokenizer = trained(kind)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert all(id >= 6 for id in ids)
    assert all(id < tokenizer.size for id in ids)


# Characters that this version of Unicode has no case for may have one in the library's.
@given(text=st.text(st.characters(exclude_categories=["Cs", "Cn"])))
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_lower_case_is_all_that_is_lost(kind: str, text: str) -> None:
    tokenizer = trained(kind, lowercase=True)
    assert tokenizer.decode(tokenizer.encode(text)) == "".join(character.lower() for character in text)


@given(text=st.text(st.sampled_from(sorted(set("".join(TEXTS))))))
def test_known_characters_lose_nothing(text: str) -> None:
    tokenizer = trained("char")
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode(text)) == len(text)


def test_unknown_characters_and_words() -> None:
    assert trained("char").encode("cat ж") == [*trained("char").encode("cat "), 4]
    assert trained("word").encode("the zebra") == [*trained("word").encode("the"), 4]
    assert trained("word").decode(trained("word").encode("the zebra sat")) == "the sat"
    lower = trained("char", lowercase=True)
    assert lower.decode(lower.encode("CAT")) == "cat"


@pytest.mark.parametrize("text", TEXTS)
def test_words_are_joined_as_they_stood(text: str) -> None:
    tokenizer = trained("word")
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode(tokenizer.encode(text.replace(" ", " \n "))) == text


def test_words_are_split_at_punctuation() -> None:
    tokenizer = trained("word")
    assert tokenizer.pieces(tokenizer.encode("(a year): don't, 3.14 cats")) == ["(", "a", "year", ")", ":", "<unk>", ",", "3.14", "cats"]


@pytest.mark.parametrize("kind", KINDS)
def test_special_names_in_a_text_are_ordinary_text(kind: str) -> None:
    tokenizer = trained(kind)
    special = {tokenizer.pad_id, tokenizer.start_id, tokenizer.end_id, tokenizer.mask_id, tokenizer.tag_id("it"), tokenizer.tag_id("de")}
    text = "<pad> <start> <end> <mask> <to:it><to:de>"
    for made in (tokenizer, Tokenizer.from_json(tokenizer.to_json()), pickle.loads(pickle.dumps(tokenizer))):
        assert not special & set(made.encode(text))
        assert not special & set(made.encode_batch([text])[0])
    learned = Tokenizer.train([text * 50], TokenizerSettings.model_validate({"kind": kind, "size": 400}), TAGS)
    assert not special & set(learned.encode(text))
    if kind != "word":
        assert learned.decode(learned.encode(text)) == text


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_first_word_is_the_same_token_as_a_later_one(kind: str) -> None:
    tokenizer = trained(kind)
    assert tokenizer.encode("cat cat") == 2 * tokenizer.encode("cat")
    assert "".join(tokenizer.pieces(tokenizer.encode("The cat"))) == " The cat"


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_pieces_show_bytes_that_are_no_character(kind: str) -> None:
    assert trained(kind).pieces(trained(kind).encode("ж"))[-2:] == ["\\xd0", "\\xb6"]


@pytest.mark.parametrize("kind", KINDS)
def test_batches_equal_single_texts(kind: str) -> None:
    tokenizer = trained(kind)
    texts = [*TEXTS, "", " "]
    batch = tokenizer.encode_batch(texts, "de")
    assert batch == [tokenizer.encode(text, "de") for text in texts]
    assert all(ids[0] == tokenizer.tag_id("de") for ids in batch)
    assert [ids[1:] for ids in batch] == tokenizer.encode_batch(texts)
    assert tokenizer.decode_batch(batch) == [tokenizer.decode(ids) for ids in batch]
    assert tokenizer.encode_batch([]) == []


def test_large_batches_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.text.tokenizer.BATCH", 3)
    texts = [f"cat {number}" for number in range(20)]
    assert trained("bpe").decode_batch(trained("bpe").encode_batch(texts)) == texts


@pytest.mark.parametrize("kind", KINDS)
def test_training_is_repeatable_in_another_process(kind: str) -> None:
    script = (
        "from regard.text.tokenizer import Tokenizer; from regard.recipe import TokenizerSettings; import sys, json\n"
        "texts, kind = json.load(sys.stdin)\n"
        "print(Tokenizer.train(texts, TokenizerSettings(kind=kind, size=320), ['it', 'de']).fingerprint)"
    )
    environment = os.environ | {"TOKENIZERS_PARALLELISM": "false", "PYTHONHASHSEED": "7"}
    given = json.dumps([TEXTS * 3, kind])
    result = subprocess.run([sys.executable, "-c", script], input=given, env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == trained(kind).fingerprint


@pytest.mark.parametrize("kind", KINDS)
def test_saved_equals_loaded(kind: str, tmp_path: Path) -> None:
    tokenizer = trained(kind)
    tokenizer.save(tmp_path / "tokenizer.json")
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.tags == TAGS
    assert loaded.encode_batch(TEXTS, "it") == tokenizer.encode_batch(TEXTS, "it")
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert library.encode(TEXTS[0]).ids == tokenizer.encode(TEXTS[0])
    assert library.decode(tokenizer.encode(TEXTS[0])) == TEXTS[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{}", "damaged or of another format"),
        (b'{"version": "1.0", "mod', "damaged or of another format"),
        (b"\xff\xfe", "not UTF-8"),
        (tokenizers.Tokenizer(tokenizers.models.BPE()).to_str().encode(), "has no <pad>, <start>, <end>, <mask>"),
    ],
)
def test_a_damaged_file_is_named(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(BundleError, match=message) as error:
        Tokenizer.load(tmp_path / "tokenizer.json")
    assert str(tmp_path / "tokenizer.json") in str(error.value)


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"can't read the tokenizer .*nowhere.json: No such file"):
        Tokenizer.load(tmp_path / "nowhere.json")
    with pytest.raises(BundleError, match=r"could not write .*tokenizer.json: No such file"):
        trained("char").save(tmp_path / "no" / "tokenizer.json")


@pytest.mark.parametrize(("kind", "size", "least"), [("bpe", 200, 262), ("unigram", 261, 262), ("char", 7, 8), ("word", 3, 8)])
def test_too_small_a_size(kind: str, size: int, least: int) -> None:
    with pytest.raises(ConfigError, match=rf"tokenizer.size = {size} is too small: .*; set it to {least} or more"):
        trained(kind, size=size)
    assert trained(kind, size=least).size == least


@pytest.mark.parametrize("kind", KINDS)
def test_few_texts_make_a_small_vocabulary(kind: str) -> None:
    tokenizer = Tokenizer.train(["a"], TokenizerSettings.model_validate({"kind": kind, "size": 8000}))
    assert tokenizer.size <= 262
    assert tokenizer.decode(tokenizer.encode("a")) == "a"


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_to_learn_from(kind: str) -> None:
    for texts in ([], ["", " \n"]):
        with pytest.raises(CorpusError, match="no text to learn a tokenizer from"):
            Tokenizer.train(texts, TokenizerSettings.model_validate({"kind": kind}))


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_while_reading_comes_through(kind: str) -> None:
    def broken() -> Iterator[str]:
        yield "a"
        raise CorpusError("a.tsv, line 2: not UTF-8")

    with pytest.raises(CorpusError, match="line 2: not UTF-8"):
        Tokenizer.train(broken(), TokenizerSettings.model_validate({"kind": kind}))


def test_tags_that_are_unknown_or_unfit() -> None:
    with pytest.raises(RegardError, match=r"knows no 'fr' to write; known: de, it"):
        trained("bpe").encode("x", "fr")
    with pytest.raises(RegardError, match="trained without tags"):
        Tokenizer.train(["a"], TokenizerSettings(kind="char")).encode("a", "it")
    with pytest.raises(ConfigError, match="without spaces or brackets"):
        Tokenizer.train(["a"], TokenizerSettings(kind="char"), ["to it"])
    with pytest.raises(ConfigError, match="not all different"):
        Tokenizer.train(["a"], TokenizerSettings(kind="char"), ["it", "it"])


def test_ids_and_texts_that_make_no_sense() -> None:
    with pytest.raises(RegardError, match="320 is no token; ids go from 0 to 319"):
        trained("bpe").pieces([320])
    with pytest.raises(RegardError, match="half of a character"):
        trained("bpe").encode_batch(["fine", "a\ud800b"])

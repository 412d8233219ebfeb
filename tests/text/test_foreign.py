"""Tokenizers from elsewhere: one file that says which tokens do what, and nothing lost on the way to disk and back."""

from __future__ import annotations

import json
import pickle
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from regard.errors import BundleError, RegardError
from regard.text.foreign import ForeignTokenizer, Roles
from regard.text.tokenizer import Frame, Tokenizer

WORDS = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", "the", "cat", "s", "##s", "at", "##at", "."]
ROLES = Roles(pad=0, start=1, end=2, mask=3, unknown=4)


@cache
def pieces_library() -> str:
    library = tokenizers.Tokenizer(models.WordPiece({word: id for id, word in enumerate(WORDS)}, unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer()
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece(cleanup=False)
    library.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)])
    library.add_special_tokens([AddedToken(word, special=True) for word in WORDS[:5]])
    library.enable_truncation(3)  # as sentence encoders are saved
    library.enable_padding(length=8)
    return library.to_str()


def made(roles: Roles = ROLES) -> ForeignTokenizer:
    return ForeignTokenizer(tokenizers.Tokenizer.from_str(pieces_library()), roles)


def bytes_library() -> tokenizers.Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    library = tokenizers.Tokenizer(models.BPE({symbol: id for id, symbol in enumerate(alphabet)}, []))
    library.pre_tokenizer, library.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    library.add_special_tokens([AddedToken("<|end|>", special=True)])
    return library


def test_what_a_text_becomes() -> None:
    tokenizer = made()
    assert tokenizer.encode("The cats sat at the [MASK] . dog") == [5, 6, 8, 7, 10, 9, 5, 3, 11, 4]  # neither cut nor padded
    assert tokenizer.frame == Frame((1,), (2,))
    assert tokenizer.framed([5, 6], Frame(after=(9,))) == [1, 5, 6, 2]  # its own frame, whatever the family's
    assert tokenizer.framed([5, 6, 7], Frame(), room=4) == [1, 5, 6, 2]
    assert (tokenizer.pad_id, tokenizer.start_id, tokenizer.end_id, tokenizer.mask_id, tokenizer.unknown_id) == (0, 1, 2, 3, 4)
    assert tokenizer.special_ids == {0, 1, 2, 3, 4}
    assert tokenizer.size == len(tokenizer) == len(WORDS)
    assert tokenizer.pieces([1, 6, 8, 11]) == ["[CLS]", "cat", "s", "."]
    assert tokenizer.decode([1, 5, 6, 8, 11, 2]) == "the cats ."
    assert made(Roles(**(vars(ROLES) | {"tidy": True}))).decode([5, 6, 11]) == "the cat."
    assert not tokenizer.spaced


def test_special_names_are_tokens_or_text_as_asked() -> None:
    tokenizer = made()
    assert tokenizer.encode("[SEP]") == tokenizer.encode("[SEP]", markup=True) == [2]
    assert 2 not in tokenizer.encode("[SEP]", markup=False)
    assert tokenizer.encode("[SEP]") == [2]  # still


def test_our_own_have_no_markup() -> None:
    from regard.recipe import TokenizerSettings

    ours = Tokenizer.train(["a b"], TokenizerSettings(kind="char"))
    assert ours.encode("<end>", markup=False) == ours.encode("<end>")
    with pytest.raises(RegardError, match="names of special tokens in a text are ordinary text"):
        ours.encode("<end>", markup=True)


def test_saved_equals_loaded(tmp_path: Path) -> None:
    tokenizer = made(Roles(**(vars(ROLES) | {"chat": '{{ messages }} "é"\n', "tidy": True})))
    tokenizer.save(tmp_path / "tokenizer.json")
    assert json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))["regard"]["mask"] == 3
    text = "The cats sat [MASK]."
    for other in (Tokenizer.load(tmp_path / "tokenizer.json"), pickle.loads(pickle.dumps(tokenizer))):
        assert isinstance(other, ForeignTokenizer)
        assert other.roles == tokenizer.roles
        assert other.fingerprint == tokenizer.fingerprint
        assert other.frame == tokenizer.frame
        assert other.encode(text) == tokenizer.encode(text)
        assert other.decode(other.encode(text)) == tokenizer.decode(tokenizer.encode(text))
    library = tokenizers.Tokenizer.from_str(tokenizer.library_json())
    assert library.encode(text).ids == tokenizer.framed(tokenizer.encode(text), Frame())


def test_bytes_are_shown_with_the_space_before_them() -> None:
    tokenizer = ForeignTokenizer(bytes_library(), Roles(pad=256, start=256, end=256))
    assert tokenizer.spaced
    assert tokenizer.frame == Frame()
    assert tokenizer.framed([3], Frame((1,), (2,))) == [3]  # it adds nothing, and says so
    assert "".join(tokenizer.pieces(tokenizer.encode(" a é<|end|>"))) == " a \\xc3\\xa9<|end|>"
    assert tokenizer.decode(tokenizer.encode(" a é<|end|>")) == " a é"
    assert tokenizer.unknown_id is None


def test_a_vocabulary_with_gaps_ends_after_its_last_id() -> None:
    library = tokenizers.Tokenizer(models.WordLevel({"<unk>": 0, "a": 5}, "<unk>"))
    tokenizer = ForeignTokenizer(library, Roles(pad=0, start=0, end=0, unknown=0))
    assert tokenizer.size == 6
    with pytest.raises(RegardError, match="3 is no token; ids go from 0 to 5"):
        tokenizer.pieces([3])


def test_no_mask_token_is_said_when_one_is_needed() -> None:
    with pytest.raises(RegardError, match="has no mask token, so nothing can be masked"):
        _ = made(Roles(pad=0, start=1, end=2)).mask_id


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        ({"pad": 0, "start": 1}, "'regard' key should have .*end.*start"),
        ({"pad": 0, "start": 1, "end": 2, "colour": 3}, "'regard' key should have"),
        ({"pad": 0, "start": 1, "end": "two"}, "names its tokens by their ids"),
        ({"pad": 0, "start": 1, "end": 99}, "has no token 99, which should be its end token"),
        ([], "'regard' key should have"),
    ],
)
def test_roles_that_make_no_sense(roles: Any, message: str, tmp_path: Path) -> None:
    content = json.dumps(roles)
    (tmp_path / "tokenizer.json").write_text(f'{{"regard":{content},{pieces_library()[1:]}', encoding="utf-8")
    with pytest.raises(BundleError, match=message) as error:
        Tokenizer.load(tmp_path / "tokenizer.json")
    assert str(tmp_path / "tokenizer.json") in str(error.value)


@pytest.mark.parametrize("length", [11, 30, 300])
def test_a_file_cut_short_is_named(length: int, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(made().to_json()[:length], encoding="utf-8")
    with pytest.raises(BundleError, match=r"tokenizer\.json: the tokenizer is damaged"):
        Tokenizer.load(tmp_path / "tokenizer.json")


def test_a_foreign_file_that_was_not_imported_says_so(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(pieces_library(), encoding="utf-8")
    with pytest.raises(BundleError, match="it was not made by regard, so use: regard import"):
        Tokenizer.load(tmp_path / "tokenizer.json")

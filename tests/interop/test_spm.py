"""SentencePiece files: the same ids and texts as the sentencepiece library itself gives, whatever its settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from regard.errors import ConversionError
from regard.interop.spm import BYTE_PAIRS, UNIGRAM, library_of, library_with_ids, read_model
from tests.interop.sentences import LINES, PROBES
from tests.interop.test_tokenizers import sentence_pieces, sentencepiece

WITHOUT_NAMES = [text for text in PROBES if "<" not in text]  # special tokens are nothing to SentencePiece


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("rule", ["nmt_nfkc", "identity", "nmt_nfkc_cf"])
@pytest.mark.parametrize("fallback", [False, True])
def test_the_same_ids_as_the_library(kind: str, rule: str, fallback: bool, tmp_path: Path) -> None:
    settings = {"model_type": kind, "normalization_rule_name": rule, "byte_fallback": fallback}
    own = {"user_defined_symbols": ["pain"]} if kind == "unigram" else {}
    sentence_pieces(tmp_path / "m.model", size=400, **settings, remove_extra_whitespaces=rule != "identity", **own)
    original = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "m.model"))
    model = read_model(tmp_path / "m.model")
    assert (model.kind, model.byte_fallback) == (UNIGRAM if kind == "unigram" else BYTE_PAIRS, fallback)
    assert len(model.pieces.texts) == len(original)
    library = library_of(model)
    for text in WITHOUT_NAMES:
        want = original.encode(text)
        assert library.encode(text, add_special_tokens=False).ids == want, text
        if original.unk_id() not in want:
            assert library.decode(want, skip_special_tokens=False) == original.decode(want), text


def test_without_a_space_before_the_text_and_with_pieces_over_spaces(tmp_path: Path) -> None:
    settings = {"add_dummy_prefix": False, "split_by_whitespace": False}
    sentence_pieces(tmp_path / "m.model", LINES * 3, size=300, **settings)
    original = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "m.model"))
    model = read_model(tmp_path / "m.model")
    assert any("▁" in text.strip("▁") for text in model.pieces.texts)
    library = library_of(model)
    for text in WITHOUT_NAMES:
        assert library.encode(text, add_special_tokens=False).ids == original.encode(text), text


def test_ids_of_another_vocabulary_must_be_whole(tmp_path: Path) -> None:
    sentence_pieces(tmp_path / "m.model")
    with pytest.raises(ConversionError, match="has ids that are missing or twice"):
        library_with_ids(read_model(tmp_path / "m.model"), {"<unk>": 0, "a": 2}, {"<unk>"}, "<unk>")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=r"can't read .*nowhere\.spm: No such file"):
        read_model(tmp_path / "nowhere.spm")

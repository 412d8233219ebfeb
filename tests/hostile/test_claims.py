"""What a small file says of itself can be anything: it is held against the file, or against what any model needs, before work begins."""

from __future__ import annotations

import base64
import json
import re
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from regard.bundle import read_config, save_bundle
from regard.config import parse_model
from regard.door import load
from regard.errors import BundleError, ConfigError, ConversionError, CorpusError
from regard.interop.sentences import Sentences
from regard.interop.spm import library_of, read_model
from regard.interop.vocabularies import Kind, Pieces
from regard.models import build
from regard.recipe import TokenizerSettings
from regard.storage import INDEX, LONGEST_HEADER, WEIGHTS, read_tensors
from regard.text.foreign import ForeignTokenizer, Roles
from regard.text.growth import GROWTH
from regard.text.midi import songs, to_events
from regard.text.tokenizer import Tokenizer
from tests.hostile.formats import SHAPE, field, gguf_bytes, gguf_value, learned_pieces, sentence_folder, song, songs_in, written
from tests.text.tunes import WALTZ, midi_file, ticks

# GGUF


def header(tensors: int = 0, keys: int = 0, rest: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + rest


def key(name: str, kind: int, *claim: int) -> bytes:
    """A key whose value is an array that is claimed: the type and number of what is in it."""
    return gguf_value(name)[4:] + struct.pack("<I", kind) + (struct.pack("<IQ", *claim) if claim else b"")


def tensor(name: str = "a", shape: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0) -> bytes:
    return gguf_value(name)[4:] + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


GGUFS = {
    "numbers past the end": (header(0, 1, key("a", 9, 0, 2**62)), "claimed where 0 bytes are left"),
    "texts past the end": (header(0, 1, key("a", 9, 8, 2**62)), "claimed where 0 bytes are left"),
    "more numbers than any model needs": (header(0, 1, key("a", 9, 0, 2**24) + bytes(2**24)), "16,777,217 values|16,777,216 values"),
    "arrays in arrays": (header(0, 1, key("a", 9, 9, 2) + bytes(100)), "a value is of type 9"),
    "a text past the end": (header(0, 1, struct.pack("<Q", 2**63) + bytes(9)), re.escape(f"{2**63:,} bytes are claimed")),
    "an unknown type": (header(0, 1, key("a", 77) + bytes(9)), "a value is of type 77"),
    "keys past the end": (header(0, 2**60, bytes(99)), "values are claimed where 99 bytes are left"),
    "tensors past the end": (header(2**40, 0, bytes(99)), "values are claimed where 99 bytes are left"),
    "the same key twice": (header(0, 2, key("a", 0) + b"1" + key("a", 0) + b"1"), "it says 'a' twice"),
    "the same tensor twice": (header(2, 0, tensor() + tensor(offset=128)) + bytes(512), "it has 'a' twice"),
    "one tensor over another": (header(2, 0, tensor("a") + tensor("b", offset=64)) + bytes(512), "'a' and 'b' lie in the same bytes"),
    "sizes whose product is beyond 64 bits": (header(1, 0, tensor(shape=(2**32, 2**32))) + bytes(512), "'a' ends at byte"),
    "an offset beyond the file": (header(1, 0, tensor(offset=2**63)) + bytes(512), "'a' ends at byte"),
    "more dimensions than there are": (header(1, 0, tensor(shape=(1,) * 5)) + bytes(512), "claimed to have 5 dimensions"),
    "half a block": (header(1, 0, tensor(shape=(33,), kind=2)) + bytes(512), r"'a' of shape \(33,\) can't be stored as Q4_0"),
    "an unknown way of storing": (header(1, 0, tensor(kind=99)) + bytes(512), r"stored in a way that is not known \(99\)"),
    "no alignment": (gguf_bytes({"general.alignment": 0}, {"a": (32,)}), "general.alignment = 0 should be a power of two"),
    "alignment by text": (gguf_bytes({"general.alignment": "32"}, {"a": (32,)}), "general.alignment = '32' should be"),
    "the other byte order": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "machines of the other byte order"),
    "version 1": (header(version=1), "its version is 1"),
}


@pytest.mark.parametrize(("content", "message"), GGUFS.values(), ids=GGUFS)
def test_gguf(content: bytes, message: str, tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="needs the extra interop")
    from regard.interop.gguf import read_gguf

    (tmp_path / "a.gguf").write_bytes(content)
    with pytest.raises(ConversionError, match=rf"a\.gguf is cut off or damaged \(.*({message}).*\); copy it again"):
        read_gguf(tmp_path / "a.gguf")


def test_gguf_with_holes(tmp_path: Path) -> None:
    """A file may be as long as it claims and yet take no room on a disk."""
    pytest.importorskip("gguf", reason="needs the extra interop")
    from regard.interop.gguf import read_gguf

    for number, content in enumerate(
        (header(2**34), header(0, 2**34), header(0, 1, key("a", 9, 8, 2**34)), header(0, 1, key("a", 9, 0, 2**34)))
    ):
        with (tmp_path / f"{number}.gguf").open("wb") as file:
            file.write(content)
            file.truncate(2**40)
        with pytest.raises(ConversionError, match=r"17,179,869,184 values are claimed"):
            read_gguf(tmp_path / f"{number}.gguf")


# SentencePiece and bare vocabularies


def test_a_number_of_sentencepiece_that_does_not_end(tmp_path: Path) -> None:
    (tmp_path / "a.model").write_bytes(field(1, field(1, b"a")) + b"\xff" * 1_000_000)
    with pytest.raises(ConversionError, match=r"a\.model is damaged or no SentencePiece model"):
        read_model(tmp_path / "a.model")


def test_a_token_that_stands_twice_is_found_at_once() -> None:
    texts = [str(number) for number in range(100_000)]
    with pytest.raises(ConversionError, match="has the token '99999' twice"):
        Pieces([*texts, "99999"])


def test_a_token_that_could_be_merged_in_too_many_ways() -> None:
    pieces = Pieces(["a", "a" * 100_000], [Kind.NORMAL] * 2, [0.0, -1.0])
    with pytest.raises(ConversionError, match="has a token of 100,000 characters"):
        pieces.pairs()


# safetensors


def test_a_list_of_tensors_without_end(tmp_path: Path) -> None:
    size = LONGEST_HEADER + 1
    (tmp_path / WEIGHTS).write_bytes(size.to_bytes(8, "little") + b"{" + b" " * size)
    with pytest.raises(BundleError, match=r"lists its tensors in 8,388,609 bytes, which is far more than any model has"):
        read_tensors(tmp_path)


def test_a_list_of_files_with_names_too_long(tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "a" * 300}}))
    with pytest.raises(BundleError, match=r"a is missing, though model\.safetensors\.index\.json names it"):
        read_tensors(tmp_path)


def test_a_list_of_parts_in_folders_with_names_too_long(tmp_path: Path) -> None:
    file = sentence_folder(tmp_path)
    file.write_text(file.read_text().replace('"path": ""', f'"path": "{"a" * 300}"'))
    with pytest.raises(ConversionError, match=r"can't read .*aaa.*: File name too long"):
        Sentences.read(tmp_path)


# Configs


def test_a_number_of_thousands_of_digits(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"kind": "lm", "vocabulary": ' + "9" * 5000 + "}")
    with pytest.raises(BundleError, match=r"config\.json has a number of more digits than any setting"):
        read_config(tmp_path)


@pytest.mark.parametrize("vocabulary", [2**62, 10**400], ids=["64 bits", "beyond"])
def test_a_model_larger_than_can_be_counted(vocabulary: int) -> None:
    with pytest.raises(ConfigError, match=r"vocabulary' = [0-9]+.*less than or equal to"):
        parse_model({"kind": "lm", **SHAPE, "vocabulary": vocabulary})


# Music


@pytest.mark.parametrize("name", ["a.mid", "a.zip", "a.tar.gz"])
def test_a_song_without_end(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.text.midi.LONGEST_SONG", 100)
    file = songs_in(name)(tmp_path) if name != "a.mid" else written(name, song())(tmp_path)
    with pytest.raises(CorpusError, match=r"a\.mid is far too long for a song; take it out"):
        list(songs(file))


@pytest.mark.parametrize("size", [2**40, 2**63, 2**80])
def test_a_tar_that_has_much_to_say_of_a_file(size: int, tmp_path: Path) -> None:
    member = tarfile.TarInfo("a.mid")
    member.type, member.size = tarfile.GNUTYPE_LONGNAME, size
    (tmp_path / "a.tar").write_bytes(member.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    with pytest.raises(CorpusError, match=r"a\.tar is damaged or cut short \(what it says about a file has no end\)"):
        list(songs(tmp_path / "a.tar"))


def test_a_zip_that_was_locked_or_packed_in_an_unknown_way(tmp_path: Path) -> None:
    file = songs_in("a.zip")(tmp_path)
    whole = file.read_bytes()
    directory = whole.index(b"PK\1\2")
    for place, message in ((8, "encrypted"), (10, "compression method")):
        changed = bytearray(whole)
        changed[directory + place] = changed[place - 2] = 1 if place == 8 else 77
        file.write_bytes(changed)
        with pytest.raises(CorpusError, match=rf"a\.zip is damaged or cut short \(.*{message}"):
            list(songs(file))


def test_notes_that_lie_far_apart() -> None:
    notes = [*ticks(WALTZ), (1 << 20, 4, 60, 80)]
    with pytest.raises(CorpusError, match=r"a\.mid has a note after 349,\d+ bars"):
        to_events(midi_file(notes, 3, division=1), "a.mid")


def test_a_beat_without_time() -> None:
    with pytest.raises(CorpusError, match=r"a\.mid says that a beat has no time"):
        to_events(midi_file(ticks(WALTZ), 3, division=0), "a.mid")
    assert to_events(midi_file(ticks(WALTZ), 0), "a.mid").startswith("Bar Beats_")


# Tokenizers

LETTERS = {text: id for id, text in enumerate(["<pad>", "<start>", "<end>", "<mask>", *"abé ▁"])}
Change = Callable[[tokenizers.Tokenizer], None]


def library() -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer(models.BPE(dict(LETTERS), [], unk_token="a"))


PARTS = {"normalizer": normalizers, "pre_tokenizer": pre_tokenizers, "decoder": decoders, "post_processor": processors}


def set_part(part: str, *steps: Any) -> Change:
    return lambda made: setattr(made, part, PARTS[part].Sequence(list(steps)))


def set_model(kind: Any, **settings: Any) -> Change:
    return lambda made: setattr(made, "model", kind(LETTERS, **settings))


def set_ids(ids: dict[str, int]) -> Change:
    return lambda made: setattr(made, "model", models.BPE(ids, []))


DOUBLE = tokenizers.normalizers.Replace("a", "aa")
TWICE = processors.TemplateProcessing(single="$A $A", special_tokens=[])
FRAME = processors.TemplateProcessing(single="[X] $A", special_tokens=[{"id": "[X]", "ids": [0] * 2000, "tokens": ["a"] * 2000}])
GROW, WORDS = "make texts grow without bound", "longer than any language has"
GROWING = {
    "each letter becomes two, 24 times": (set_part("normalizer", *[DOUBLE] * 24), GROW),
    "31 times": (set_part("normalizer", *[DOUBLE] * 31), GROW),
    "a letter becomes many": (set_part("normalizer", normalizers.Replace("a", "a" * 1000)), GROW),
    "what stands between letters": (set_part("normalizer", normalizers.Replace("", "a" * 1000)), GROW),
    "a pattern that stands for nothing": (set_part("normalizer", normalizers.Replace(tokenizers.Regex("b*"), "a" * 1000)), GROW),
    "a beginning": (set_part("normalizer", normalizers.Prepend("a" * 1000)), GROW),
    "in a sequence of sequences": (set_part("normalizer", normalizers.Sequence([DOUBLE] * 6), normalizers.Sequence([DOUBLE] * 6)), GROW),
    "by Unicode, again and again": (set_part("normalizer", *[normalizers.Replace(" ", "ﷺ"), normalizers.NFKD()] * 4), GROW),
    "bytes of bytes": (set_part("pre_tokenizer", *[pre_tokenizers.ByteLevel()] * 8), GROW),
    "on the way back": (set_part("decoder", *[decoders.Replace("a", "aa")] * 24), GROW),
    "steps without end": (set_part("normalizer", *[normalizers.Strip()] * 1000), GROW),
    "the text twice": (set_part("post_processor", TWICE), "or the text itself twice"),
    "a long frame": (set_part("post_processor", FRAME), "more around a text than any model reads"),
    "long words": (set_model(models.WordPiece, unk_token="a", max_input_chars_per_word=10**9), WORDS),
    "long ends of words": (set_model(models.BPE, merges=[], end_of_word_suffix="a" * 10**5), WORDS),
    "ids far apart": (set_ids({**LETTERS, "c": 2**31}), "ids far beyond its 10 tokens"),
    "a long token": (lambda made: made.add_tokens(["a" * 10**5]), "a token of more than 16,384 characters"),
}


@pytest.mark.parametrize(("change", "message"), GROWING.values(), ids=GROWING)
def test_a_tokenizer_that_would_make_texts_grow(change: Change, message: str) -> None:
    made = library()
    change(made)
    with pytest.raises(BundleError, match=rf"the tokenizer.*{message}.*; don't trust it"):
        ForeignTokenizer(made, Roles(0, 1, 2))


def test_a_frame_of_a_token_that_is_not_said() -> None:
    made = library()
    made.post_processor = processors.TemplateProcessing(single="[X] $A", special_tokens=[("[X]", 1)])
    said = json.loads(made.to_str())
    said["post_processor"]["special_tokens"] = {}
    with pytest.raises(BundleError, match=r"puts '\[X\]' around a text and does not say what that is"):
        Tokenizer.from_json('{"regard":{"pad":0,"start":1,"end":2},' + json.dumps(said)[1:])


def test_rules_for_characters_that_make_long_texts() -> None:
    made = library()
    rules = json.loads(made.to_str())
    texts = b"a" * (GROWTH + 1) + b"\0"
    compiled = base64.b64encode(struct.pack("<I", 4) + bytes(4) + texts).decode()
    rules["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": compiled}
    with pytest.raises(BundleError, match="make texts grow without bound"):
        ForeignTokenizer(tokenizers.Tokenizer.from_str(json.dumps(rules)), Roles(0, 1, 2))


@pytest.mark.parametrize("rules", ["nmt_nfkc", "nmt_nfkc_cf", "identity"])
def test_what_others_learned_is_within_these_bounds(rules: str, tmp_path: Path) -> None:
    """The longest chain of steps that is known, XLNet's, around SentencePiece's own rules."""
    pytest.importorskip("sentencepiece", reason="needs the extra interop")
    made = library_of(read_model(learned_pieces(tmp_path, rules)))
    steps = [normalizers.Replace("``", '"'), normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase(), made.normalizer]
    made.normalizer = normalizers.Sequence([*steps, normalizers.Replace(tokenizers.Regex(" {2,}"), " ")])
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    assert ForeignTokenizer(made, Roles(0, 1, 2)).encode("a  a")


def test_padding_and_cutting_are_left_out(tmp_path: Path) -> None:
    """A tokenizer of ours has neither; in a file that says otherwise, each text would become a billion tokens, or none."""
    made = Tokenizer.train(["a b"], TokenizerSettings(size=260))
    plain = made.encode("ab")
    said = json.loads(made.to_json())
    said["padding"] = {
        "strategy": {"Fixed": 10**9},
        "direction": "Right",
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "a",
        "pad_to_multiple_of": None,
    }
    said["truncation"] = {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}
    (tmp_path / "tokenizer.json").write_text(json.dumps(said))
    assert Tokenizer.load(tmp_path / "tokenizer.json").encode("ab") == plain
    assert len(plain) == 3  # and the space before them


def test_a_panic_is_an_error() -> None:
    made = library()
    made.pre_tokenizer = pre_tokenizers.Split(
        tokenizers.Regex("(a+)+b"), "isolated"
    )  # the library gives up where a search goes on for too long
    tokenizer = ForeignTokenizer(made, Roles(0, 1, 2))
    with pytest.raises(BundleError, match="the tokenizer is damaged or of another format"):
        tokenizer.encode("a" * 60)


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        ({"pad": -1}, "names its tokens by their ids"),
        ({"end": 2**70}, "has no token 1180591620717411303424, which should be its end token"),
        ({"unknown_from": -5, "unknown": 1}, "names its tokens by their ids"),
        ({"unknown_from": 4}, "no such unknown token"),
        ({"unknown_from": 4, "unknown": 4}, "no such unknown token"),
        ({"chat": 5}, "a 'chat' that is no text"),
    ],
)
def test_roles_of_tokens_that_are_not_there(roles: dict[str, Any], message: str) -> None:
    said = json.dumps({"pad": 0, "start": 1, "end": 2} | roles)
    with pytest.raises(BundleError, match=message):
        Tokenizer.from_json(f'{{"regard":{said},{library().to_str()[1:]}')


def test_ids_beyond_the_models(tmp_path: Path) -> None:
    """Each would be looked up where there is no row: by a gap in a vocabulary of ours, in a frame, or as padding."""
    gap = library()
    gap.model = models.BPE(LETTERS | {"b": 99}, [], unk_token="a")
    gap.add_special_tokens(["<pad>", "<start>", "<end>", "<mask>"])
    with pytest.raises(BundleError, match="ids are not those from 0 on"):
        Tokenizer(gap)
    framed = library()
    framed.post_processor = processors.TemplateProcessing(single="a $A", special_tokens=[("a", 99)])
    with pytest.raises(BundleError, match="puts tokens around a text that it does not have"):
        ForeignTokenizer(framed, Roles(0, 1, 2))
    ForeignTokenizer(library(), Roles(99, 1, 2)).save(tmp_path / "padded.json")
    network = build(parse_model({"kind": "lm", "vocabulary": len(LETTERS), **SHAPE}))
    with pytest.raises(BundleError, match="they don't belong together"):
        load(save_bundle(network, tmp_path / "bundle", tokenizer=tmp_path / "padded.json"), device="cpu")


def test_a_token_that_stands_for_no_bytes() -> None:
    said = json.loads(
        Tokenizer.train(["a b"], __import__("regard.recipe", fromlist=["a"]).TokenizerSettings(kind="bpe", size=270)).to_json()
    )
    said["model"]["vocab"] = {("你" if text == "Ā" else text): id for text, id in said["model"]["vocab"].items()}
    tokenizer = Tokenizer.from_json(json.dumps(said))
    with pytest.raises(BundleError, match="token '你' stands for no bytes"):
        tokenizer.pieces([said["model"]["vocab"]["你"]])

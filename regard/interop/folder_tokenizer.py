"""The tokenizer of a Hugging Face folder, from whichever files it has, with the same ids as transformers gives.

A tokenizer.json is taken as it is. Older folders have the vocabulary in files of its own kind (vocab.txt; vocab.json and merges.txt; a
SentencePiece model), and how it is used is known by the architecture. What else matters stands in tokenizer_config.json and beside it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from regard.config import ModelConfig
from regard.errors import ConversionError
from regard.interop.parts import reading
from regard.interop.spm import library_of, library_with_ids, read_model
from regard.interop.vocabularies import Kind, Pieces, over_bytes
from regard.storage import read_json
from regard.text.foreign import ForeignTokenizer, Roles
from regard.text.library import open_library, trusted

NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")  # in the order they are added
BERT = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"}
ROBERTA = {"bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>", "unk_token": "<unk>", "pad_token": "<pad>",
           "mask_token": "<mask>"}  # fmt: skip
SENTENCEPIECE = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
# What an architecture's tokenizer calls its tokens, where a folder does not say.
NAMES = {
    "bert": BERT,
    "distilbert": BERT,
    "roberta": ROBERTA,
    "bart": ROBERTA,
    "gpt2": {"eos_token": "<|endoftext|>"},
    "qwen2": {"eos_token": "<|endoftext|>"},
    "llama": SENTENCEPIECE,
    "t5": {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
    "marian": {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
}
LANGUAGE_MODELS = ("gpt2", "qwen2", "llama")  # whose tokenizers are of many kinds: what a tokenizer.json does not name is not there
SPLITTING = {"qwen2": "qwen2"}  # of byte-level BPE in vocab.json and merges.txt; the others split as GPT-2 does


@dataclass(frozen=True)
class Folder:
    """A folder and what it says of its tokenizer, beside the tokenizer itself."""

    path: Path
    kind: str  # of the architecture
    config: ModelConfig
    settings: dict[str, Any]  # tokenizer_config.json
    names: dict[str, str]  # of the tokens in each role
    added: dict[int, AddedToken]

    @classmethod
    def read(cls, path: Path, kind: str, config: ModelConfig) -> Folder:
        settings = _optional(path / "tokenizer_config.json")
        said = _optional(path / "special_tokens_map.json") | {key: value for key, value in settings.items() if value is not None}
        own = {} if kind in LANGUAGE_MODELS and (path / "tokenizer.json").is_file() else NAMES[kind]
        names = own | {role: _content(said[role]) for role in NAMED if said.get(role)}
        added = {id: AddedToken(name, special=False) for name, id in _optional(path / "added_tokens.json").items()}
        for id, token in (settings.get("added_tokens_decoder") or {}).items():
            added[int(id)] = AddedToken(**{key: value for key, value in token.items() if key != "id"})
        return cls(path, kind, config, settings, names, added)

    def has(self, *names: str) -> bool:
        return all((self.path / name).is_file() for name in names)

    @property
    def extra(self) -> list[str]:
        """Special tokens without a role."""
        listed = self.settings.get("additional_special_tokens") or self.settings.get("extra_special_tokens") or []
        return [_content(token) for token in (listed.values() if isinstance(listed, dict) else listed)]


def read_tokenizers(path: Path, kind: str, config: ModelConfig) -> tuple[ForeignTokenizer, ForeignTokenizer | None] | None:
    """The tokenizer of what a model writes and of what it reads, and that of the latter where it is another; None: the folder has none."""
    with reading(path):
        folder = Folder.read(path, kind, config)
        if folder.has("source.spm", "target.spm", "vocab.json"):
            return _marian(folder, "target.spm"), _marian(folder, "source.spm")
        library = _library(folder)
        return None if library is None else (_finished(folder, library), None)


def _library(folder: Folder) -> tokenizers.Tokenizer | None:
    path = folder.path
    if folder.has("tokenizer.json"):
        library, _ = trusted(open_library((path / "tokenizer.json").read_text(encoding="utf-8")))
        return _as_said(folder, library)
    if folder.kind in ("bert", "distilbert") and folder.has("vocab.txt"):
        return _word_pieces(folder)
    if folder.kind in ("gpt2", "roberta", "bart", "qwen2", "llama") and folder.has("vocab.json", "merges.txt"):
        return _byte_pairs(folder)
    if model := next((name for name in ("spiece.model", "tokenizer.model") if folder.has(name)), None):
        return _sentence_pieces(folder, path / model)
    if left := next((name for name in ("vocab.txt", "vocab.json", "source.spm") if folder.has(name)), None):
        raise ConversionError(
            f"{path} has a {left} but not what goes with it for a {folder.kind} model; complete the folder, or write it anew with "
            "AutoTokenizer.from_pretrained(…).save_pretrained(…)"
        )
    return None


def _as_said(folder: Folder, library: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """With what tokenizer_config.json says otherwise, as transformers has it."""
    said, normalizer, splitter = folder.settings, library.normalizer, library.pre_tokenizer
    if isinstance(normalizer, normalizers.BertNormalizer):
        for ours, theirs in (("lowercase", "do_lower_case"), ("strip_accents",) * 2, ("handle_chinese_chars", "tokenize_chinese_chars")):
            if theirs in said:
                setattr(normalizer, ours, said[theirs])
        library.normalizer = normalizer
    if isinstance(splitter, pre_tokenizers.ByteLevel) and "add_prefix_space" in said:
        splitter.add_prefix_space = bool(said["add_prefix_space"])
        library.pre_tokenizer = splitter
    if folder.config.kind == "lm" and ("add_bos_token" in said or "add_eos_token" in said):
        before = [folder.names["bos_token"]] if said.get("add_bos_token") and "bos_token" in folder.names else []
        after = [folder.names["eos_token"]] if said.get("add_eos_token") and "eos_token" in folder.names else []
        _frame(library, before, after)
    return library


def _word_pieces(folder: Folder) -> tokenizers.Tokenizer:
    lines = (folder.path / "vocab.txt").read_text(encoding="utf-8").split("\n")
    vocabulary = {token.rstrip("\r"): id for id, token in enumerate(lines[:-1] if not lines[-1] else lines)}
    said, names = folder.settings, folder.names
    library = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=names["unk_token"]))
    library.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=said.get("tokenize_chinese_chars", True),
        strip_accents=said.get("strip_accents"),
        lowercase=said.get("do_lower_case", True),
    )
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece(prefix="##")
    return _frame(library, [names["cls_token"]], [names["sep_token"]])


def _byte_pairs(folder: Folder) -> tokenizers.Tokenizer:
    ids = read_json(folder.path / "vocab.json")
    lines = (folder.path / "merges.txt").read_text(encoding="utf-8").splitlines()
    merges = [line for line in lines[1 if lines and lines[0].startswith("#version") else 0 :] if line.strip()]
    texts = sorted(ids, key=ids.__getitem__)
    if [ids[text] for text in texts] != list(range(len(texts))):
        raise ConversionError(f"{folder.path / 'vocab.json'} has ids that are missing or twice; copy it again")
    special = set(folder.names.values())
    pieces = Pieces(texts, [Kind.CONTROL if text in special else Kind.NORMAL for text in texts], merges=merges)
    library = over_bytes(pieces, SPLITTING.get(folder.kind, "gpt-2"), space_first=bool(folder.settings.get("add_prefix_space")))
    if folder.kind in ("roberta", "bart"):
        mask = AddedToken(folder.names["mask_token"], special=True, lstrip=True, normalized=False)
        library.add_special_tokens([mask])
        return _frame(library, [folder.names["cls_token"]], [folder.names["sep_token"]])
    start = [folder.names["bos_token"]] if folder.settings.get("add_bos_token") else []
    return _frame(library, start, [])


def _sentence_pieces(folder: Folder, path: Path) -> tokenizers.Tokenizer:
    library = library_of(read_model(path))
    said, names = folder.settings, folder.names
    if folder.kind == "t5":
        count = int(said.get("extra_ids", 100))
        extra = [f"<extra_id_{number}>" for number in reversed(range(count))]
        library.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in extra])
        return _frame(library, [], [names["eos_token"]])
    start, end = said.get("add_bos_token", True), said.get("add_eos_token", False)
    return _frame(library, [names["bos_token"]] if start else [], [names["eos_token"]] if end else [])


def _marian(folder: Folder, name: str) -> ForeignTokenizer:
    """One side of a translator: its own splitting, and one vocabulary for both."""
    if folder.settings.get("separate_vocabs"):
        raise ConversionError(f"{folder.path} has a vocabulary for each side (separate_vocabs), which can't be imported")
    ids = read_json(folder.path / "vocab.json")
    unknown = folder.names["unk_token"]
    if unknown not in ids:
        raise ConversionError(f"{folder.path / 'vocab.json'} lacks {unknown}; copy it again from where it came")
    languages = [token for token in ids if token.startswith(">>") and token.endswith("<<")]
    library = library_with_ids(read_model(folder.path / name), ids, {*folder.names.values(), *languages}, unknown)
    library.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in languages])
    _frame(library, [], [folder.names["eos_token"]])
    return _finished(folder, library, unknown_from=len(ids))


def _frame(library: tokenizers.Tokenizer, before: list[str], after: list[str]) -> tokenizers.Tokenizer:
    """Puts these tokens around every text."""
    ids = {name: library.token_to_id(name) for name in (*before, *after)}
    missing = next((name for name, id in ids.items() if id is None), None)
    if missing is not None:
        raise ConversionError(f"the tokenizer's vocabulary lacks {missing}, which belongs around every text; copy it again")
    if not ids:
        library.post_processor = processors.ByteLevel(trim_offsets=False)  # which adds nothing
        return library
    # A name may have a colon or a space in it, which a template can't.
    own = {name: f"token{place}" for place, name in enumerate(ids)}
    special = [{"id": own[name], "ids": [id], "tokens": [name]} for name, id in ids.items()]
    around = [*(own[name] for name in before), "$A", *(own[name] for name in after)]
    library.post_processor = processors.TemplateProcessing(single=around, pair=[*around, "$B:1"], special_tokens=special)
    return library


def _finished(folder: Folder, library: tokenizers.Tokenizer, unknown_from: int | None = None) -> ForeignTokenizer:
    """With all its tokens known, those that the model has no place for left out, and each in its role."""
    library.add_tokens([folder.added[id] for id in sorted(folder.added) if library.id_to_token(id) != folder.added[id].content])
    special = {token.content for token in library.get_added_tokens_decoder().values() if token.special}
    names = [folder.names[role] for role in NAMED if role in folder.names]
    for name in dict.fromkeys((*names, *folder.extra)):
        if name not in special and (library.token_to_id(name) is not None or library.get_vocab_size() < folder.config.vocabulary):
            library.add_special_tokens([AddedToken(name, special=True, normalized=False)])
    content = json.loads(library.to_str())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["id"] < folder.config.vocabulary]
    library = open_library(json.dumps(content, ensure_ascii=False))
    return ForeignTokenizer(library, _roles(folder, library, content, unknown_from))


def _roles(folder: Folder, library: tokenizers.Tokenizer, content: dict[str, Any], unknown_from: int | None) -> Roles:
    config, names = folder.config, folder.names

    def id_of(role: str) -> int | None:
        id = library.token_to_id(names[role]) if role in names else None
        return id if id is not None and id < config.vocabulary else None

    start, end = config.start_token, config.end_token
    if config.kind == "encoder":
        first, final = id_of("cls_token"), id_of("sep_token")
        start, end = start if first is None else first, end if final is None else final
    unknown = content["model"].get("unk_token")
    by_id = content["model"].get("unk_id")
    known = id_of("pad_token")
    return Roles(
        pad=known if config.kind == "encoder" and known is not None else config.pad_token,
        start=start,
        end=end,
        mask=id_of("mask_token"),
        unknown=library.token_to_id(unknown) if unknown is not None else by_id,
        tidy=bool(folder.settings.get("clean_up_tokenization_spaces")) and content["model"]["type"] != "BPE",
        chat=_chat(folder),
        unknown_from=unknown_from,
    )


def _chat(folder: Folder) -> str | None:
    if folder.has("chat_template.jinja"):
        return (folder.path / "chat_template.jinja").read_text(encoding="utf-8")
    said = folder.settings.get("chat_template")
    if isinstance(said, list):  # several, by name
        said = next((each["template"] for each in said if each.get("name") == "default"), None)
    return said if isinstance(said, str) else None


def _content(token: Any) -> str:
    """The text of a token that may be said with its settings."""
    text = token.get("content") if isinstance(token, dict) else token
    if not isinstance(text, str):
        raise TypeError(f"a token should be a text, not {text!r}")
    return text


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}

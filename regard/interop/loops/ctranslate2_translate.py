"""Translates with CTranslate2: python translate.py "I love you." --to it, or lines of standard input."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
BATCH = 64


class Translator:
    """Text to text. The tokenizer and the names of its tokens lie beside the model."""

    def __init__(self, folder: Path = FOLDER, device: str = "auto", threads: int = 0) -> None:
        import ctranslate2
        import tokenizers

        self.settings: dict[str, Any] = json.loads((folder / "regard.json").read_text(encoding="utf-8"))
        self.writes: Any = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        other = folder / "source_tokenizer.json"
        self.reads: Any = tokenizers.Tokenizer.from_file(str(other)) if other.is_file() else self.writes
        self.reads.encode_special_tokens = not self.settings["markup"]
        self.model: Any = ctranslate2.Translator(str(folder), device=device, intra_threads=threads)

    def tokens(self, text: str, to: str | None = None) -> list[str]:
        """What the model reads: the language to write, the text, and the end."""
        tags = self.settings["tags"]
        if tags and to not in tags:
            raise SystemExit(f"say which language to write with --to: {', '.join(tags)}")
        ids = [*([tags[to]] if tags else []), *self.reads.encode(text, add_special_tokens=False).ids]
        room = self.settings["context"] - len(self.settings["before"]) - len(self.settings["after"])
        return self._names([*self.settings["before"], *ids[:room], *self.settings["after"]])

    def translate(self, texts: Sequence[str], to: str | None = None, beam_size: int = 4) -> list[str]:
        sources = [self.tokens(text, to) for text in texts]
        limits = [min(self.settings["context"], 16 + 2 * len(source)) for source in sources]
        opening = [self.writes.id_to_token(id) for id in self.settings["opening"]]
        found = self.model.translate_batch(
            sources,
            [opening] * len(sources) if opening else None,
            beam_size=beam_size,
            max_decoding_length=max(limits),
            suppress_sequences=[[name] for id in self.settings["never"] if (name := self.writes.id_to_token(id))] or None,
            end_token=self.settings["end"],
        )
        outputs = [
            [self.writes.token_to_id(token) for token in result.hypotheses[0][:limit]] for result, limit in zip(found, limits, strict=True)
        ]
        return [self.writes.decode(ids) if text.strip() else "" for text, ids in zip(texts, outputs, strict=True)]

    def _names(self, ids: Sequence[int]) -> list[str]:
        return [self.reads.id_to_token(id) for id in ids]


def batches(lines: Sequence[str] | None) -> Iterator[list[str]]:
    batch: list[str] = []
    for line in lines or sys.stdin:
        batch.append(line.rstrip("\n"))
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", nargs="*", help="texts; without any, lines of standard input")
    parser.add_argument("--to", help="the language to write, for a model that knows several")
    parser.add_argument("--beam-size", type=int, default=4, help="1 is greedy")
    wanted = parser.parse_args()
    translator = Translator()
    for batch in batches(wanted.texts):
        print("\n".join(translator.translate(batch, wanted.to, wanted.beam_size)), flush=True)


if __name__ == "__main__":
    main()

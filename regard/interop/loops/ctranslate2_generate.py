"""Continues a text with CTranslate2: python generate.py "Once upon a time" --length 40"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent


class Generator:
    """Prompts to their continuations. The tokenizer and the names of its tokens lie beside the model."""

    def __init__(self, folder: Path = FOLDER, device: str = "auto", threads: int = 0) -> None:
        import ctranslate2
        import tokenizers

        self.settings: dict[str, Any] = json.loads((folder / "regard.json").read_text(encoding="utf-8"))
        self.library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.library.encode_special_tokens = not self.settings["markup"]
        self.model: Any = ctranslate2.Generator(str(folder), device=device, intra_threads=threads)

    def ids(self, prompt: str) -> list[int]:
        """What the model reads: the start, and the prompt."""
        return [*self.settings["before"], *self.library.encode(prompt, add_special_tokens=False).ids] or [self.settings["start"]]

    def generate(self, prompts: Sequence[str], length: int = 40, temperature: float = 0.0) -> list[str]:
        """Greedy unless there is a temperature."""
        given = [self.ids(prompt) for prompt in prompts]
        chance = {"sampling_topk": 0, "sampling_temperature": temperature} if temperature > 0 else {"sampling_topk": 1}
        found = self.model.generate_batch(
            [[self.library.id_to_token(id) for id in ids] for ids in given],
            max_length=max(1, min(length, self.settings["context"] - max(map(len, given)))),
            suppress_sequences=[[name] for id in self.settings["never"] if (name := self.library.id_to_token(id))] or None,
            end_token=self.settings["end"],
            include_prompt_in_result=False,
            **chance,
        )
        return [self._continued(ids, result.sequences_ids[0]) for ids, result in zip(given, found, strict=True)]

    def _continued(self, given: list[int], written: list[int]) -> str:
        """The text of what was written, with the space that may stand before it."""
        before, whole = self.library.decode(given), self.library.decode([*given, *written])
        return whole[len(before) :] if whole.startswith(before) else self.library.decode(written)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompts", nargs="+")
    parser.add_argument("--length", type=int, default=40, help="tokens written at most")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 takes the likeliest word each time")
    wanted = parser.parse_args()
    for prompt, text in zip(wanted.prompts, Generator().generate(wanted.prompts, wanted.length, wanted.temperature), strict=True):
        print(prompt + text)


if __name__ == "__main__":
    main()

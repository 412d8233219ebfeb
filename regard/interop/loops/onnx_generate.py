"""Continues a text with ONNX Runtime: python generate.py "Once upon a time" --length 40

The loop needs numpy and onnxruntime; text needs tokenizers as well. Greedy: the likeliest word each time.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).resolve().parent


class Loop:
    """Token ids to token ids. Prompts are padded on the left, so that all of them go on at the same place."""

    def __init__(self, folder: Path = FOLDER, threads: int = 0) -> None:
        import onnxruntime

        self.settings: dict[str, Any] = json.loads((folder / "regard.json").read_text(encoding="utf-8"))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        path = str(folder / "decoder-with-cache.onnx")
        self.model = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def greedy(self, prompts: Sequence[Sequence[int]], limits: Sequence[int]) -> list[list[int]]:
        """What the model writes after each prompt, at most so many tokens; the end token is left out."""
        known, rows = self.settings, len(prompts)
        length = max(map(len, prompts))
        words = np.array([[*[known["pad"]] * (length - len(prompt)), *prompt] for prompt in prompts], np.int64)
        mask = np.array([[0] * (length - len(prompt)) + [1] * len(prompt) for prompt in prompts], np.int64)
        layers, heads, width = known["cache"]
        key = value = np.zeros((layers, rows, heads, 0, width), np.float32)
        more = {"prefix": np.array([length], np.int64)} if known["prefix"] else {}
        written: list[list[int]] = [[] for _ in prompts]
        open_rows = set(range(rows))
        for place in range(max(limits)):
            logits, key, value = self.model.run(None, {"ids": words, "mask": mask, "key": key, "value": value, **more})
            scores = logits[:, -1]
            scores[:, known["never"]] = -np.inf
            words = scores.argmax(-1)[:, None].astype(np.int64)
            mask = np.concatenate((mask, np.ones((rows, 1), np.int64)), 1)
            for row in sorted(open_rows):
                word, full = int(words[row, 0]), len(prompts[row]) + len(written[row]) >= known["context"]
                if word in known["end"] or place >= limits[row] or full:
                    open_rows.discard(row)
                else:
                    written[row].append(word)
            if not open_rows or mask.sum(1).max() > known["context"]:
                break
        return written


def generate(prompts: Sequence[str], length: int = 40, folder: Path = FOLDER) -> list[str]:
    import tokenizers

    loop = Loop(folder)
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    library.encode_special_tokens = not loop.settings["markup"]
    before, start = loop.settings["before"], loop.settings["start"]
    given = [[*before, *library.encode(prompt, add_special_tokens=False).ids] or [start] for prompt in prompts]
    found = []
    for ids, written in zip(given, loop.greedy(given, [length] * len(given)), strict=True):
        before, whole = library.decode(ids), library.decode([*ids, *written])
        found.append(whole[len(before) :] if whole.startswith(before) else library.decode(written))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompts", nargs="+")
    parser.add_argument("--length", type=int, default=40, help="tokens written at most")
    wanted = parser.parse_args()
    for prompt, text in zip(wanted.prompts, generate(wanted.prompts, wanted.length), strict=True):
        print(prompt + text)


if __name__ == "__main__":
    main()

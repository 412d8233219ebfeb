"""Reads texts with ONNX Runtime: python read.py "what a lovely film" gives the probability of each label, or a vector, for each.

Needs numpy, onnxruntime and tokenizers.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).resolve().parent


class Reader:
    """Texts to what the model's heads say of them."""

    def __init__(self, folder: Path = FOLDER, threads: int = 0) -> None:
        import onnxruntime
        import tokenizers

        self.settings: dict[str, Any] = json.loads((folder / "regard.json").read_text(encoding="utf-8"))
        self.library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.library.encode_special_tokens = not self.settings["markup"]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        self.model = onnxruntime.InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])

    def ids(self, text: str) -> list[int]:
        """What the model reads: the text between start and end, cut where it is too long."""
        before, after = self.settings["before"], self.settings["after"]
        room = self.settings["context"] - len(before) - len(after)
        return [*before, *self.library.encode(text, add_special_tokens=False).ids[:room], *after]

    def run(self, rows: Sequence[Sequence[int]]) -> dict[str, Any]:
        """Every output of the graph, by its name."""
        length, pad = max(map(len, rows)), self.settings["pad"]
        ids = np.array([[*row, *[pad] * (length - len(row))] for row in rows], np.int64)
        mask = np.array([[1] * len(row) + [0] * (length - len(row)) for row in rows], np.int64)
        return dict(
            zip((output.name for output in self.model.get_outputs()), self.model.run(None, {"ids": ids, "mask": mask}), strict=True)
        )

    def classify(self, texts: Sequence[str]) -> list[dict[str, float]]:
        """The probability of each label."""
        logits = self.run([self.ids(text) for text in texts])["labels"]
        chances = np.exp(logits - logits.max(-1, keepdims=True))
        return [dict(zip(self.settings["labels"], (row / row.sum()).tolist(), strict=True)) for row in chances]

    def vectors(self, texts: Sequence[str]) -> Any:
        """(texts, width)"""
        return self.run([self.ids(text) for text in texts])["vector"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", nargs="+")
    wanted = parser.parse_args()
    reader = Reader()
    for text in wanted.texts:
        print(json.dumps(reader.classify([text])[0] if reader.settings["labels"] else reader.vectors([text])[0].tolist()))


if __name__ == "__main__":
    main()

"""Translates with ONNX Runtime: python translate.py "I love you." --to it

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
    """Token ids to token ids. The source is read once; then each word is chosen from all before it, which the cache remembers."""

    def __init__(self, folder: Path = FOLDER, threads: int = 0) -> None:
        import onnxruntime

        self.folder = folder
        self.settings: dict[str, Any] = json.loads((folder / "regard.json").read_text(encoding="utf-8"))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        self.source, self.target = (
            onnxruntime.InferenceSession(str(folder / name), options, providers=["CPUExecutionProvider"])
            for name in ("encoder.onnx", "decoder-with-cache.onnx")
        )

    def greedy(self, sources: Sequence[Sequence[int]], limits: Sequence[int] | None = None) -> list[list[int]]:
        """What the model writes for each source, at most so many tokens; the end token is left out."""
        known, rows = self.settings, len(sources)
        length = max(map(len, sources))
        ids = np.array([[*source, *[known["pad"]] * (length - len(source))] for source in sources], np.int64)
        mask = np.array([[1] * len(source) + [0] * (length - len(source)) for source in sources], np.int64)
        source_key, source_value = self.source.run(None, {"ids": ids, "mask": mask})
        layers, heads, width = known["cache"]
        key = value = np.zeros((layers, rows, heads, 0, width), np.float32)
        words = np.full((rows, 1), known["start"], np.int64)
        written: list[list[int]] = [[] for _ in sources]
        limits = limits or [min(known["context"], 16 + 2 * len(source)) for source in sources]
        open_rows = set(range(rows))
        for place in range(min(known["context"], max(limits))):
            given = {"ids": words, "key": key, "value": value}
            logits, key, value = self.target.run(
                None, {**given, "source_key": source_key, "source_value": source_value, "source_mask": mask}
            )
            scores = logits[:, -1]
            scores[:, known["never"]] = -np.inf
            words = scores.argmax(-1)[:, None].astype(np.int64)
            if place < len(known["opening"]):
                words[:] = known["opening"][place]
            for row in sorted(open_rows):
                word = int(words[row, 0])
                if word in known["end"] or place >= limits[row]:
                    open_rows.discard(row)
                else:
                    written[row].append(word)
            if not open_rows:
                break
        return written


def translate(texts: Sequence[str], to: str | None = None, folder: Path = FOLDER) -> list[str]:
    import tokenizers

    loop = Loop(folder)
    known = loop.settings
    writes = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    other = folder / "source_tokenizer.json"
    reads = tokenizers.Tokenizer.from_file(str(other)) if other.is_file() else writes
    reads.encode_special_tokens = not known["markup"]
    if known["tags"] and to not in known["tags"]:
        raise SystemExit(f"say which language to write with --to: {', '.join(known['tags'])}")
    tag = [known["tags"][to]] if known["tags"] else []
    room = known["context"] - len(known["before"]) - len(known["after"])
    sources = [[*known["before"], *[*tag, *reads.encode(text, add_special_tokens=False).ids][:room], *known["after"]] for text in texts]
    return [writes.decode(ids) for ids in loop.greedy(sources)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--to", help="the language to write, for a model that knows several")
    wanted = parser.parse_args()
    print("\n".join(translate(wanted.texts, wanted.to)))


if __name__ == "__main__":
    main()

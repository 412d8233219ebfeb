"""Decoding on a CPU, side by side with the peers on the same weights.

    python benchmarks/decode_cpu.py [--repeats 5] [--threads 2] [--json FILE]

The encoder-decoder base model (6 + 6 layers, 512 wide, vocabulary 16,000) with random weights, 30 tokens in and 30 out, greedy and with a
beam of 4, one sentence and 32 at a time. The weights are made as a Hugging Face Marian model and imported by regard; that both give the
same words is checked first. Contenders take turns, and each figure is the median of its turns in target tokens a second. Run it on a
machine with nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from transformers import MarianConfig, MarianMTModel

from regard.bundle import load_bundle
from regard.data.batch import Tokens
from regard.decoding.pack import packed
from regard.decoding.runner import decode
from regard.decoding.settings import Beam, Length, Rules
from regard.interop.huggingface import import_folder
from regard.models import Generator

VOCABULARY, LENGTH = 16000, 30
COLUMNS = [(beam, rows) for beam in (1, 4) for rows in (1, 32)]
Contender = Callable[[torch.Tensor, int], list[list[int]]]


def marian() -> MarianMTModel:
    torch.manual_seed(0)
    config = MarianConfig(
        vocab_size=VOCABULARY, d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8, decoder_attention_heads=8,
        encoder_ffn_dim=2048, decoder_ffn_dim=2048, activation_function="relu", scale_embedding=True, max_position_embeddings=512,
        pad_token_id=VOCABULARY - 1, eos_token_id=0, bos_token_id=1, decoder_start_token_id=VOCABULARY - 1, forced_eos_token_id=None,
    )  # fmt: skip
    model = MarianMTModel(config).eval()
    with torch.no_grad():  # at birth all words are about as likely; make some likelier, so that there is something to search
        for layer in model.model.decoder.layers:
            layer.fc2.weight.mul_(8)
    model.generation_config.bad_words_ids = None
    return model


def contenders(folder: Path) -> dict[str, Contender]:
    hugging_face = marian()
    hugging_face.save_pretrained(folder / "marian")
    import_folder(folder / "marian", folder / "bundle")
    ours = load_bundle(folder / "bundle").model
    assert isinstance(ours, Generator)
    ready = packed(ours)
    rules = Rules(max_length=Length(plus=LENGTH), min_length=Length(plus=LENGTH))

    def regard(ids: torch.Tensor, beam: int) -> list[list[int]]:
        return [list(found[0].tokens) for found in decode(ready, Tokens(ids), Beam(size=beam), rules)]

    def theirs(ids: torch.Tensor, beam: int) -> list[list[int]]:
        written = hugging_face.generate(
            ids, attention_mask=torch.ones_like(ids), num_beams=beam, do_sample=False, max_new_tokens=LENGTH, min_new_tokens=LENGTH
        )
        return written[:, 1:].tolist()

    return {"regard float32": regard, "Hugging Face float32": theirs}


def measure(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        systems = contenders(Path(folder))
        for beam, rows in COLUMNS:
            ids = torch.randint(2, VOCABULARY - 1, (rows, LENGTH), generator=torch.Generator().manual_seed(rows))
            outputs = {name: system(ids, beam) for name, system in systems.items()}  # a first run, to warm up and to compare
            check(outputs)
            turns: dict[str, list[float]] = {name: [] for name in systems}
            for _ in range(options.repeats):
                for name, system in systems.items():
                    turns[name].append(rows * LENGTH / measure(partial(system, ids, beam)))
            results[f"beam {beam}, batch {rows}"] = turns
    show(results)
    if options.json:
        options.json.write_text(json.dumps({"threads": options.threads, "tokens_per_second": results}, indent=2) + "\n")


def check(outputs: dict[str, list[list[int]]]) -> None:
    """All must have written the same words; float32 in another order of sums may tip a near tie, so a few may differ."""
    ours = outputs["regard float32"]
    for name, theirs in outputs.items():
        same = sum(a == b for a, b in zip(ours, theirs, strict=True))
        if same < 0.9 * len(ours):
            raise SystemExit(f"{name} wrote other words than regard in {len(ours) - same} of {len(ours)} outputs: nothing to compare")


def show(results: dict[str, dict[str, list[float]]]) -> None:
    names = list(next(iter(results.values())))
    print(f"{'target tokens a second':28}" + "".join(f"{column:>26}" for column in results))
    for name in names:
        cells = []
        for turns in results.values():
            mine = turns[name]
            cells.append(f"{statistics.median(mine):,.0f} ({min(mine):,.0f} … {max(mine):,.0f})")
        print(f"{name:28}" + "".join(f"{cell:>26}" for cell in cells))
    for name in names[1:]:
        ratios = [statistics.median(turns[names[0]]) / statistics.median(turns[name]) for turns in results.values()]
        print(f"{'regard / ' + name:28}" + "".join(f"{ratio:>26.2f}" for ratio in ratios))


if __name__ == "__main__":
    main()

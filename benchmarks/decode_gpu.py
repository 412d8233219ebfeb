"""Decoding on one GPU, side by side with Hugging Face on the same weights.

    python benchmarks/decode_gpu.py [--repeats 5] [--static] [--only gpt2 pairs] [--json FILE]

Two models with random weights in bfloat16, one text and 64 at a time: GPT-2 (124 M parameters), 32 tokens in and 256 out, greedy; and the
paper's base encoder-decoder (vocabulary 32,768), 30 tokens in and 64 out, greedy and with a beam of 4. The weights are made as Hugging Face
models and imported by regard. Contenders take turns; each figure is the median in tokens a second. What each wrote is scored in float32:
nobody may have found outputs that are clearly less likely. `--static`: Hugging Face with a static cache and compiled as well, which takes
minutes to be made ready.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from side_by_side import Turns, check, marian, show

from regard.bundle import load_bundle
from regard.decoding.kept import Kept
from regard.decoding.many import decode_many
from regard.decoding.ready import made_ready
from regard.decoding.settings import Beam, Length, Rules
from regard.interop.huggingface import import_folder
from regard.models import Generator

CLOSE = 0.02
Contender = Callable[[list[list[int]], int], list[list[int]]]


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=1, pad_token_id=2)).eval()
    with torch.no_grad():  # at birth all words are about as likely; make some likelier, so that there is something to choose
        for block in model.transformer.h:
            block.mlp.c_proj.weight.mul_(8)
    return model


# what makes it, tokens in, tokens out, columns of (beam, rows)
WORK: dict[str, tuple[Callable[[], Any], int, int, list[tuple[int, int]]]] = {
    "gpt2": (gpt2, 32, 256, [(1, 1), (1, 64)]),
    "pairs": (lambda: marian(32768), 30, 64, [(1, 1), (1, 64), (4, 1), (4, 64)]),
}


def ours(folder: Path, length: int) -> Contender:
    model = load_bundle(folder, device="cuda", dtype=torch.bfloat16).model
    assert isinstance(model, Generator)
    ready = made_ready(model)
    rules = Rules(max_length=Length(plus=length), min_length=Length(plus=length))
    kept = Kept()
    return lambda sources, beam: [list(found[0].tokens) for found in decode_many(ready, sources, Beam(size=beam), rules, kept=kept)]


def theirs(model: Any, length: int, static: bool) -> Contender:
    model = model.to("cuda", torch.bfloat16)
    options = {"cache_implementation": "static"} if static else {}

    def run(sources: list[list[int]], beam: int) -> list[list[int]]:
        ids = torch.tensor(sources, device="cuda")
        written = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            num_beams=beam,
            do_sample=False,
            max_new_tokens=length,
            min_new_tokens=length,
            **options,
        )
        return written[:, -length:].tolist()

    return run


def measured(name: str, folder: Path, repeats: int, static: bool) -> Turns:
    make, read, length, columns = WORK[name]
    torch.manual_seed(0)
    model = make()
    model.save_pretrained(folder / name)
    import_folder(folder / name, folder / f"{name}-bundle")
    contenders = {"regard": ours(folder / f"{name}-bundle", length), "Hugging Face": theirs(model, length, static=False)}
    if static:
        contenders["Hugging Face, static"] = theirs(model, length, static=True)
    judge = load_bundle(folder / f"{name}-bundle", device="cuda").model
    results: Turns = {}
    for beam, rows in columns:
        taking_part = {each: run for each, run in contenders.items() if "static" not in each or beam == 1}
        sources = torch.randint(3, 30000, (rows, read), generator=torch.Generator().manual_seed(rows)).tolist()
        outputs = {}
        for each, run in taking_part.items():
            for _ in range(2):  # to warm up: what is compiled or recorded is so by then
                outputs[each] = run(sources, beam)
        check(judge, sources, outputs, dict.fromkeys(outputs, CLOSE))
        turns: dict[str, list[float]] = {each: [] for each in taking_part}
        for _ in range(repeats):
            for each, run in taking_part.items():
                torch.cuda.synchronize()
                started = time.perf_counter()
                run(sources, beam)
                torch.cuda.synchronize()
                turns[each].append(rows * length / (time.perf_counter() - started))
        results[f"{name}, beam {beam}, batch {rows}"] = turns
        show("tokens a second", {f"beam {beam}, batch {rows}": turns})
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--static", action="store_true")
    parser.add_argument("--only", nargs="+", choices=WORK, default=list(WORK))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("there is no GPU here that PyTorch can use")
    results: Turns = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only:
            results |= measured(name, Path(folder), options.repeats, options.static)
    if options.json:
        options.json.write_text(json.dumps({"gpu": torch.cuda.get_device_name(), "tokens_per_second": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()

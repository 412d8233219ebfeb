"""What a language model must beat: perplexity by frequency alone and by the token before, over the very tokens of a recipe.

    python benchmarks/bigram.py recipes/pop909.toml [--data-dir DATA] [--set data.max_length=512]… [--json FILE]

Counted on the training tokens as the recipe has them. Of dev, the tokens are those whose perplexity training reports; of test, those that
`regard evaluate` foretells. The token that ends a text is one of them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from rich.console import Console

from regard.data.examples import Maker
from regard.data.store import Item, Store
from regard.evaluation.baseline import Ids, baselines, in_pairs
from regard.evaluation.tables import plain_table
from regard.recipe import load_recipe
from regard.text.sources import tests_of
from regard.training.prepare import prepare


def pairs_of(store: Store) -> tuple[Ids, Ids]:
    return in_pairs(np.asarray(store.target.tokens), np.asarray(store.target.edges))


def pairs_of_test(maker: Maker, root: Path | None) -> tuple[Ids, Ids]:
    made = (item for source in tests_of(maker.recipe, root) for item in maker.items(source))
    pieces = [np.array(item.target) for item in made if isinstance(item, Item)]
    return in_pairs(np.concatenate(pieces), np.cumsum([0, *map(len, pieces)]))


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("recipe", type=Path)
    asked.add_argument("--data-dir", type=Path)
    asked.add_argument("--set", action="append", default=[])
    asked.add_argument("--json", type=Path)
    given = asked.parse_args()
    recipe = load_recipe(given.recipe, given.set)
    if recipe.task != "lm":
        raise SystemExit(
            f"{given.recipe} is for the task {recipe.task}; a language model's tokens follow one another, so give one of those"
        )
    console = Console()
    prepared = prepare(recipe, given.data_dir, lambda message: console.print(message, style="dim", highlight=False))
    train, vocabulary = pairs_of(prepared.train), len(prepared.vocabularies.target)
    parts = {"dev": pairs_of(prepared.dev)}
    if recipe.data.test:
        parts["test"] = pairs_of_test(Maker(recipe, prepared.vocabularies), given.data_dir)
    found = {name: {"tokens": len(pairs[1]), **baselines(train, pairs, vocabulary)} for name, pairs in parts.items()}
    table = plain_table(header=True)
    for name in ("", "tokens", "unigram", "bigram"):
        table.add_column(name, justify="right" if name else "left")
    for name, figures in found.items():
        table.add_row(name, f"{figures['tokens']:,}", f"{figures['unigram']:.3f}", f"{figures['bigram']:.3f}")
    console.print(table)
    if given.json is not None:
        given.json.write_text(json.dumps({"recipe": given.recipe.name, "training_tokens": len(train[1]), **found}, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""The validation loss of a character model as nanoGPT defines it, beside that over all of the text that was kept apart.

    python benchmarks/nanogpt_loss.py runs/tinyshakespeare/bundle DATA/lm/tinyshakespeare.txt.gz

The last tenth of the text is what neither was trained on. nanoGPT draws 200 batches of 64 windows of 256 characters from it by chance and
takes the mean; with another seed it is another number. Over all of it, window after window, every character is foretold once.
"""

from __future__ import annotations

import argparse
import gzip
import statistics
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor
from torch.nn import functional as F

import regard
from regard.data.batch import Tokens

WINDOW, ROWS, DRAWS = 256, 64, 200


@torch.inference_mode()
def losses(model: regard.Model, ids: Tensor, starts: Tensor) -> Tensor:
    """-log P of each character of the windows that begin at `starts`, given those of the window before it: (windows, 256)."""
    windows = ids[starts[:, None] + torch.arange(WINDOW + 1, device=ids.device)]
    logits = model.generator(Tokens(windows[:, :-1]))
    return F.cross_entropy(logits.float().transpose(1, 2), windows[:, 1:], reduction="none")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--seeds", type=int, default=3, help="how often nanoGPT's estimate is made")
    arguments = parser.parse_args()
    model = regard.load(arguments.model)
    packed = arguments.text.read_bytes()
    text = (gzip.decompress(packed) if arguments.text.suffix == ".gz" else packed).decode()
    kept = text[int(0.9 * len(text)) :]
    device = next(model.generator.parameters()).device
    ids = torch.tensor(model.tokenizer.encode(kept), device=device)
    assert len(ids) == len(kept), "a token should be a character"

    starts = torch.arange(0, len(ids) - WINDOW, WINDOW, device=device)
    whole = torch.cat([losses(model, ids, part).flatten() for part in starts.split(ROWS)])
    rest = int(starts[-1]) + WINDOW  # the last window is short
    last = ids[rest:]
    if len(last) > 1:
        with torch.inference_mode():
            logits = model.generator(Tokens(last[None, :-1]))
        whole = torch.cat((whole, F.cross_entropy(logits[0].float(), last[1:], reduction="none")))
    estimates = []
    for seed in range(arguments.seeds):
        chance = torch.Generator().manual_seed(seed)
        draws = [torch.randint(len(ids) - WINDOW, (ROWS,), generator=chance).to(device) for _ in range(DRAWS)]
        estimates.append(statistics.mean(float(losses(model, ids, draw).mean()) for draw in draws))
    console = Console()
    console.print(f"all of the last tenth: {float(whole.mean()):.4f} over {len(whole):,} of {len(ids) - 1:,} characters")
    console.print(f"nanoGPT's estimate: {', '.join(f'{estimate:.4f}' for estimate in estimates)} (mean {statistics.mean(estimates):.4f})")


if __name__ == "__main__":
    main()

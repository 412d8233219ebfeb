"""Who is measured in train_gpu.py, and on what: the same sentences for all, padded for peers and packed for ours."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parent.parent))

from regard.data.batch import Tokens
from regard.data.collate import Batch
from regard.models import Network, build
from regard.presets import preset
from regard.recipe import TrainingSettings
from regard.training.fused import fuse
from regard.training.objective import Objective
from regard.training.optim import make_optimizer
from regard.training.precision import keep_half
from regard.training.replay import Replayed

WIDTH, HEADS, INNER, LAYERS, VOCABULARY, DROPOUT, SMOOTHING, PAD = 512, 8, 2048, 6, 32768, 0.1, 0.1, 0
ROW = 25_344  # target tokens of a batch: 192 for each of the 132 multiprocessors, so that no wave of tiles is left half empty
LONGEST, BATCHES = 200, 32
GPT2_ROWS, GPT2_LENGTH = 32, 1024
OPTIMISER: dict[str, Any] = {"lr": 1e-4, "betas": (0.9, 0.98), "eps": 1e-9, "weight_decay": 0.0, "fused": True}


@dataclass
class Contender:
    """A model on its way: each call of `step` is one update, and gives how many target tokens it learned from."""

    step: Callable[[], int]
    flops_per_token: float = 0.0  # nanoGPT's: 6 for each parameter, and attention's


# The work.


def sentences() -> list[np.ndarray]:
    """Lengths as they come, in an order of their own; a pair has as many tokens on both sides. Batches of numbers below."""
    random = np.random.default_rng(0)
    lengths = np.clip(random.lognormal(3.2, 0.6, ROW * BATCHES // 29).astype(int), 4, LONGEST)
    return [random.integers(4, VOCABULARY, length + 1) for length in lengths]


def padded(texts: list[np.ndarray]) -> list[list[np.ndarray]]:
    """Batches of like length, of at most ROW tokens with padding."""
    batches: list[list[np.ndarray]] = [[]]
    for text in sorted(texts, key=len):
        if (len(batches[-1]) + 1) * (len(text) - 1) > ROW:
            batches.append([])
        batches[-1].append(text)
    order = np.random.default_rng(1).permutation(len(batches) - 1)  # the last may be short
    return [batches[index] for index in order]


def packed(texts: list[np.ndarray]) -> list[list[np.ndarray]]:
    """Batches in the order of the sentences, filled up to ROW."""
    batches: list[list[np.ndarray]] = [[]]
    room = ROW
    for text in texts:
        if len(text) - 1 > room:
            batches.append([])
            room = ROW
        batches[-1].append(text)
        room -= len(text) - 1
    return batches[:-1]


def padded_tensors(texts: list[np.ndarray]) -> tuple[Tensor, Tensor, Tensor]:
    """Sources, what the decoder reads and what it is to say, each (rows, longest)."""
    width = max(len(text) for text in texts) - 1
    rows = [np.stack([np.pad(text[part], (0, width + 1 - len(text))) for text in texts]) for part in (slice(1, None), slice(-1))]
    source, read = (torch.from_numpy(row).pin_memory() for row in rows)
    return source, read, source


def packed_batch(texts: list[np.ndarray]) -> Batch:
    """One row of ROW tokens on each side, the last documents being what is left of it."""
    ends = np.cumsum([len(text) - 1 for text in texts])
    edges = np.concatenate(([0], ends, np.arange(ends[-1], ROW, LONGEST)[1:]))
    edges = np.concatenate((edges, np.full(-len(edges) % 128 or 128, ROW))).astype(np.int32)

    def tokens(part: slice) -> Tensor:
        ids = np.concatenate([text[part] for text in texts])
        return torch.from_numpy(np.pad(ids, (0, ROW - len(ids)))[None])

    source, read = (Tokens(tokens(part), edges=torch.from_numpy(edges), longest=LONGEST) for part in (slice(1, None), slice(-1)))
    counted = torch.arange(ROW)[None] < int(ends[-1])
    batch = Batch(read, source.ids, counted, int(ends[-1]), int(ends[-1]), source)
    return batch.map(torch.Tensor.pin_memory)


def to_gpu(x: Tensor) -> Tensor:
    return x.to("cuda", non_blocking=True)


# Ours.


def regard(model: Network, batches: Iterator[Batch], smoothing: float = 0.0, *, recorded: bool = True) -> Callable[[], int]:
    """One update as `regard train` makes it."""
    keep_half(model)
    fuse(model)
    objective = Objective(model, smoothing, compiled=True)
    optimizer = make_optimizer(model, TrainingSettings(lr=1e-4, betas=(0.9, 0.98), weight_decay=0.0), fused=True)

    def learn(batch: Batch, counts: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            total = objective(batch)
        (total / counts[0]).backward()
        optimizer.step()
        optimizer.zero_grad()
        return total.detach()

    call = Replayed(learn) if recorded else learn

    def step() -> int:
        batch = next(batches).map(to_gpu)
        call(batch, torch.full((1,), batch.count, device="cuda"))
        return batch.count

    return step


def regard_pairs(recorded: bool = True) -> Contender:
    config = preset("transformer-base", vocabulary=VOCABULARY, dropout=DROPOUT, context=256)
    batches = [packed_batch(texts) for texts in packed(sentences())]
    return Contender(regard(build(config, "varlen").cuda(), cycle(batches), SMOOTHING, recorded=recorded))


def regard_gpt2() -> Contender:
    config = preset("gpt2", dropout=0.0, attention_dropout=0.0)
    model = build(config, "sdpa").cuda()
    texts = gpt2_texts()
    real = torch.ones(GPT2_ROWS, GPT2_LENGTH, dtype=torch.bool)
    count = real.numel()
    batches = [Batch(Tokens(text[:, :-1]), text[:, 1:].contiguous(), real, count, count).map(torch.Tensor.pin_memory) for text in texts]
    return Contender(regard(model, cycle(batches)), gpt2_flops(model, "positions"))


# The peers.


def peer(forward: Callable[..., Tensor], model: nn.Module, batches: list[tuple[Tensor, ...]], counts: list[int]) -> Callable[[], int]:
    """One update of a model whose `forward` gives the mean loss of a batch."""
    optimizer = torch.optim.AdamW(model.parameters(), **OPTIMISER)
    turns = cycle(zip(batches, counts, strict=True))

    def step() -> int:
        batch, count = next(turns)
        with torch.autocast("cuda", torch.bfloat16):
            loss = forward(*map(to_gpu, batch))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return count

    return step


def peer_pairs(forward: Callable[..., Tensor], model: nn.Module, compiled: bool) -> Contender:
    groups = padded(sentences())
    batches: list[tuple[Tensor, ...]] = [padded_tensors(texts) for texts in groups]
    counts = [sum(len(text) - 1 for text in texts) for texts in groups]
    # Batches of like length are of many shapes: code for each of them would take longer to compile than all of training.
    return Contender(peer(torch.compile(forward, dynamic=True) if compiled else forward, model, batches, counts))


class TorchTransformer(nn.Module):
    """What PyTorch has, with the paper's embeddings around it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        nn.init.normal_(self.embed.weight, std=WIDTH**-0.5)
        self.transformer = nn.Transformer(WIDTH, HEADS, LAYERS, LAYERS, INNER, DROPOUT, batch_first=True)
        places = torch.arange(256)[:, None] / 10000 ** (torch.arange(0, WIDTH, 2) / WIDTH)
        self.register_buffer("places", torch.stack((places.sin(), places.cos()), -1).flatten(-2))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, source: Tensor, read: Tensor, labels: Tensor) -> Tensor:
        length = read.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=read.device).triu(1)
        states = self.transformer(
            self.placed(source),
            self.placed(read),
            tgt_mask=causal,
            src_key_padding_mask=source == PAD,
            memory_key_padding_mask=source == PAD,
            tgt_is_causal=True,
        )
        return smoothed(F.linear(states, self.embed.weight), labels)

    def placed(self, ids: Tensor) -> Tensor:
        assert isinstance(self.places, Tensor)
        return self.dropout(self.embed(ids) * math.sqrt(WIDTH) + self.places[: ids.shape[1]])


def smoothed(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=PAD, label_smoothing=SMOOTHING)


def torch_pairs(compiled: bool) -> Contender:
    model = TorchTransformer().cuda()
    return peer_pairs(model.forward, model, compiled)


def marian_pairs(compiled: bool) -> Contender:
    from transformers import MarianConfig, MarianMTModel

    shape = {f"{side}_{what}": size for side in ("encoder", "decoder") for what, size in
             (("layers", LAYERS), ("attention_heads", HEADS), ("ffn_dim", INNER))}  # fmt: skip
    config = MarianConfig(
        vocab_size=VOCABULARY, d_model=WIDTH, dropout=DROPOUT, attention_dropout=0.0, activation_function="relu", scale_embedding=True,
        max_position_embeddings=256, pad_token_id=PAD, eos_token_id=2, decoder_start_token_id=1, forced_eos_token_id=None, **shape,
    )  # fmt: skip
    model = MarianMTModel(config).cuda().train()

    def forward(source: Tensor, read: Tensor, labels: Tensor) -> Tensor:
        found = model(input_ids=source, attention_mask=(source != PAD).long(), decoder_input_ids=read, use_cache=False)
        return smoothed(found.logits, labels)

    return peer_pairs(forward, model, compiled)


def gpt2_texts() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(50257, (GPT2_ROWS, GPT2_LENGTH + 1), generator=generator) for _ in range(8)]


def gpt2_flops(model: nn.Module, positions: str) -> float:
    """nanoGPT's estimate for a token, forwards and backwards: its positions don't count as parameters."""
    parameters = sum(parameter.numel() for name, parameter in model.named_parameters() if positions not in name)
    return 6 * parameters + 12 * 12 * 12 * 64 * GPT2_LENGTH


def hugging_face_gpt2() -> Contender:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)).cuda().train()

    def forward(read: Tensor, labels: Tensor) -> Tensor:
        logits = model(input_ids=read, use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())

    batches: list[tuple[Tensor, ...]] = [
        (text[:, :-1].contiguous().pin_memory(), text[:, 1:].contiguous().pin_memory()) for text in gpt2_texts()
    ]
    counts = [GPT2_ROWS * GPT2_LENGTH] * len(batches)
    return Contender(peer(torch.compile(forward), model, batches, counts), gpt2_flops(model, "wpe"))


CONTENDERS: dict[str, Callable[[], Contender]] = {
    "pairs: torch.nn.Transformer": lambda: torch_pairs(False),
    "pairs: torch.nn.Transformer, compiled": lambda: torch_pairs(True),
    "pairs: Hugging Face Marian": lambda: marian_pairs(False),
    "pairs: Hugging Face Marian, compiled": lambda: marian_pairs(True),
    "pairs: regard, without CUDA graphs": lambda: regard_pairs(recorded=False),
    "pairs: regard": regard_pairs,
    "gpt2: Hugging Face, compiled": hugging_face_gpt2,
    "gpt2: regard": regard_gpt2,
}

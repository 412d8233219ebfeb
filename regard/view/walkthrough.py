"""The notes, run: each idea for the sentence YOUR CAT IS A LOVELY CAT, printed in the terminal with the numbers that the code gives."""

from __future__ import annotations

import torch
from rich.console import Console
from rich.text import Text
from torch import Tensor

from regard.config import EncoderConfig, Seq2SeqConfig
from regard.data.batch import Tokens
from regard.limits import MOST_SEED, within
from regard.models import Encoder, Seq2Seq
from regard.nn import Causal, Full, Padding, Prefix, attend, record, using
from regard.nn.embedding import Embedder
from regard.nn.masks import Rule
from regard.nn.positions import Sinusoidal, frequencies, sinusoid
from regard.view.terminal import Cell, Sheet, above_weights

SENTENCE = ["YOUR", "CAT", "IS", "A", "LOVELY", "CAT"]
CATS = [place for place, word in enumerate(SENTENCE) if word == "CAT"]
SOURCE = ["I", "love", "you", "very", "much"]
TARGET = ["Ti", "amo", "molto"]
PAD, START, END = "<pad>", "<start>", "<end>"  # ids 0, 1 and 2, as in every config
WIDTH = 6  # of the vectors that are printed whole
DRAWS = 2000  # queries to measure a variance with
MEANINGS = {  # of what a pass through an encoder block records
    "embeddings": "a vector for each word",
    "placed": "+ position",
    "input": "what comes into the layer",
    "attention.query": "Q: for each head, a vector for each word",
    "attention.key": "K",
    "attention.value": "V",
    "attention.scores": "QKᵀ / √d",
    "attention.weights": "softmax: a table for each head",
    "attention.heads": "weights × V, the heads side by side",
    "attention.output": "× W^O",
    "attention_add.added": "added to what came in",
    "feedforward.inner": "norm, then max(0, xW₁ + b₁): wide",
    "feedforward.output": "× W₂ + b₂: back to the width",
    "feedforward_add.added": "added to what came in",
    "output": "norm: what the next layer gets",
}


@torch.no_grad()
def walkthrough(console: Console | None = None, seed: int = 0) -> None:
    """Prints the ideas of the notes one after the other. The same seed prints the same numbers."""
    within("seed", seed, "what the random weights go by", 0, MOST_SEED)
    sheet = Sheet(console)
    sheet.title(" ".join(SENTENCE))
    sheet.say(
        "Every number below has just been computed, by the code that real models run on. The weights are random "
        f"(seed {seed}) and nothing has been trained: look at how the numbers come about, not at what they say about cats."
    )
    with torch.random.fork_rng(devices=[]):  # the caller's random numbers go on as if nothing had been drawn
        torch.manual_seed(seed)
        vocabulary = number_words(SENTENCE)
        ids = torch.tensor([vocabulary[word] for word in SENTENCE])
        embeddings = show_words(sheet, ids, len(vocabulary))
        placed = show_positions(sheet, embeddings)
        show_attention(sheet, embeddings, placed)
        show_scaling(sheet)
        model = Encoder(EncoderConfig(vocabulary=len(vocabulary), layers=1)).eval()  # one layer of the paper's base model
        taps = show_heads(sheet, model, ids)
        show_masks(sheet, placed)
        show_shapes(sheet, model, taps)
        show_shift(sheet)
    sheet.section("What to look at next")
    sheet.table(
        ["", ""],
        [
            ["regard info transformer-base", "the paper's model, its shape and parameters"],
            ["regard/nn/backends.py", "the formula of section 3 as code"],
            ["docs/notes.md", "every idea of the notes: its code and its test"],
        ],
        left=2,
    )


def show_words(sheet: Sheet, ids: Tensor, vocabulary: int) -> Tensor:
    sheet.section("Words become ids, ids become vectors")
    sheet.say(
        "The input embedding is a matrix with a row for each word of the vocabulary; a word's id says which row is its vector. "
        f"The first ids are kept for {PAD}, {START} and {END}. The paper's vectors have d = 512 numbers; here d = {WIDTH}, "
        "so that they fit on a line."
    )
    embeddings: Tensor = Embedder(vocabulary, WIDTH)(ids)  # (6, WIDTH)
    sheet.table(["word", "id", *columns()], [word_row(place, ids[place], embeddings[place]) for place in range(len(SENTENCE))])
    one, other = embeddings[CATS]
    sheet.say(
        f"Both CATs have id {int(ids[CATS[0]])} and therefore the same vector: their largest difference is {apart(one, other):.3f}. "
        "Nothing says yet which of them comes first."
    )
    return embeddings


def show_positions(sheet: Sheet, embeddings: Tensor) -> Tensor:
    sheet.section("Positions: each word carries where it stands")
    sheet.formula("PE(pos, 2i)   = sin(pos / 10000^(2i/d))", "PE(pos, 2i+1) = cos(pos / 10000^(2i/d))")
    sheet.say(
        "Pairs of sine and cosine, each slower than the pair before: the first tells neighbours apart, the last hardly moves in a "
        "sentence this short. The formula is fixed, so it is computed once and reused for every sentence."
    )
    positions = torch.arange(len(SENTENCE))
    waves = sinusoid(positions, WIDTH)  # (6, WIDTH)
    speeds = frequencies(WIDTH, 10000.0, positions.device, waves.dtype).tolist()
    headings = [f"{name}\npos/{1 / speed:.3g}" for speed in speeds for name in ("sin", "cos")]
    sheet.table(["word", "pos", *headings], [word_row(place, place, waves[place]) for place in range(len(SENTENCE))])
    sheet.say("The encoder's input is the sum, embedding + position. Now the two CATs are two different vectors:")
    placed = Sinusoidal(WIDTH).embed(embeddings, positions)
    sheet.table(["word", "pos", *columns()], [word_row(place, place, placed[place]) for place in CATS])
    return placed


def show_attention(sheet: Sheet, embeddings: Tensor, placed: Tensor) -> None:
    sheet.section("Self-attention: each word looks at every word")
    sheet.formula("Attention(Q, K, V) = softmax(QKᵀ / √d) V")
    sheet.say(
        "Q, K and V are all just the encoder's input, so there are no parameters yet. Each row says how much the word on its left "
        "looks at each of the words above. Softmax makes a row sum to 1."
    )
    _, weights = look(placed, placed)
    sheet.weights(SENTENCE, SENTENCE, weights)
    highest = int((weights.diagonal() == weights.amax(-1)).sum())
    sheet.say(
        f"We expect the diagonal to be the highest, since a vector is most like itself and only a longer one can outdo it: here it is in "
        f"{highest} of {len(SENTENCE)} rows. Times V, a row of weights mixes a word anew from all words; the last CAT becomes"
    )
    sheet.formula(" + ".join(f"{weight:.3f} {word}" for weight, word in zip(weights[CATS[-1]].tolist(), SENTENCE, strict=True)))
    _, unplaced = look(embeddings, embeddings)
    one, other = unplaced[CATS]
    sheet.say(
        "Attention itself knows nothing of order. Without positions the two CATs would look at the sentence in the same way, "
        f"their rows {apart(one, other):.3f} apart:"
    )
    sheet.weights([f"CAT ({place})" for place in CATS], SENTENCE, unplaced[CATS])


def show_scaling(sheet: Sheet) -> None:
    sheet.section("Why √d")
    sheet.formula("Var(q·k) = d", "Var(q·k / √d) = 1")
    sheet.say(
        "A dot product is a sum of d terms, and the more terms, the wider it spreads. Measured with random numbers of variance 1: "
        f"{DRAWS:,} queries that each look at {len(SENTENCE)} keys, with scores q·k raw and divided by √d, "
        "and the largest weight that softmax gives a query, on average."
    )
    rows: list[list[Cell]] = []
    for width in (2**power for power in range(10)):
        query, key = torch.randn(DRAWS, 1, width), torch.randn(DRAWS, len(SENTENCE), width)
        (raw, sharp), (scaled, even) = look(query, key, scale=1.0), look(query, key)
        largest = [sheet.weight(float(weights.amax(-1).mean())) for weights in (sharp, even)]
        rows.append([str(width), f"{float(raw.var()):.3f}", f"{float(scaled.var()):.3f}", *largest])
    headings: list[Cell] = ["\nd", "variance\nraw", "variance\n÷ √d", above_weights("weight\nraw"), above_weights("weight\n÷ √d")]
    sheet.table(headings, rows, left=0)
    sheet.say(
        "Undivided, wide vectors make softmax choose one word and drop the rest; there its slope is close to 0, and learning all but "
        "stops. Divided by √d, the weights spread about alike at every width."
    )


def show_heads(sheet: Sheet, model: Encoder, ids: Tensor) -> dict[str, Tensor]:
    heads = model.config.heads
    sheet.section("Multi-head attention: several looks at once")
    sheet.formula("headᵢ              = Attention(QWᵢ^Q, KWᵢ^K, VWᵢ^V)", "MultiHead(Q, K, V) = Concat(head₁ … headₕ) W^O")
    sheet.say(
        f"Now a layer with parameters: d = {model.config.width} in {heads} heads of {model.config.key_width}. Each head has matrices of "
        "its own, so that each can look for something else. Every head has a table like that of section 3; here is the row of the last CAT "
        "from each:"
    )
    with using("explicit"), record(model) as taps:
        model(Tokens(ids[None]))
    row = taps["encoder.layers.0.attention.weights"][0, :, CATS[-1]]  # (heads, key)
    sheet.weights([f"head {head + 1}" for head in range(heads)], SENTENCE, row)
    places = row.argmax(-1).unique().numel()
    sheet.say(
        f"Random as the matrices are, the heads disagree: their largest weights fall on {places} different places of the sentence. "
        "Training gives that a purpose."
    )
    return taps


def show_masks(sheet: Sheet, placed: Tensor) -> None:
    sheet.section("Masks: who may see whom")
    sheet.formula("softmax(QKᵀ / √d + mask) V", "mask = −∞ where a word must not be seen, else 0")
    sheet.say(
        "A decoder must not see the words to come. Above the diagonal, every score becomes −∞ before the softmax, which turns it into a "
        "weight of 0 (dotted), and the rest of the row still sums to 1. These are the vectors of section 3 again:"
    )
    _, weights = look(placed, placed, rule=Causal())
    sheet.weights(SENTENCE, SENTENCE, weights, who_sees(Causal()))
    sheet.say(f"The largest weight above the diagonal is {float(weights.triu(1).max()):.3f}. The masks of the notes:")
    length = len(SENTENCE)
    sheet.pictures(
        {
            "full": who_sees(Full()),
            "causal": who_sees(Causal()),
            "prefix of 3": who_sees(Prefix(torch.tensor([3]))),
            "2 of padding": who_sees(Padding.of_lengths(torch.tensor([length - 2]), length)),
        }
    )
    sheet.say(
        "Rows look, columns are looked at, ● is seen. Full is the encoder's, causal the decoder's. With a prefix, everyone sees the given "
        "part; padding is seen by no one. Masks combine: Causal() & Padding(real)."
    )


def show_shapes(sheet: Sheet, model: Encoder, taps: dict[str, Tensor]) -> None:
    sheet.section("Shapes: through one encoder block")
    sheet.say(
        "All that was recorded while the sentence went through the layer of section 5. What comes out has the shape of what went in, "
        "so that layers can be stacked."
    )
    rows = []
    for path, tap in taps.items():
        name = path.removeprefix("encoder.").removeprefix("layers.0.")
        rows.append([name, str(tuple(tap.shape[1:])), MEANINGS.get(name, "")])  # the batch has one row: it isn't shown
    sheet.table(["recorded as", "shape", "what it is"], rows, left=3)
    count = sum(parameter.numel() for parameter in model.encoder.layers[0].parameters())
    sheet.say(f"The block has {count:,} parameters, and they serve a sentence of any length: the 6 is in no shape of theirs.")


def show_shift(sheet: Sheet) -> None:
    sheet.section("The decoder's input is shifted right")
    sheet.say(
        f"“{' '.join(SOURCE)}” is to become “{' '.join(TARGET)}”. The decoder reads the target behind a start token, and the label at "
        "each position is the word that comes next:"
    )
    read, label = [START, *TARGET], [*TARGET, END]
    places = range(len(read))
    sheet.table(["position", *map(str, places)], [["decoder reads", *read], ["label", *label]], left=1 + len(read))
    vocabulary = number_words(SOURCE + TARGET)
    model = Seq2Seq(Seq2SeqConfig(vocabulary=len(vocabulary), layers=2, width=64, heads=4, feedforward=128)).eval()
    source, target = (Tokens(torch.tensor([[vocabulary[word] for word in words]])) for words in (SOURCE, read))
    at_once = model(source, target)[0]  # (target, vocabulary)
    state, first = model.start(model.encode(source), room=len(read))
    one_by_one = torch.cat((first, *(model.step(target.ids[:, place, None], state)[:, 0] for place in places[1:])))  # (target, vocabulary)
    sheet.say(
        "In training it all happens in one time step: the causal mask hides from each position what follows it, so that all the rows below "
        "are computed together. In inference each row is a time step of its own. Both give the same logits; the last column is their "
        "largest difference:"
    )
    gaps = [apart(one, other) for one, other in zip(at_once, one_by_one, strict=True)]
    rows = [[str(place), " ".join(read[: place + 1]), label[place], f"{gaps[place]:.1e}"] for place in places]
    sheet.table(["position", "decoder has read", "label", "difference"], rows, left=3)
    sheet.say(
        f"Logits here are as large as {float(at_once.abs().max()):.3f}, so a difference of {max(gaps):.1e} is rounding. This small "
        "encoder-decoder is untrained and was given the words of the target: it can't translate."
    )


def number_words(words: list[str]) -> dict[str, int]:
    """An id for each different word, after those of the special tokens."""
    return {word: index for index, word in enumerate(dict.fromkeys((PAD, START, END, *words)))}


def look(query: Tensor, key: Tensor, *, rule: Rule | None = None, scale: float | None = None) -> tuple[Tensor, Tensor]:
    """The scores and weights (…, query, key) of attention without parameters."""
    found = attend(query, key, key, mask=None if rule is None else rule.build(len(query)), scale=scale)
    assert found.scores is not None
    assert found.weights is not None
    return found.scores, found.weights.reshape(found.scores.shape)  # a mask brings axes for rows and heads


def who_sees(rule: Rule) -> Tensor:
    """The rule as a table (query, key) for the words of the sentence."""
    length = len(SENTENCE)
    visible = rule.build(length).visible
    return torch.ones(length, length, dtype=torch.bool) if visible is None else visible[0, 0].expand(length, length)


def apart(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


def columns() -> list[str]:
    return [f"x{index}" for index in range(WIDTH)]


def word_row(place: int, number: int | Tensor, vector: Tensor) -> list[Cell]:
    """A word, its id or position, and its vector; a word that stands twice stands out."""
    style = "bold" if place in CATS else ""
    return [Text(f" {cell} ", style=style) for cell in (SENTENCE[place], int(number), *(f"{value:.3f}" for value in vector.tolist()))]

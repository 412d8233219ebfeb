"""What came before: an encoder that reads word by word, and a decoder that either looks back at all of it or remembers one vector."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.errors import ShapeError
from regard.nn.masks import Mask
from regard.nn.tap import tap

CELLS: dict[str, type[nn.LSTM] | type[nn.GRU]] = {"lstm": nn.LSTM, "gru": nn.GRU}


@dataclass(frozen=True)
class Hidden:
    """What a recurrent network carries from word to word: (layers, rows, width); only an LSTM has a cell."""

    state: Tensor
    cell: Tensor | None = None

    def take(self, rows: Tensor) -> Hidden:
        return Hidden(self.state.index_select(1, rows), None if self.cell is None else self.cell.index_select(1, rows))


class RecurrentEncoder(nn.Module):
    """Reads a source forwards and, if bidirectional, backwards; each word's two states stand side by side."""

    def __init__(self, width: int, layers: int, *, cell: str = "lstm", bidirectional: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.bidirectional = bidirectional
        hidden = width // 2 if bidirectional else width
        self.rnn = CELLS[cell](width, hidden, layers, batch_first=True, bidirectional=bidirectional, dropout=dropout if layers > 1 else 0.0)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Hidden]:
        """x (rows, length, width) to a state for each word (rows, length, width) and what is left at the end."""
        if x.shape[1] == 0:
            raise ShapeError("every source is empty; leave empty ones out")
        # Packed, so that neither direction ever reads padding: the result is that of the sentence alone. A sentence of nothing reads one.
        packed = pack_padded_sequence(x, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
        states, last = self.rnn(packed)
        states, _ = pad_packed_sequence(states, batch_first=True, total_length=x.shape[1])
        tap(self, "embeddings", x)
        tap(self, "states", states)
        return states, self._hidden(last)

    def _hidden(self, last: Tensor | tuple[Tensor, Tensor]) -> Hidden:
        if isinstance(last, tuple):
            return Hidden(self._join(last[0]), self._join(last[1]))
        return Hidden(self._join(last))

    def _join(self, last: Tensor) -> Tensor:
        """(layers * directions, rows, hidden) to (layers, rows, width): both directions side by side."""
        if not self.bidirectional:
            return last
        forwards, backwards = last.unflatten(0, (-1, 2)).unbind(1)
        return torch.cat((forwards, backwards), -1)


class AdditiveAttention(nn.Module):
    """Bahdanau's: score(s, h) = v · tanh(W s + U h), softmax over the source, and the weighted sum of its states is the context."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.of_query = nn.Linear(width, width)
        self.of_key = nn.Linear(width, width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)

    def keys(self, memory: Tensor) -> Tensor:
        """U h, once per source."""
        return self.of_key(memory)

    def scores(self, query: Tensor, keys: Tensor) -> Tensor:
        """How well each word of a source fits what the decoder is about: (sources, rows of each, length)."""
        beams = self.of_query(query).unflatten(0, (keys.shape[0], -1))  # (sources, beams, width)
        return self.score(torch.tanh(beams[:, :, None] + keys[:, None])).squeeze(-1)

    def forward(self, query: Tensor, memory: Tensor, keys: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
        """query (rows, width) over memory (sources, length, width) to a context (rows, width) and the weights (rows, length) behind it.

        Rows that share a source stand together.
        """
        weights = mask.softmax(self.scores(query, keys))
        return (weights @ memory).flatten(0, 1), weights.flatten(0, 1)


@dataclass(frozen=True)
class Looked:
    """The source as the decoder sees it: a state for each word, its keys, and which are padding."""

    memory: Tensor  # (sources, length, width)
    keys: Tensor | None  # (sources, length, width), where there is attention
    mask: Mask


class RecurrentDecoder(nn.Module):
    """Writes a target word by word from its own state, the last word, and, with attention, a context looked up for each word."""

    def __init__(self, width: int, layers: int, *, cell: str = "lstm", attends: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = AdditiveAttention(width) if attends else None
        inputs = 2 * width if attends else width
        self.rnn = CELLS[cell](inputs, width, layers, batch_first=True, dropout=dropout if layers > 1 else 0.0)
        self.begin = nn.Linear(width, width)  # from the encoder's last state to the decoder's first
        self.output = nn.Linear(3 * width if attends else 2 * width, width)  # from state, context and last word
        self.dropout = nn.Dropout(dropout)

    def start(self, last: Hidden) -> Hidden:
        return replace(last, state=torch.tanh(self.begin(last.state)))

    def look(self, memory: Tensor, mask: Mask) -> Looked:
        return Looked(memory, None if self.attention is None else self.attention.keys(memory), mask)

    def forward(self, x: Tensor, hidden: Hidden, source: Looked) -> tuple[Tensor, Hidden]:
        """Embedded words (rows, length, width), each given its true predecessor, to (rows, length, width) for the de-embedder."""
        if self.attention is None or source.keys is None:
            states, hidden = self._run(x, hidden)
            tap(self, "embeddings", x)
            tap(self, "states", states)
            return self._output(states, x), hidden
        outputs, contexts, looks = [], [], []
        for word in x.split(1, 1):  # each word's context depends on the state before it: no way to do them at once
            context, weights = self.attention(hidden.state[-1], source.memory, source.keys, source.mask)
            state, hidden = self._run(torch.cat((word, context[:, None]), -1), hidden)
            outputs.append(state)
            contexts.append(context)
            looks.append(weights)
        states, context = torch.cat(outputs, 1), torch.stack(contexts, 1)
        tap(self.attention, "weights", torch.stack(looks, 1))  # (rows, target, source)
        for name, value in (("embeddings", x), ("states", states), ("contexts", context)):
            tap(self, name, value)
        return self._output(states, x, context), hidden

    def _run(self, x: Tensor, hidden: Hidden) -> tuple[Tensor, Hidden]:
        if hidden.cell is not None:
            states, (state, cell) = self.rnn(x, (hidden.state, hidden.cell))
            return states, Hidden(state, cell)
        states, state = self.rnn(x, hidden.state)
        return states, Hidden(state)

    def _output(self, *parts: Tensor) -> Tensor:
        return self.dropout(torch.tanh(self.output(torch.cat(parts, -1))))

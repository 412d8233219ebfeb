"""Greedy and beam search equal Hugging Face's `generate` on the same weights; where they differ, they do so as docs/decoding.md says."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
import transformers as hf

from regard.data.batch import Tokens
from regard.decoding.runner import decode
from regard.decoding.search import Hypothesis
from regard.decoding.settings import GREEDY, Beam, Method, Rules
from regard.interop.huggingface import load_folder
from regard.models import Generator, LanguageModel
from tests.decoding.plain import log_probabilities
from tests.interop.test_huggingface import SHAPE, _llama, _marian, _t5

CLOSE, LONGEST = 1e-4, 12
# For each: what to add to every weight, what to make the ends of sub-layers quieter by, a seed, and a word that the model then says now and
# then, to be the end token. So outputs end by themselves, some early, some late.
MODELS: dict[str, tuple[Any, float, float, int, int]] = {
    "gpt2": (lambda end: hf.GPT2LMHeadModel(_untied_gpt2(end)), 0.1, 1.0, 3, 6),
    "llama": (lambda end: hf.LlamaForCausalLM(_llama(eos_token_id=end)), 0.5, 0.5, 3, 49),
    "t5": (lambda end: hf.T5ForConditionalGeneration(_t5(eos_token_id=end, tie_word_embeddings=False)), 0.5, 1.0, 3, 31),
    "marian": (
        lambda end: hf.MarianMTModel(_marian(eos_token_id=end, activation_function="swish", scale_embedding=False)),
        0.3,
        0.35,
        2,
        55,
    ),
}
SUBLAYERS_END = ("out_proj", "c_proj", "fc2", "down_proj", "o_proj", ".o.", ".wo.")
PAD = START = 0


def _untied_gpt2(end: int) -> hf.GPT2Config:
    shape = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 96, "bos_token_id": 1}
    return hf.GPT2Config(**SHAPE, **shape, eos_token_id=end, tie_word_embeddings=False)


@dataclass(frozen=True)
class Output:
    words: list[int]  # with the end token
    score: float


@dataclass(frozen=True)
class Pair:
    """One model, theirs and ours."""

    theirs: Any
    ours: Generator

    @property
    def end(self) -> int:
        return self.ours.config.end_token

    @property
    def continues(self) -> bool:
        return isinstance(self.ours, LanguageModel)

    def generate(self, sources: list[list[int]], **options: Any) -> list[list[Output]]:
        """What theirs writes; they want prompts padded on the left."""
        several, longest = options.get("num_return_sequences", 1), max(map(len, sources))
        fill = [[PAD] * (longest - len(source)) for source in sources]
        rows = [pad + row if self.continues else row + pad for row, pad in zip(sources, fill, strict=True)]
        real = [
            [0] * len(pad) + [1] * len(row) if self.continues else [1] * len(row) + [0] * len(pad)
            for row, pad in zip(sources, fill, strict=True)
        ]
        options = {"max_new_tokens": LONGEST, "do_sample": False, "early_stopping": "never"} | options
        if options.get("num_beams", 1) == 1:
            del options["early_stopping"]
        done = self.theirs.generate(
            torch.tensor(rows), attention_mask=torch.tensor(real), pad_token_id=PAD, eos_token_id=self.end,
            return_dict_in_generate=True, output_scores=True, output_logits=True, **options,
        )  # fmt: skip
        words = [self._cut(row) for row in done.sequences[:, longest if self.continues else 1 :].tolist()]
        if "num_beams" in options:
            scores = done.sequences_scores.tolist()
        else:  # there is none, but the logits tell
            logs = torch.stack(done.logits, 1).log_softmax(-1)
            scores = [sum(float(logs[row, place, word]) for place, word in enumerate(each)) / len(each) for row, each in enumerate(words)]
        both = [Output(each, score) for each, score in zip(words, scores, strict=True)]
        return [both[start : start + several] for start in range(0, len(both), several)]

    def _cut(self, row: list[int]) -> list[int]:
        return row[: row.index(self.end) + 1] if self.end in row else row

    def decode(self, sources: list[list[int]], method: Method, **rules: Any) -> list[list[Output]]:
        found = decode(self.ours, Tokens.pad(sources), method, Rules(**({"max_length": LONGEST} | rules)))
        return [[Output(self._words(output), output.score) for output in outputs] for outputs in found]

    def _words(self, output: Hypothesis) -> list[int]:
        return [*output.tokens, self.end] if output.ended else list(output.tokens)

    def own(self, source: list[int], words: list[int]) -> float:
        """log P of an output, end token included where it has one."""
        logs = log_probabilities(self.ours, source, tuple(words[:-1]))
        return sum(float(logs[place, word]) for place, word in enumerate(words))


@cache
def pair(name: str) -> Pair:
    make, noise, calm, seed, end = MODELS[name]
    torch.manual_seed(seed)
    model = make(end).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * noise)
                if any(part in key for part in SUBLAYERS_END):
                    parameter.mul_(calm)
        for key, buffer in model.named_buffers():
            if key == "final_logits_bias":
                buffer.normal_()
    with TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        ours = load_folder(Path(folder))
    assert isinstance(ours, Generator)
    return Pair(model.double(), ours.double())  # so that no two words are as good as equal


def _sources() -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(3, 61, (1 + number % 11,), generator=generator).tolist() for number in range(24)]


SOURCES = _sources()
FEW = SOURCES[:8]


def assert_same(ours: list[list[Output]], theirs: list[list[Output]]) -> None:
    assert [[output.words for output in outputs] for outputs in ours] == [[output.words for output in outputs] for outputs in theirs]
    for one, other in zip((o for row in ours for o in row), (o for row in theirs for o in row), strict=True):
        assert one.score == pytest.approx(other.score, abs=CLOSE)


@pytest.mark.parametrize("name", MODELS)
def test_greedy_is_theirs(name: str) -> None:
    both = pair(name)
    found = both.decode(SOURCES, GREEDY)
    lengths = {len(outputs[0].words) for outputs in found}
    assert 5 <= sum(outputs[0].words[-1] == both.end for outputs in found) < len(SOURCES)
    assert len(lengths) >= 5
    assert_same(found, both.generate(SOURCES))


@pytest.mark.parametrize(("size", "length_penalty"), [(2, 0.0), (5, 0.0), (4, 0.6), (2, 1.0), (5, 1.0), (4, 2.0)])
@pytest.mark.parametrize("name", MODELS)
def test_beam_search_is_theirs(name: str, size: int, length_penalty: float) -> None:
    """All hypotheses of the beam, in order; and the best alone, for which ours may stop earlier."""
    both = pair(name)
    found = both.decode(FEW, Beam(size=size, n_best=size, length_penalty=length_penalty))
    assert any(output.words[-1] == both.end for outputs in found for output in outputs)
    assert_same(found, both.generate(FEW, num_beams=size, num_return_sequences=size, length_penalty=length_penalty))
    assert_same(both.decode(FEW, Beam(size=size, length_penalty=length_penalty)), [outputs[:1] for outputs in found])


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_prompts_may_be_padded_on_their_side_too(name: str) -> None:
    both = pair(name)
    longest = max(map(len, FEW))
    ids = torch.tensor([[PAD] * (longest - len(source)) + source for source in FEW])
    real = torch.tensor([[False] * (longest - len(source)) + [True] * len(source) for source in FEW])
    found = decode(both.ours, Tokens(ids, real), GREEDY, Rules(max_length=LONGEST))
    assert [both._words(outputs[0]) for outputs in found] == [outputs[0].words for outputs in both.generate(FEW)]


RULES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no pair twice": ({"no_repeat": 2}, {"no_repeat_ngram_size": 2}),
    "no word twice": ({"no_repeat": 1}, {"no_repeat_ngram_size": 1}),
    "least": ({"min_length": 6}, {"min_new_tokens": 6}),
    "most": ({"max_length": 4}, {"max_new_tokens": 4}),
}


@pytest.mark.parametrize("asked", RULES)
@pytest.mark.parametrize("name", MODELS)
def test_rules_are_theirs(name: str, asked: str) -> None:
    both, (ours, theirs) = pair(name), RULES[asked]
    sources = [source[:4] for source in SOURCES if len(source) > 3][:8] if both.continues else FEW  # without padding: see below
    found = both.decode(sources, GREEDY, **ours)
    assert [outputs[0].words for outputs in found] != [outputs[0].words for outputs in both.decode(sources, GREEDY)]
    assert_same(found, both.generate(sources, **theirs))
    beams = both.generate(sources, num_beams=3, num_return_sequences=3, length_penalty=1.0, **theirs)
    assert_same(both.decode(sources, Beam(size=3, n_best=3), **ours), beams)


@pytest.mark.parametrize("name", MODELS)
def test_banned_words_are_theirs(name: str) -> None:
    """One token, and a pair, of what the model would have written."""
    both = pair(name)
    free = [outputs[0].words for outputs in both.decode(FEW, GREEDY)]
    bans = [free[0][:1], next(words[1:3] for words in free if len(words) > 4 and words[1] != free[0][0])]
    found = both.decode(FEW, GREEDY, banned=bans)
    assert [outputs[0].words for outputs in found] != free
    assert_same(found, both.generate(FEW, bad_words_ids=bans))
    beams = both.decode(FEW, Beam(size=3, n_best=3), banned=bans)
    assert_same(beams, both.generate(FEW, num_beams=3, num_return_sequences=3, length_penalty=1.0, bad_words_ids=bans))


@pytest.mark.parametrize("name", MODELS)
def test_repetition_penalty_is_theirs(name: str) -> None:
    both = pair(name)
    found = both.decode(FEW, GREEDY, repetition_penalty=1.3)
    assert [outputs[0].words for outputs in found] != [outputs[0].words for outputs in both.decode(FEW, GREEDY)]
    assert [outputs[0].words for outputs in found] == [outputs[0].words for outputs in both.generate(FEW, repetition_penalty=1.3)]


# Where they differ


@pytest.mark.parametrize("early_stopping", [False, True])
def test_their_default_stops_before_the_best_is_found(early_stopping: bool) -> None:
    """With a length penalty a longer output may still win; theirs does not wait for it. Ours is never worse, and here and there better."""
    better = 0
    for name in MODELS:
        both = pair(name)
        ours = both.decode(SOURCES, Beam(size=2, length_penalty=2.0))
        theirs = both.generate(SOURCES, num_beams=2, length_penalty=2.0, early_stopping=early_stopping)
        for one, other in zip(ours, theirs, strict=True):
            assert one[0].score >= other[0].score - CLOSE
            better += one[0].score > other[0].score + CLOSE
    assert better >= 3


@pytest.mark.parametrize("name", ["t5", "marian"])
def test_their_history_begins_with_the_start_token(name: str) -> None:
    """So a ban that begins with it holds at the first position there; here the start token is no word of the output."""
    both = pair(name)
    source = FEW[2]
    first = both.decode([source], GREEDY)[0][0].words[0]
    assert both.generate([source], bad_words_ids=[[START, first]])[0][0].words[0] != first
    assert both.decode([source], GREEDY, banned=[[START, first]])[0][0].words[0] == first


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_their_history_has_the_padding_of_prompts(name: str) -> None:
    """So there what rules do depends on the batch: padding counts as words that were said. Here it does not."""
    both = pair(name)
    prompts = [FEW[0], FEW[7]]
    assert len(prompts[0]) < len(prompts[1])
    first = both.decode(prompts[:1], GREEDY)[0][0].words[0]
    ban = [[PAD, prompts[0][0], first]]
    alone, beside = both.generate(prompts[:1], bad_words_ids=ban)[0][0].words, both.generate(prompts, bad_words_ids=ban)[0][0].words
    assert alone[0] == first != beside[0]
    assert both.decode(prompts, GREEDY, banned=ban)[0][0].words == both.decode(prompts[:1], GREEDY, banned=ban)[0][0].words == alone


def test_they_never_ban_the_end_token() -> None:
    both = pair("gpt2")
    assert_same(both.generate(FEW, bad_words_ids=[[both.end]]), both.generate(FEW))
    assert all(both.end not in outputs[0].words for outputs in both.decode(FEW, GREEDY, banned=[[both.end]]))


def test_their_scores_are_those_that_rules_have_changed() -> None:
    """A penalty on words is summed up in theirs; ours orders by it, and says what the model itself thinks."""
    both, options = pair("llama"), {"num_beams": 3, "length_penalty": 1.0, "repetition_penalty": 1.2}
    for source, theirs in zip(FEW, both.generate(FEW, **options), strict=True):
        words = theirs[0].words
        repeats = any(word in [*source, *words[:place]] for place, word in enumerate(words))
        assert (theirs[0].score < both.own(source, words) / len(words) - CLOSE) == repeats
    for source, ours in zip(FEW, both.decode(FEW, Beam(size=3), repetition_penalty=1.2), strict=True):
        words = ours[0].words
        assert ours[0].score == pytest.approx(both.own(source, words) / len(words), abs=CLOSE)


def test_a_forced_end_is_theirs_alone() -> None:
    """Marian's folders often ask for one: the last position is the end token then, for nothing. Here what was cut off says so."""
    both = pair("marian")
    theirs = both.generate(FEW, num_beams=2, length_penalty=0.0, forced_eos_token_id=both.end, max_new_tokens=5)
    assert all(outputs[0].words[-1] == both.end for outputs in theirs)
    cut = [(source, outputs[0]) for source, outputs in zip(FEW, theirs, strict=True) if len(outputs[0].words) == 5]
    assert cut
    for source, output in cut:
        assert output.score == pytest.approx(both.own(source, output.words[:-1]), abs=CLOSE)  # the end cost nothing
    found = decode(both.ours, Tokens.pad(FEW), Beam(size=2, length_penalty=0.0), Rules(max_length=5))
    assert any(not outputs[0].ended and len(outputs[0].tokens) == 5 for outputs in found)


@pytest.mark.parametrize("name", MODELS)
def test_their_scores_are_those_of_rescoring(name: str) -> None:
    """log P / length^α, the end token counted in both: theirs and ours mean the same by a score."""
    both = pair(name)
    for source, outputs in zip(FEW, both.generate(FEW, num_beams=2, num_return_sequences=2, length_penalty=0.6), strict=True):
        for output in outputs:
            assert output.score == pytest.approx(both.own(source, output.words) / len(output.words) ** 0.6, abs=CLOSE)

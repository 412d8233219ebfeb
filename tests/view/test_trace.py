"""A trace is what the model worked with: its answer is the one without looking, its numbers are those of the formula."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.bundle import load_bundle
from regard.data.batch import Tokens
from regard.door import Model, load
from regard.door.schemes import schemes
from regard.door.sentence import words_of
from regard.door.trace_types import Trace
from regard.errors import ConfigError, RegardError, ShapeError
from regard.models import build
from regard.nn.layers import Stack
from regard.presets import preset
from regard.shipped import shipped
from regard.view.trace_json import array, as_json, decoded, size
from tests.closeness import assert_close

Models = Callable[[str], Model]
TEXTS = {
    "translator": "3 1 4 1 5",
    "recurrent": "3 1 4 1 5",
    "recurrent_plain": "3 1 4 1 5",
    "apart": "3 1 4 1 5",
    "writer": "the cat",
    "critic": "this film was lovely",
    "guesser": "the cat sat on the [MASK].",
}
TO = {"translator": "back"}


def traced(model: Models, name: str, **more: Any) -> Trace:
    return model(name).trace(TEXTS[name], TO.get(name), **more)


def answered(model: Models, name: str, **options: Any) -> Any:
    loaded, text = model(name), TEXTS[name]
    if "translate" in loaded.verbs:
        return loaded.translate(text, TO.get(name), **options)
    if "generate" in loaded.verbs:
        return loaded.generate(text, **options)
    return loaded.fill(text, choices=10) if "fill" in loaded.verbs else loaded.classify(text)


@pytest.mark.parametrize("name", TEXTS)
def test_looking_changes_no_answer(model: Models, name: str) -> None:
    before = answered(model, name)
    assert traced(model, name).answer == before  # tokens, log-probabilities and scores, bit for bit
    assert answered(model, name) == before


@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 1},
        {"beam_size": 3, "n_best": 3, "length_penalty": 0.6},
        {"beam_size": 4, "groups": 2},
        {"temperature": 1.3, "top_k": 5, "samples": 3, "seed": 7},
        {"mbr": 4, "seed": 2},
        {"ban": ["1"], "no_repeat": 2},
        {"require": ["7"], "beam_size": 4},
        {"max_length": 3, "coverage": 0.4},
        {"prefix": "5"},
    ],
    ids=str,
)
def test_whatever_the_search(model: Models, options: dict[str, Any]) -> None:
    trace = traced(model, "translator", **options)
    assert trace.answer == answered(model, "translator", **options)
    assert trace.search is not None
    tree = trace.search.tree
    assert tree.best is not None
    assert [node.word for node in map(tree.nodes.__getitem__, tree.path(tree.best))][::-1][1:] == [
        *trace.answer.ids,  # type: ignore[union-attr]
        *([2] if trace.answer.ended else []),  # type: ignore[union-attr]
    ]


# The numbers inside


def attention_by_torch(layer: Any, kind: str, x: Tensor, memory: Tensor | None, causal: bool) -> Tensor:
    """The weights (heads, query, key) of PyTorch's own multi-head attention for one layer's parameters."""
    module = getattr(layer, kind)
    length = x.shape[0]
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1) if causal else None
    _, weights = F.multi_head_attention_forward(
        x[:, None], *([x[:, None]] * 2 if memory is None else [memory[:, None]] * 2), x.shape[-1], module.heads,
        module.project.weight, module.project.bias, None, None, False, 0.0, module.join.weight, module.join.bias,
        training=False, attn_mask=hidden, average_attn_weights=False,
    )  # fmt: skip
    assert weights is not None
    return weights[0]


@pytest.mark.parametrize("name", ["translator", "apart"])
def test_weights_are_those_of_the_formula_for_the_beams_choice(model: Models, bundle: Callable[[str], Path], name: str) -> None:
    trace = traced(model, name, beam_size=4)
    network: Any = load_bundle(bundle(name)).model.eval()
    assert trace.source is not None
    assert trace.target is not None
    with torch.no_grad():
        memory = None
        for kind, stack, sentence in (("encoder", network.encoder, trace.source), ("decoder", network.decoder, trace.target)):
            embed = network.embed_source if kind == "encoder" and network.embed_source is not None else network.embed
            x = stack.positions.embed(embed(torch.tensor([sentence.ids])), torch.arange(len(sentence.ids))[None])[0]
            for number, layer in enumerate(stack.layers):
                read = layer.attention_add.norm(x)
                mine = trace.attention[kind].weights
                assert mine is not None
                assert_close(mine[number], attention_by_torch(layer, "attention", read, None, kind == "decoder"), network)
                x = x + F.multi_head_attention_forward(
                    read[:, None], read[:, None], read[:, None], x.shape[-1], layer.attention.heads,
                    layer.attention.project.weight, layer.attention.project.bias, None, None, False, 0.0,
                    layer.attention.join.weight, layer.attention.join.bias, training=False,
                    attn_mask=torch.ones(len(x), len(x), dtype=torch.bool).triu(1) if kind == "decoder" else None,
                )[0][:, 0]  # fmt: skip
                if kind == "decoder":
                    cross = trace.attention["cross"].weights
                    assert cross is not None
                    expected = attention_by_torch(layer, "cross", layer.cross_add.norm(x), memory, False)
                    assert_close(cross[number], expected, network)
                    break  # one layer; the next would need the feed-forward too
                x = layer.feedforward_add(x[None], layer.feedforward)[0]
            memory = stack.norm(x)


def test_every_layer_of_the_translator_that_ships() -> None:
    """Six layers and three, each kind: PyTorch's own attention over what came into each layer, for the hypothesis that the beam chose."""
    trace = load("translator", device="cpu", precision="float32").trace(
        "The little girl is looking at the flowers in the garden.", "it", beam_size=4
    )
    network: Any = load_bundle(shipped()["translator"], dtype=torch.float32).model.eval()
    checked = 0
    with torch.no_grad():
        memory = None
        for kind in ("encoder", "decoder"):
            stack = getattr(network, kind)
            for own, layer in zip(trace.vectors[kind].layers, stack.layers, strict=True):
                assert own.input is not None
                assert own.attention.output is not None
                for which, name, x, keys in (
                    (kind, "attention", layer.attention_add.norm(own.input), None),
                    ("cross", "cross", None if layer.cross is None else layer.cross_add.norm(own.input + own.attention.output), memory),
                ):
                    if x is not None:
                        weights = trace.attention[which].weights
                        assert weights is not None
                        expected = attention_by_torch(layer, name, x, keys, which == "decoder")
                        assert_close(weights[own.layer], expected, network)
                        checked += 1
            if kind == "encoder":
                last = trace.vectors["encoder"].layers[-1]
                assert last.input is not None
                assert last.attention.output is not None
                assert last.feedforward.output is not None
                memory = stack.norm(last.input + last.attention.output + last.feedforward.output)
    assert checked == 6 + 3 + 3


@pytest.mark.parametrize("name", TEXTS)
def test_rows_sum_to_one_and_masked_cells_are_zero(model: Models, name: str) -> None:
    trace = traced(model, name)
    assert bool(trace.attention) == (name != "recurrent_plain")
    for kind, own in trace.attention.items():
        assert own.weights is not None
        torch.testing.assert_close(own.weights.sum(-1), torch.ones(own.weights.shape[:-1]), atol=1e-5, rtol=0)
        assert (own.mask is not None) == (kind == "decoder")
        if own.mask is not None:
            assert not own.weights[:, :, ~own.mask].any()
            assert torch.equal(own.mask, torch.ones_like(own.mask).tril())


def test_the_alignment_is_the_models_own(model: Models) -> None:
    for name in ("translator", "recurrent", "apart"):
        known = answered(model, name, attention=True).alignment
        found = traced(model, name, parts=()).alignment
        assert found is not None
        assert_close(found, known, model(name).network)
    assert traced(model, "recurrent_plain").alignment is None


@pytest.mark.parametrize("name", ["translator", "writer", "critic"])
def test_the_document_says_how_each_vector_came_about(model: Models, name: str) -> None:
    """From what is in the JSON alone: scores from q and k, weights from scores, head outputs from v, and x from layer to layer."""
    loaded = model(name)
    document = json.loads(json.dumps(as_json(traced(model, name))))
    facts = document["model"]
    for stack, own in document["vectors"].items():
        looks = document["attention"][stack]
        assert own["rows"] == list(range(len(document[looks["query"]]["tokens"])))
        embedded = decoded(own["embeddings"]) + (decoded(own["positions"]) if own["positions"] else 0)
        for number, layer in enumerate(own["layers"]):
            x = decoded(layer["input"])
            torch.testing.assert_close(x, embedded, atol=2e-3, rtol=2e-3)
            for kind in ("attention", "cross", "feedforward"):
                if layer[kind] is not None:
                    x = x + decoded(layer[kind]["output"])
            embedded = x  # norms stand before the sub-layers here
            q, k, v = (decoded(looks[what])[number] for what in "qkv")
            scores = q @ k.transpose(-2, -1) * facts["attention_scale"]
            torch.testing.assert_close(decoded(looks["scores"])[number], scores, atol=0.02, rtol=5e-3)
            mask = decoded(looks["mask"]) if looks["mask"] else torch.ones_like(scores[0]).bool()
            weights = decoded(looks["weights"])[number]
            torch.testing.assert_close(weights, decoded(looks["scores"])[number].masked_fill(~mask, -1e9).softmax(-1), atol=2e-3, rtol=0)
            joined = (weights @ v).transpose(0, 1).flatten(1)
            attention: Any = getattr(loaded.network, stack).layers[number].attention
            torch.testing.assert_close(decoded(layer["attention"]["output"]), attention.join(joined), atol=5e-3, rtol=5e-3)
        if stack == "decoder" or name == "critic":
            norm = own["norm"]
            states = F.layer_norm(embedded, (facts["width"],), decoded(norm["weight"]), decoded(norm["bias"]), facts["norm_epsilon"])
            self_made: Any = loaded.network
            if name != "critic":
                logits = self_made.logits(states[None])[0]
                best = [row[0] for row in document["output"]["ids"]]
                assert logits.argmax(-1).tolist() == best
            else:
                assert document["output"]["labels"][int(torch.tensor(document["output"]["logits"]).argmax())] == document["answer"]["label"]


@pytest.mark.parametrize("preset_name", ["transformer-base", "t5-small", "gpt2", "llama-tiny", "bert-base"])
def test_every_style_of_transformer(preset_name: str) -> None:
    """Norms before and after, rms, rotary and biases, grouped queries: on random weights, through the vectors' own rules."""
    from regard.recipe import TokenizerSettings
    from regard.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.train(["a b c d e f g h"] * 3, TokenizerSettings(kind="word", size=30))
    shape: dict[str, Any] = {"vocabulary": tokenizer.size, "width": 24, "layers": 2, "heads": 4, "feedforward": 40, "context": 32}
    shape |= {"dropout": 0.0, "attention_dropout": 0.0, "pad_token": 0, "start_token": 1, "end_token": 2}
    shape |= {"kv_heads": 2} if preset_name == "llama-tiny" else {"head_width": 6} if preset_name == "t5-small" else {}
    shape |= {"labels": ["no", "yes"]} if preset_name == "bert-base" else {}
    loaded = Model(build(preset(preset_name, **shape)).eval(), tokenizer)
    trace = loaded.trace("a b c d", **({} if preset_name == "bert-base" else {"beam_size": 2, "max_length": 5}))
    document = as_json(trace)
    facts = document["model"]
    for stack, own in document["vectors"].items():
        looks = document["attention"][stack]
        for number, layer in enumerate(own["layers"]):
            x = decoded(layer["input"])
            for kind in ("attention", "cross", "feedforward"):
                if layer[kind] is None:
                    continue
                x = x + decoded(layer[kind]["output"])
                if facts["norm_place"] == "after":
                    x = normed(x, layer[kind]["norm"], facts)
            if number + 1 < len(own["layers"]):
                torch.testing.assert_close(decoded(own["layers"][number + 1]["input"]), x, atol=5e-3, rtol=5e-3)
            module: Any = getattr(loaded.network, stack).layers[number]
            assert decoded(layer["feedforward"]["inner"]).shape == (len(own["rows"]), 40)
            v = decoded(looks["v"])[number][looks["kv"]]
            joined = (decoded(looks["weights"])[number] @ v).transpose(0, 1).flatten(1)
            torch.testing.assert_close(decoded(layer["attention"]["output"]), module.attention.join(joined), atol=5e-3, rtol=5e-3)
        assert (own["positions"] is not None) == (facts["positions"] in ("sinusoidal", "learned"))
        assert (own["norm"] is None) == (facts["norm_place"] == "after")
    assert document["schemes"]["own"] in document["schemes"]


def normed(x: Tensor, norm: dict[str, Any], facts: dict[str, Any]) -> Tensor:
    """As docs/trace.md says it."""
    weight, epsilon = decoded(norm["weight"]), facts["norm_epsilon"]
    if facts["norm"] == "rms":
        return x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt() * weight
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + epsilon).sqrt() * weight + decoded(norm["bias"])


def test_a_recurrent_model_shows_its_alignment_and_states(model: Models) -> None:
    trace = traced(model, "recurrent")
    cross, decoder, encoder = trace.attention["cross"], trace.vectors["decoder"], trace.vectors["encoder"]
    assert cross.kind == "additive"
    assert cross.weights is not None
    assert encoder.states is not None
    assert decoder.contexts is not None
    torch.testing.assert_close(decoder.contexts, cross.weights[0, 0] @ encoder.states)  # c_i = Σ α_ij h_j
    assert as_json(traced(model, "recurrent_plain"))["vectors"]["decoder"]["contexts"] is None


# The search


@pytest.mark.parametrize("width", [1, 2, 4])
def test_the_tree_is_the_search(model: Models, width: int) -> None:
    """At every position what was kept is the best of all continuations of what was kept before, by the model's own full passes."""
    loaded = model("translator")
    trace = traced(model, "translator", beam_size=width, n_best=width)
    assert trace.search is not None
    assert trace.source is not None
    tree, network = trace.search.tree, loaded.network
    silent = sorted(loaded.tokenizer.special_ids - {2}) + list(range(loaded.tokenizer.size, loaded.config.vocabulary))
    source = torch.tensor([trace.source.ids])
    for position in range(1, tree.positions + 1):
        here = [node for node in tree.nodes if node.position == position and node.reason != "ruled out"]
        open_before = [n for n, node in enumerate(tree.nodes) if node.position == position - 1 and node.state == "kept"]
        all_of_them: list[tuple[float, int, int]] = []
        for number in open_before:
            words = [tree.nodes[step].word for step in tree.path(number)][::-1][1:]
            with torch.no_grad():
                logs = network(Tokens(source), Tokens(torch.tensor([[1, *words]])))[0, -1].double().log_softmax(-1)
            logs[silent] = -math.inf
            all_of_them += [(tree.nodes[number].total + float(log), number, word) for word, log in enumerate(logs)]
        best = sorted(all_of_them, reverse=True)[: len(here)]
        assert {(parent, word) for _, parent, word in best[: 2 * width]} >= {(n.parent, n.word) for n in here if n.state != "pruned"}
        for node, (total, *_) in zip(here, best, strict=True):
            assert node.total == pytest.approx(total, abs=1e-4)
        assert sum(node.state == "kept" for node in here) <= width


def test_the_tree_ranks_what_the_search_gave(model: Models) -> None:
    trace = traced(model, "translator", beam_size=4, n_best=4)
    assert trace.search is not None
    tree = trace.search.tree
    given = [trace.answer, *trace.answer.alternatives]  # type: ignore[union-attr]
    assert [tree.nodes[number].score for number in tree.finished] == [each.score for each in given]  # type: ignore[union-attr]
    assert tree.nodes[tree.finished[0]].total == pytest.approx(trace.answer.log_probability, abs=1e-5)  # type: ignore[union-attr]
    for number, node in enumerate(tree.nodes[1:], 1):
        assert node.parent is not None
        assert node.parent < number
        assert node.total == pytest.approx(tree.nodes[node.parent].total + node.log_probability)
        assert tree.nodes[node.parent].state == "kept" or tree.nodes[node.parent].reason == "cannot win"


def reasons(trace: Trace) -> set[str | None]:
    assert trace.search is not None
    return {node.reason for node in trace.search.nodes}


def test_the_tree_says_why(model: Models) -> None:
    plain = traced(model, "translator", beam_size=4)
    assert reasons(plain) >= {"beaten", "cannot win"}
    limit = plain.search.rules["max_length"]  # type: ignore[union-attr]
    best = plain.answer.score  # type: ignore[union-attr]
    for node in plain.search.nodes:  # type: ignore[union-attr]
        if node.reason == "cannot win":
            assert node.bound == pytest.approx(node.total / limit)
            assert node.bound <= best
    cut = traced(model, "translator", max_length=2)
    assert reasons(cut) >= {"too long"}
    assert not any(node.ended for node in cut.search.nodes if node.state == "finished")  # type: ignore[union-attr]
    drawn = traced(model, "translator", temperature=3.0, top_k=3, seed=1)
    assert reasons(drawn) >= {"not drawn", "cut off"}
    for node in drawn.search.nodes[1:]:  # type: ignore[union-attr]
        assert (node.chance == 0) == (node.reason == "cut off")


@pytest.mark.parametrize(
    ("options", "rule"),
    [({"ban": ["5"]}, "banned"), ({"prefix": "9"}, "prefix"), ({"min_length": 9}, "min_length"), ({"no_repeat": 1}, "no_repeat")],
    ids=str,
)
@pytest.mark.parametrize("width", [1, 4])
def test_the_tree_names_the_rule(model: Models, options: dict[str, Any], rule: str, width: int) -> None:
    trace = model("translator").trace("5 1 1 5", "same", beam_size=width, **options)
    assert trace.search is not None
    ruled_out = [node for node in trace.search.nodes if node.reason == "ruled out"]
    assert rule in {node.rule for node in ruled_out}
    assert all(node.state == "pruned" for node in ruled_out)


# Chosen parts


def test_only_what_is_asked_for(model: Models) -> None:
    trace = traced(model, "translator", parts=("weights",), heads=(3, 1))
    assert (trace.search, trace.output, trace.schemes, dict(trace.vectors)) == (None, None, None, {})
    cross, whole = trace.attention["cross"], traced(model, "translator").attention["cross"]
    assert cross.heads == (1, 3)
    assert cross.weights is not None
    assert whole.weights is not None
    assert torch.equal(cross.weights, whole.weights[:, [1, 3]])
    assert cross.q is None
    assert cross.scores is None
    assert size(trace) < size(traced(model, "translator")) / 10


def test_only_these_positions(model: Models) -> None:
    trace = traced(model, "translator", positions={"target": (2,), "source": ()})
    whole = traced(model, "translator")
    mine, all_of_it = trace.attention["cross"], whole.attention["cross"]
    assert mine.q is not None
    assert all_of_it.q is not None
    assert torch.equal(mine.q, all_of_it.q[:, :, [2]])
    assert torch.equal(mine.k, all_of_it.k)  # type: ignore[arg-type]  # all keys: a query is compared with each
    assert trace.vectors["decoder"].layers[0].input.shape[0] == 1  # type: ignore[union-attr]
    assert trace.vectors["encoder"].layers[0].input.shape[0] == 0  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"parts": ("wieghts",)}, "did you mean 'weights'"),
        ({"layers": (9,)}, "layers: there is no 9; .* has 1, counted from 0"),
        ({"heads": (-1,)}, "heads: there is no -1"),
        ({"positions": {"sources": (1,)}}, "source and target"),
        ({"candidates": 0}, "candidates = 0 should be .* from 1 to"),
        ({"verb": "classify"}, "not classify"),
        ({"verb": "sing"}, "no trace of 'sing'"),
        ({"beam_sice": 2}, "did you mean 'beam_size'"),
    ],
    ids=str,
)
def test_what_can_not_be_asked_for(model: Models, more: dict[str, Any], message: str) -> None:
    with pytest.raises(RegardError, match=message):
        traced(model, "translator", **more)


def test_texts_that_can_not_be_traced(model: Models) -> None:
    with pytest.raises(ShapeError, match="trace a shorter one"):
        model("translator").trace("1 2 3 " * 40, "back")
    with pytest.raises(ShapeError, match="nothing in the text"):
        model("translator").trace("  ", "back")
    with pytest.raises(ConfigError, match="leave it out for classify"):
        model("critic").trace("a film", beam_size=2)
    with pytest.raises(ConfigError, match="takes neither a language"):
        model("writer").trace("the", to="it")


def test_what_a_model_is_for(model: Models) -> None:
    assert [traced(model, name, parts=()).verb for name in ("translator", "writer", "critic", "guesser")] == [
        "translate", "generate", "classify", "fill"]  # fmt: skip
    assert model("guesser").trace("the cat sat").verb == "embed"


# The document


@pytest.mark.parametrize("name", TEXTS)
def test_the_document_is_plain_json(model: Models, name: str) -> None:
    trace = traced(model, name)
    document = as_json(trace)
    text = json.dumps(document, allow_nan=False)
    assert document["format"] == 1
    assert abs(len(text) - size(trace)) < 0.25 * len(text) + 12_000  # predicted before it is written
    for side in ("source", "target"):
        own = document[side]
        if own is not None:
            assert len(own["tokens"]) == len(own["ids"]) == len(own["special"]) == len(own["words"])
    if document["target"] is not None:
        target, answer = document["target"], document["answer"]
        assert target["next"][target["given"] - 1 :][: len(answer["tokens"])] == answer["tokens"]
        chosen = document["output"]["chosen"][target["given"] - 1 :]
        assert [math.log(each["probability"]) for each in chosen] == pytest.approx(answer["log_probabilities"], abs=1e-3)


def test_arrays_come_back() -> None:
    values = torch.randn(3, 4, 5) * torch.tensor([0.01, 1, 100])[:, None, None]
    torch.testing.assert_close(decoded(array(values, "float32")), values, rtol=0, atol=0)
    torch.testing.assert_close(decoded(array(values, "float16")), values.half().float(), rtol=0, atol=0)
    assert (decoded(array(values, "int8")) - values).abs().max() < values.abs().max() / 250
    assert torch.equal(decoded(array(values > 0, "bool")), values > 0)
    assert torch.isfinite(decoded(array(torch.tensor([1e30, -1e30]), "float16"))).all()
    assert decoded(array(torch.zeros(0, 4), "int8")).shape == (0, 4)


def test_what_does_not_fit_is_left_out_and_said(model: Models) -> None:
    trace = traced(model, "translator")
    whole = as_json(trace)
    assert whole["left_out"] == []
    less = as_json(trace, most=size(trace) - 1)
    assert [each["part"] for each in less["left_out"]] == ["inner"]
    assert less["vectors"]["encoder"]["layers"][0]["feedforward"]["inner"] is None
    least = as_json(trace, most=1)
    assert [each["part"] for each in least["left_out"]] == ["inner", "scores", "vectors", "qkv"]
    assert least["vectors"] == {}
    assert least["attention"]["cross"]["weights"] == whole["attention"]["cross"]["weights"]


def test_words_are_put_together(model: Models) -> None:
    writes = model("writer").tokenizer
    ids = [writes.start_id, *writes.encode("héllo wörld, don't 🦆!"), writes.end_id]
    words: dict[int, list[int]] = {}
    for id, word in zip(ids, words_of(writes, ids), strict=True):
        words.setdefault(word, []).append(id)
    texts = [writes.decode(own).strip() for own in words.values()]
    assert texts == ["", "héllo", "wörld", ",", "don't", "🦆", "!", ""] or texts == ["", "héllo", "wörld", ",", "don't", "🦆!", ""]
    reader = model("critic").tokenizer
    assert words_of(reader, reader.encode("this film was lovely")) == [0, 1, 2, 3]


# Positions


def test_schemes(model: Models) -> None:
    width = 32
    angles = [10000 ** -(2 * pair / width) for pair in range(width // 2)]
    found = schemes(model("translator").network).each["sinusoidal"]
    assert found.similarity is not None
    for distance in (0, 1, 5, 20):  # sin a sin b + cos a cos b = cos(a - b)
        expected = sum(math.cos(distance * angle) for angle in angles) / len(angles)
        for values in vars(found.similarity).values():
            assert float(values[distance]) == pytest.approx(expected, abs=1e-5)
    rotary = schemes(model("writer").network)
    assert rotary.own == "rotary"
    assert rotary.each["rotary"].vectors is not None
    assert rotary.each["rotary"].vectors.shape == (48, 8)  # the context, and the width of a head
    assert schemes(model("recurrent").network).own == "recurrent"
    learned = build(preset("gpt2", vocabulary=20, width=24, heads=4, layers=1, feedforward=8, start_token=1, end_token=2, pad_token=0))
    assert isinstance(learned.decoder, Stack)
    assert torch.equal(schemes(learned).each["learned"].vectors, learned.decoder.positions.weight[:64])  # type: ignore[arg-type]

"""BERT and its like: what their configs and tensor names mean in ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from regard.interop.parts import Architecture, Config, Part, activation, chosen_labels, linear, only, tokens


def bert_config(theirs: Config, names: set[str]) -> Config:
    only(theirs, "position_embedding_type", "absolute", None)
    only(theirs, "is_decoder", False, None)
    return {
        "kind": "encoder",
        "vocabulary": theirs["vocab_size"],
        "layers": theirs["num_hidden_layers"],
        "width": theirs["hidden_size"],
        "heads": theirs["num_attention_heads"],
        "feedforward": theirs["intermediate_size"],
        "activation": activation(theirs["hidden_act"]),
        "norm_epsilon": theirs["layer_norm_eps"],
        "positions": "learned",
        "context": theirs["max_position_embeddings"],
        "embedding_scale": False,
        "embedding_norm": True,
        "token_types": theirs["type_vocab_size"],
        "masked_words": "cls.predictions.bias" in names,
        "pooler": "pooler.dense.weight" in names,
        "pooling": "first",
        "labels": chosen_labels(theirs) if "classifier.weight" in names else [],
        "tied": "cls.predictions.decoder.weight" not in names,
        "dropout": theirs["hidden_dropout_prob"],
        "attention_dropout": theirs["attention_probs_dropout_prob"],
        "init": "normal",
        **tokens(theirs, start=101, end=102),
    }


def bert_parts(config: Config) -> Iterator[Part]:
    yield Part("embed.weight", ("embeddings.word_embeddings.weight",))
    yield Part("token_types.weight", ("embeddings.token_type_embeddings.weight",))
    yield Part("encoder.positions.weight", ("embeddings.position_embeddings.weight",))
    yield from linear("encoder.embedding_norm", "embeddings.LayerNorm")
    for i in range(config["layers"]):
        ours, theirs = f"encoder.layers.{i}", f"encoder.layer.{i}"
        yield from linear(f"{ours}.attention.project", *(f"{theirs}.attention.self.{part}" for part in ("query", "key", "value")))
        yield from linear(f"{ours}.attention.join", f"{theirs}.attention.output.dense")
        yield from linear(f"{ours}.attention_add.norm", f"{theirs}.attention.output.LayerNorm")
        yield from linear(f"{ours}.feedforward.widen", f"{theirs}.intermediate.dense")
        yield from linear(f"{ours}.feedforward.narrow", f"{theirs}.output.dense")
        yield from linear(f"{ours}.feedforward_add.norm", f"{theirs}.output.LayerNorm")
    if config["pooler"]:
        yield from linear("pooler", "pooler.dense")
    if config["masked_words"]:
        yield from linear("masked_words.dense", "cls.predictions.transform.dense")
        yield from linear("masked_words.norm", "cls.predictions.transform.LayerNorm")
        yield Part("masked_words.deembed.bias", ("cls.predictions.bias",))
        if not config["tied"]:
            yield Part("masked_words.deembed.weight", ("cls.predictions.decoder.weight",))
    if config["labels"]:
        yield from linear("classifier", "classifier")


BERT = Architecture(
    bert_config,
    bert_parts,
    ("BertModel", "BertForMaskedLM", "BertForPreTraining", "BertForSequenceClassification"),
    prefix="bert.",
    embedding="embeddings.word_embeddings.weight",
    output="cls.predictions.decoder.weight",
    ignored=("position_ids", "predictions.decoder.bias", "seq_relationship.weight", "seq_relationship.bias"),
)


def roberta_config(theirs: Config, names: set[str]) -> Config:
    masked, classifier = "lm_head.dense.weight" in names, "classifier.out_proj.weight" in names
    if masked:
        only(theirs, "hidden_act", "gelu")  # the only one that its head knows
    return bert_config(theirs, names) | {
        "context": theirs["max_position_embeddings"] - theirs["pad_token_id"] - 1,
        "masked_words": masked,
        "pooler": classifier or "pooler.dense.weight" in names,
        "labels": chosen_labels(theirs) if classifier else [],
        "tied": "lm_head.decoder.weight" not in names,
        **tokens(theirs, start=0, end=2),
    }


def roberta_parts(config: Config) -> Iterator[Part]:
    """BERT's, but positions begin after that of padding, and the heads are its own."""
    bare = config | {"pooler": False, "masked_words": False, "labels": ()}
    for part in bert_parts(bare):
        yield replace(part, skip=config["pad_token"] + 1) if part.ours == "encoder.positions.weight" else part
    if config["labels"]:
        yield from linear("pooler", "classifier.dense")
        yield from linear("classifier", "classifier.out_proj")
    elif config["pooler"]:
        yield from linear("pooler", "pooler.dense")
    if config["masked_words"]:
        yield from linear("masked_words.dense", "lm_head.dense")
        yield from linear("masked_words.norm", "lm_head.layer_norm")
        yield Part("masked_words.deembed.bias", ("lm_head.bias",))
        if not config["tied"]:
            yield Part("masked_words.deembed.weight", ("lm_head.decoder.weight",))


ROBERTA = Architecture(
    roberta_config,
    roberta_parts,
    ("RobertaModel", "RobertaForMaskedLM", "RobertaForSequenceClassification"),
    prefix="roberta.",
    embedding="embeddings.word_embeddings.weight",
    output="lm_head.decoder.weight",
    ignored=("position_ids", "lm_head.decoder.bias"),
)


def distilbert_config(theirs: Config, names: set[str]) -> Config:
    classifier = "classifier.weight" in names
    return {
        "kind": "encoder",
        "vocabulary": theirs["vocab_size"],
        "layers": theirs["n_layers"],
        "width": theirs["dim"],
        "heads": theirs["n_heads"],
        "feedforward": theirs["hidden_dim"],
        "activation": activation(theirs["activation"]),
        "norm_epsilon": 1e-12,
        "positions": "learned",
        "context": theirs["max_position_embeddings"],
        "embedding_scale": False,
        "embedding_norm": True,
        "masked_words": "vocab_transform.weight" in names,
        "pooler": classifier,
        "pooler_activation": "relu",
        "pooling": "first",
        "labels": chosen_labels(theirs) if classifier else [],
        "tied": "vocab_projector.weight" not in names,
        "dropout": theirs["dropout"],
        "attention_dropout": theirs["attention_dropout"],
        "init": "normal",
        **tokens(theirs, start=101, end=102),
    }


def distilbert_parts(config: Config) -> Iterator[Part]:
    yield Part("embed.weight", ("embeddings.word_embeddings.weight",))
    yield Part("encoder.positions.weight", ("embeddings.position_embeddings.weight",))
    yield from linear("encoder.embedding_norm", "embeddings.LayerNorm")
    for i in range(config["layers"]):
        ours, theirs = f"encoder.layers.{i}", f"transformer.layer.{i}"
        yield from linear(f"{ours}.attention.project", *(f"{theirs}.attention.{part}_lin" for part in "qkv"))
        yield from linear(f"{ours}.attention.join", f"{theirs}.attention.out_lin")
        yield from linear(f"{ours}.attention_add.norm", f"{theirs}.sa_layer_norm")
        yield from linear(f"{ours}.feedforward.widen", f"{theirs}.ffn.lin1")
        yield from linear(f"{ours}.feedforward.narrow", f"{theirs}.ffn.lin2")
        yield from linear(f"{ours}.feedforward_add.norm", f"{theirs}.output_layer_norm")
    if config["masked_words"]:
        yield from linear("masked_words.dense", "vocab_transform")
        yield from linear("masked_words.norm", "vocab_layer_norm")
        yield Part("masked_words.deembed.bias", ("vocab_projector.bias",))
        if not config["tied"]:
            yield Part("masked_words.deembed.weight", ("vocab_projector.weight",))
    if config["labels"]:
        yield from linear("pooler", "pre_classifier")
        yield from linear("classifier", "classifier")


DISTILBERT = Architecture(
    distilbert_config,
    distilbert_parts,
    ("DistilBertModel", "DistilBertForMaskedLM", "DistilBertForSequenceClassification"),
    prefix="distilbert.",
    embedding="embeddings.word_embeddings.weight",
    output="vocab_projector.weight",
    ignored=("position_ids",),
)

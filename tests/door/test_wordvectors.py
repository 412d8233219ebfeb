"""The vectors of words at every depth: Hugging Face's hidden states, and static ones that are the same everywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer as Library
from tokenizers import models, normalizers, pre_tokenizers, processors

from regard.door import Model, load
from regard.errors import RegardError
from regard.interop.huggingface import import_folder

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "river", "money", "bank", "grow", "##s", "flow", "un", "##bank", "##ed"]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of theirs with weights drawn by chance, and a vocabulary of whole words and pieces."""
    folder = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    config = hf.BertConfig(vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48,
                           max_position_embeddings=40, initializer_range=0.3)  # fmt: skip
    hf.BertModel(config).save_pretrained(folder)
    library = Library(models.WordPiece({word: id for id, word in enumerate(WORDS)}, unk_token="[UNK]"))
    library.normalizer, library.pre_tokenizer = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    library.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    library.add_special_tokens(WORDS[:5])
    hf.BertTokenizerFast(tokenizer_object=library).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def bert(theirs: Path, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(import_folder(theirs, tmp_path_factory.mktemp("ours") / "bundle"), device="cpu")


@torch.no_grad()
def test_they_are_hugging_faces_hidden_states(theirs: Path, bert: Model) -> None:
    """Every layer's, and before them the rows of the table."""
    text = "The river bank flows"
    model, tokenizer = hf.BertModel.from_pretrained(theirs).eval(), hf.AutoTokenizer.from_pretrained(theirs)
    batch = tokenizer(text, return_tensors="pt")
    hidden = model(**batch, output_hidden_states=True).hidden_states
    found = bert.vectors(text)
    assert found.ids == tuple(batch["input_ids"][0].tolist())
    assert found.tokens == ("[CLS]", "the", "river", "bank", "flow", "s", "[SEP]")
    torch.testing.assert_close(found.layers, torch.stack([states[0] for states in hidden[1:]]), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.static, model.embeddings.word_embeddings(batch["input_ids"])[0])
    word = found.of("bank")
    assert word.shape == (1 + 3, 32)
    torch.testing.assert_close(word[1:], torch.stack([states[0, 3] for states in hidden[1:]]), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.of("flows")[-1], hidden[-1][0, 4:6].mean(0), rtol=1e-4, atol=1e-5)  # two tokens, their mean


def test_static_is_the_same_everywhere_and_the_rest_is_not(bert: Model) -> None:
    money, river = bert.vectors("money bank grows").of("bank"), bert.vectors("river bank flows").of("bank")
    assert torch.equal(money[0], river[0])
    assert all(not torch.allclose(a, b) for a, b in zip(money[1:], river[1:], strict=True))
    twice = bert.vectors("the bank the bank")
    assert not torch.allclose(twice.of("bank")[1:], twice.of("bank", 1)[1:])


def test_a_word_that_is_not_there(bert: Model) -> None:
    with pytest.raises(RegardError, match=r"there is no word 'money' in 'the river bank'; its tokens are \[CLS\] the river bank \[SEP\]"):
        bert.vectors("the river bank").of("money")
    with pytest.raises(RegardError, match=r"'bank' stands 1 times in .* occurrence = 1 is too many"):
        bert.vectors("the river bank").of("bank", 1)


def test_over_bytes_a_word_is_found_with_its_space(model: Callable[[str], Model]) -> None:
    """Our own vocabulary; the last layer is what `embed` takes the mean of, also where norms come before the sub-layers."""
    found = model("guesser").vectors("the cat sat on the mat.")
    assert found.of("cat").shape == (2, 32)
    torch.testing.assert_close(found.layers[-1].mean(0), model("guesser").embed("the cat sat on the mat.", pooling="mean"))


def test_a_language_model_has_none(model: Callable[[str], Model]) -> None:
    with pytest.raises(RegardError, match="but not embed"):
        model("writer").vectors("the cat")

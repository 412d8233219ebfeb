"""Words become vectors: one-hot, TF-IDF, word2vec, and why none of them knows what a word means here."""

from __future__ import annotations

import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from torch.nn import functional as F

from regard.config import EncoderConfig
from regard.data.batch import Tokens
from regard.errors import RegardError
from regard.models import Encoder
from regard.nn.backends import attend
from regard.nn.embedding import Deembedder, Embedder
from regard.text.vectors import WordVectors, one_hot, skip_gram, tf_idf

APPLES = ["An apple a day keeps the doctor away", "Apple is healthy", "Apple is better than orange", "Apple makes great phones"]


def test_one_hot_vectors_have_nothing_in_common() -> None:
    vectors = one_hot(["mat", "cat", "rat"], ["mat", "cat", "rat"])
    torch.testing.assert_close(vectors, torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1]]))
    torch.testing.assert_close(vectors @ vectors.T, torch.eye(3))
    with pytest.raises(RegardError, match="'bat'"):
        one_hot(["bat"], ["mat", "cat", "rat"])


def test_tf_idf_equals_sklearn() -> None:
    oracle = TfidfVectorizer()
    expected = torch.from_numpy(oracle.fit_transform([*APPLES, ""]).toarray())
    words, weights = tf_idf([*APPLES, ""])
    assert words == list(oracle.get_feature_names_out())
    torch.testing.assert_close(weights, expected)


def test_tf_idf_counts_rare_words_more() -> None:
    words, weights = tf_idf(APPLES)
    makes, apple = words.index("makes"), words.index("apple")  # once each in the last sentence; "apple" is in all four
    assert weights[3, makes] > weights[3, apple]
    with pytest.raises(RegardError, match="no words"):
        tf_idf(["", "a"])


def test_king_and_queen_are_alike() -> None:
    vectors = WordVectors(("king", "queen"), torch.tensor([[0.6, 0.1, 1.0, 0.9], [0.3, 0.2, 0.9, 1.0]]))
    expected = (vectors["king"] @ vectors["queen"] / (vectors["king"].norm() * vectors["queen"].norm())).item()
    assert vectors.similarity("king", "queen") == pytest.approx(expected)
    assert expected > 0.95  # one-hot vectors of two words would give 0
    with pytest.raises(RegardError, match="'jack'"):
        vectors["jack"]


def royal_sentences() -> list[list[str]]:
    people = [[who, verb, "the", "realm"] for who in ("king", "queen") for verb in ("rules", "governs", "guards")]
    animals = [[who, verb, "some", "milk"] for who in ("cat", "kitten") for verb in ("drinks", "laps", "wants")]
    return (people + animals) * 2


def test_words_with_like_contexts_get_like_vectors() -> None:
    vectors = skip_gram(royal_sentences(), generator=torch.Generator().manual_seed(1))
    for one, other, stranger in (("king", "queen", "cat"), ("cat", "kitten", "queen"), ("rules", "governs", "laps")):
        assert vectors.similarity(one, other) > vectors.similarity(one, stranger) + 0.3


def test_word2vec_is_repeated_by_its_seed() -> None:
    first, again, other = (
        skip_gram(royal_sentences(), epochs=3, generator=torch.Generator().manual_seed(seed)).matrix for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    with pytest.raises(RegardError, match="neighbour"):
        skip_gram([["alone"]], generator=torch.Generator())


def test_static_vectors_know_no_sentence() -> None:
    sentences = [["money", "bank", "grows"], ["river", "bank", "flows"]]
    vectors = skip_gram(sentences, epochs=3, generator=torch.Generator().manual_seed(1))
    assert sorted(vectors.words) == ["bank", "flows", "grows", "money", "river"]  # five vectors for six words of text
    assert vectors.matrix.shape[0] == 5
    ids = torch.tensor([[vectors.words.index(word) for word in sentence] for sentence in sentences])
    embedder = Embedder(5, 16, scaled=False)
    embedder.load_state_dict({"weight": vectors.matrix})
    embedded = embedder(ids)
    torch.testing.assert_close(embedded[0, 1], embedded[1, 1])
    torch.testing.assert_close(embedded[0, 1], vectors["bank"])


def test_static_vector_of_apple_is_its_average_meaning() -> None:
    """Nine sentences in ten speak of fruit, so (taste, technology) comes to (0.9, 0.1): attention whose weights are all equal."""
    meanings = torch.tensor([[1.0, 0.0]] * 9 + [[0.0, 1.0]])
    average = attend(torch.zeros(1, 2), meanings, meanings)
    torch.testing.assert_close(average.output, torch.tensor([[0.9, 0.1]]))


def test_word2vec_tilts_apple_to_the_commoner_meaning() -> None:
    fruit = [["apple", "tastes", "sweet"], ["orange", "tastes", "sweet"]]
    technology = [["apple", "makes", "phones"], ["samsung", "makes", "phones"]]
    sentences = fruit * 9 + [technology[0]] + [technology[1]] * 9
    vectors = skip_gram(sentences, generator=torch.Generator().manual_seed(1))
    assert vectors.similarity("apple", "orange") > vectors.similarity("apple", "samsung") + 0.2


MONEY = torch.tensor([[0.7, 0.2, 0.1], [0.25, 0.7, 0.05], [0.1, 0.2, 0.7]], dtype=torch.float64)  # money bank grows
RIVER = torch.tensor([[0.8, 0.15, 0.05], [0.2, 0.78, 0.02], [0.4, 0.01, 0.59]], dtype=torch.float64)  # river bank flows


@pytest.mark.parametrize("weights", [MONEY, RIVER, torch.tensor([[0.2, 0.7, 0.1], [0.5, 0.4, 0.1]], dtype=torch.float64)])
def test_a_context_vector_is_a_weighted_sum_of_the_sentence(weights: torch.Tensor) -> None:
    words = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    # Scores whose softmax is the notes' weights: their logarithms, asked for by queries over keys that are the unit vectors.
    mixed = attend(weights.log(), torch.eye(3, dtype=torch.float64), words, scale=1.0)
    torch.testing.assert_close(mixed.weights, weights)
    for row, new in zip(weights, mixed.output, strict=True):
        torch.testing.assert_close(new, row[0] * words[0] + row[1] * words[1] + row[2] * words[2])


def test_bank_by_the_river_is_not_the_bank_for_money() -> None:
    generator = torch.Generator().manual_seed(1)
    money, bank, grows, river, flows = torch.randn(5, 4, dtype=torch.float64, generator=generator)
    unit = torch.eye(3, dtype=torch.float64)
    for_money = attend(MONEY.log(), unit, torch.stack((money, bank, grows)), scale=1.0).output[1]
    by_river = attend(RIVER.log(), unit, torch.stack((river, bank, flows)), scale=1.0).output[1]
    torch.testing.assert_close(for_money, 0.25 * money + 0.7 * bank + 0.05 * grows)
    torch.testing.assert_close(by_river, 0.2 * river + 0.78 * bank + 0.02 * flows)
    assert (for_money - by_river).abs().max() > 0.01


def test_an_encoder_gives_apple_a_vector_for_each_context() -> None:
    torch.manual_seed(1)
    config = EncoderConfig(vocabulary=10, layers=1, width=8, heads=2, feedforward=16, positions="none", dropout=0.0)
    model = Encoder(config).eval()
    apple, healthy, phones = 3, 4, 5
    tokens = Tokens(torch.tensor([[apple, healthy], [apple, phones], [apple, healthy]]))
    embedded, states = model.embed(tokens.ids), model(tokens)
    assert torch.equal(embedded[0, 0], embedded[1, 0])
    assert (states[0, 0] - states[1, 0]).abs().max() > 0.01
    torch.testing.assert_close(states[0, 0], states[2, 0])


def test_embedder_is_one_hot_times_a_matrix() -> None:
    words, vocabulary = ["cat", "mat", "cat"], ["mat", "cat", "rat"]
    ids = torch.tensor([[vocabulary.index(word) for word in words]])
    plain, scaled = Embedder(3, 16, scaled=False), Embedder(3, 16)
    torch.testing.assert_close(plain(ids)[0], one_hot(words, vocabulary) @ plain.weight)
    torch.testing.assert_close(scaled(ids), F.one_hot(ids, 3).float() @ scaled.weight * 16**0.5)  # as the paper scales it


def test_de_embedding_finds_the_word_again() -> None:
    torch.manual_seed(1)
    embedder = Embedder(50, 64)
    ids = torch.arange(50)[None]
    logits = Deembedder(64, 50, tied=True)(embedder(ids), embedder)
    assert torch.equal(logits.softmax(-1).argmax(-1), ids)


def test_ten_thousand_words_need_ten_thousand_logits() -> None:
    torch.manual_seed(1)
    embedder, deembed = Embedder(10_000, 512), Deembedder(512, 10_000, tied=False)
    x = torch.randn(512)
    with torch.no_grad():
        deembed.weight[1234] = x  # each cell scores one word: this one fits the vector best
    logits = deembed(x[None, None], embedder)
    chances = logits.softmax(-1)
    assert logits.shape == (1, 1, 10_000)
    assert chances.min() >= 0
    torch.testing.assert_close(chances.sum(-1), torch.ones(1, 1))
    assert chances.argmax() == 1234

"""The second voice is a plain loop over a dictionary."""

import gzip
import subprocess
import sys

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from transformers import AutoModel

from bertflow.data.corpus import words_of
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.transformer import StaticEncoder
from bertflow.encoder.word_vectors import WordVectorEncoder
from bertflow.errors import BertflowError
from bertflow.text_keys import hash_texts

from .conftest import make

VECTORS = {
    "the": [0.1, 0.0, 0.3],
    "dog": [1.0, 2.0, 3.0],
    "Paris": [-1.0, 0.5, 2.0],
    "paris": [9.0, 9.0, 9.0],
    "'t": [0.0, -1.0, 0.0],
    "don": [4.0, 4.0, -4.0],
    "naïve": [1.0, 1.0, 0.0],
}
SENTENCES = ["The dog", "Paris, the DOG!", "don\u2019t the the", "naïve dog dog"]


def lines(vectors=VECTORS):
    return "".join(f"{word} {' '.join(map(str, vector))}\n" for word, vector in vectors.items())


@pytest.fixture
def write(tmp_path):
    def write_file(content, name="vectors.txt"):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write_file


@pytest.fixture
def glove(write):
    """Opens a file with all vectors."""
    return lambda *options: WordVectorEncoder(write(lines()), *options)


def by_hand(sentence, counts=None):
    total, weights = np.zeros(3), 0.0
    for word in words_of(sentence):
        vector = VECTORS.get(word, VECTORS.get(word.lower()))
        weight = 1.0 if counts is None else 1e-3 / (1e-3 + counts.get(word.lower(), 0) / sum(counts.values()))
        if vector is not None:
            total, weights = total + weight * np.array(vector), weights + weight
    return total / weights


FORMS = {
    "glove.txt": lines(),
    "word2vec.txt": f"7 3\n{lines()}",
    "fasttext.vec": f"7 3\n{lines()}".replace("\n", " \n").replace("7 3 ", "7 3"),
    "windows.txt": lines().replace("\n", "\r\n"),
    "packed.txt.gz": gzip.compress(lines().encode(), mtime=0),
    "unfinished.txt": lines().rstrip("\n"),
}


@pytest.mark.parametrize(("name", "content"), FORMS.items())
def test_every_form_of_file_gives_the_mean_of_its_words(name, content, write):
    x = WordVectorEncoder(write(content, name)).encode(SENTENCES)
    assert_allclose(x, [by_hand(sentence) for sentence in SENTENCES], rtol=1e-6)


@pytest.mark.parametrize("counts", [{"the": 90, "dog": 10}, {"dog": 1}])
def test_sif_weighs_by_the_counts_given(counts, glove):
    x = glove("sif", counts).encode(SENTENCES)
    assert_allclose(x, [by_hand(sentence, counts) for sentence in SENTENCES], rtol=1e-5)


def test_sif_counts_a_corpus(glove):
    x = glove("sif").count_words(["the The dog", "the"]).encode(SENTENCES)
    expected = [by_hand(sentence, {"the": 3, "dog": 1}) for sentence in SENTENCES]
    assert_allclose(x, expected, rtol=1e-5)


def test_a_word_is_looked_up_as_written_then_in_lower_case(glove):
    x = glove().encode(["Paris", "PARIS", "paris"])
    assert_allclose(x, [VECTORS["Paris"], VECTORS["paris"], VECTORS["paris"]], rtol=1e-6)


def test_punctuation_is_left_out_and_contractions_are_split():
    assert words_of("Don\u2019t, the dog's (2nd) house.") == ["Don", "'t", "the", "dog", "'s", "2nd", "house"]


def test_words_with_blanks_in_them_are_not_taken_for_their_first_part(write):
    odd = f"the dog . 5 5 5\n{lines({'the': [1, 2, 3]})}".encode()
    path = write(b"zero 0 0 0\n" + odd)
    assert_array_equal(WordVectorEncoder(path).encode(["the"]), [[1, 2, 3]])


def test_of_a_word_that_comes_twice_the_first_counts(write):
    assert_array_equal(WordVectorEncoder(write("a 1 2\na 3 4\n")).encode(["a"]), [[1, 2]])


def test_what_is_out_of_vocabulary_is_counted_and_said(glove, caplog):
    glove().encode(["the dog sings loudly", "the cat sings"])
    assert caplog.messages == [
        "4 of 7 words (3 different ones: sings, loudly, cat, ...) have no vector in vectors.txt and are left out."
    ]


def test_a_sentence_without_a_known_word_is_the_first_word_of_the_file(glove, caplog):
    x = glove().encode(["?!", "quux", "dog"])
    assert_allclose(x, [VECTORS["the"], VECTORS["the"], VECTORS["dog"]], rtol=1e-6)
    assert caplog.messages[1] == (
        "2 of 3 sentences have no word with a vector; they are embedded as the first word of vectors.txt."
    )


def test_no_sentences_are_no_rows(glove):
    assert glove().encode([]).shape == (0, 3)


THREE = "{path}, line 2: a word and 3 numbers with blanks between them are wanted, got"
DAMAGED = {
    "": "{path}, line 1: a word and its numbers are wanted, got ''. {how}",
    "9 3\n": f"{THREE} ''. {{how}}",
    "the 1 2 3\ndog 1 2\n": f"{THREE} 'dog 1 2'. {{how}}",
    "the 1 2 3\ndog 1 2 x\n": f"{THREE} 'dog 1 2 x'. {{how}}",
    "the 1 2 3\ndog 1 2 nan\n": "{path}, line 2: the vector of 'dog' is not finite. Fetch the file again.",
    "5 3\nthe 1 2 3\ndog 1 2 3\n": "{path} should hold 5 words by its first line, but holds 2. Fetch it again.",
}


@pytest.mark.parametrize(("content", "message"), DAMAGED.items())
def test_a_damaged_file_is_refused_with_its_line(refusal, content, message, write):
    path = write(content)
    how = "A file as an encoder holds word vectors, in the text form of GloVe, word2vec or fastText, unpacked or .gz."
    assert refusal(lambda: WordVectorEncoder(path).encode(["the dog"])) == message.format(path=path, how=how)


NOTHING = "Word counts need words with counts above zero, got none, or a negative one. Count again."
REFUSED = {
    "a missing file": (lambda path, bert: WordVectorEncoder("none.txt"), "none.txt is missing. Give the path of an "
                       "existing file."),
    "a pooling": (lambda path, bert: WordVectorEncoder(path, "cls"),
                  "Unknown pooling of words 'cls'. Known: mean, sif."),
    "a static pooling": (lambda path, bert: StaticEncoder(bert, "cls"),
                         "Unknown pooling of static vectors 'cls'. Known: content, mean, sif, max."),
    "no counts": (lambda path, bert: WordVectorEncoder(path, "sif").encode(["the"]),
                  "The pooling sif needs word counts. Call count_words(sentences), or give word_counts."),
    "a negative count": (lambda path, bert: WordVectorEncoder(path, "sif", {"the": -1, "dog": 3}), NOTHING),
}  # fmt: skip


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused(refusal, write, tiny_bert, make, message):
    assert refusal(make, write(lines()), tiny_bert, error=BertflowError) == message


@pytest.mark.parametrize("pooling", ["mean", "sif"])
def test_it_says_what_it_was_fitted_on(pooling, glove):
    encoder = glove(pooling).count_words(["the dog"])
    expected = hash_texts(["the dog"]) if pooling == "sif" else []
    assert isinstance(encoder, SentenceEncoder)
    assert_array_equal(encoder.fitted_hashes(), expected)
    assert encoder.describe()["pooling"] == f"words-{pooling}"


def test_counts_without_their_text_are_unknown(glove):
    assert glove("sif", {"the": 3}).fitted_hashes() is None


def test_another_file_is_another_recipe(write):
    recipes = [WordVectorEncoder(write(lines(dict(list(VECTORS.items())[:n])))).describe() for n in (3, 4)]
    assert recipes[0]["weights"] != recipes[1]["weights"]


MEMORY = """
import resource, sys
from bertflow.encoder.word_vectors import WordVectorEncoder
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
x = WordVectorEncoder(sys.argv[1]).encode([f"word{k}" for k in range(0, 60000, 600)])
print(x.shape, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def test_a_file_larger_than_the_memory_it_takes_is_streamed(tmp_path):
    numbers = " ".join(["0.12345"] * 100)
    path = tmp_path / "large.vec"
    with path.open("w") as file:
        file.writelines(f"word{k} {numbers}\n" for k in range(60000))
    finished = subprocess.run([sys.executable, "-c", MEMORY, str(path)], capture_output=True, text=True, check=True)
    shape, grown = finished.stdout.rsplit(maxsplit=1)
    assert shape == "(100, 100)"
    assert int(grown) < path.stat().st_size / 5


def test_static_vectors_are_rows_of_the_embedding_matrix(tiny_bert, bert_tokenizer):
    matrix = AutoModel.from_pretrained(tiny_bert).get_input_embeddings().weight.detach()
    sentences = ["the dog sings", "a big red house and a cat", "birds"]
    ids = [bert_tokenizer(sentence, add_special_tokens=False)["input_ids"] for sentence in sentences]
    expected = [np.mean([matrix[token].numpy() for token in tokens], axis=0) for tokens in ids]
    assert_allclose(StaticEncoder(tiny_bert).encode(sentences), expected, atol=1e-6)


def test_static_sif_weighs_as_the_transformer_does(tiny_bert):
    text = ["the dog sings", "the cat", "the the"]
    static = StaticEncoder(tiny_bert, "sif").count_tokens(text)
    raw = make(tiny_bert, "sif(0)").count_tokens(text)
    assert static.describe()["token_counts"] == raw.describe()["token_counts"]
    assert_array_equal(static.fitted_hashes(), raw.fitted_hashes())
    assert isinstance(static, SentenceEncoder)

import pytest
from transformers import AutoTokenizer

from bertflow.studies.tokens import KINDS, read_vocabulary
from bertflow.words.tokens import whole_words


class Made:
    """A tokenizer that is its vocabulary."""

    def __init__(self, tokens, special=()):
        self._tokens = tokens
        self.all_special_tokens = list(special)
        self.special_tokens_map = dict(zip(["cls_token"], special, strict=False))

    def get_vocab(self):
        return {token: at for at, token in enumerate(self._tokens)}


WORDPIECE = ["[CLS]", "[unused1]", "a", "##b", "rock", "##ing", "##ed", "#", "##"]
BYTE_LEVEL = ["<s>", "Ġa", "b", "Ġrock", "ing", "ed", "Ġ"]
LOW_LINE = ["<s>", "\u2581a", "b", "\u2581rock", "ing", "ed", "\u2581"]
EXPECTED = {"special": 1, "characters": 1, "character pieces": 1, "words": 1, "pieces": 2}


@pytest.mark.parametrize(
    ("tokens", "sign", "more"),
    [
        (WORDPIECE, "##", {"unused": 1, "characters": 2, "words": 2}),
        (BYTE_LEVEL, "Ġ", {"unused": 0, "character pieces": 2}),
        (LOW_LINE, "\u2581", {"unused": 0, "character pieces": 2}),
    ],
)
def test_every_token_is_of_one_kind(tokens, sign, more):
    vocabulary = read_vocabulary(Made(tokens, tokens[:1]))
    assert vocabulary.mark == sign
    assert {kind: len(found) for kind, found in vocabulary.tokens.items()} == EXPECTED | more
    assert sum(map(len, vocabulary.tokens.values())) == vocabulary.size == len(tokens)


def test_lengths_are_counted_without_the_mark():
    vocabulary = read_vocabulary(Made(WORDPIECE, WORDPIECE[:1]))
    assert vocabulary.lengths == {"words": {1: 2, 2: 1, 4: 1}, "pieces": {1: 1, 2: 1, 3: 1}}


def test_a_vocabulary_of_words_has_no_mark():
    vocabulary = read_vocabulary(Made(["the", "rock", "##", "a"]))
    assert vocabulary.mark == ""
    assert vocabulary.tokens["pieces"] == []


def test_examples_are_spread_over_the_vocabulary():
    vocabulary = read_vocabulary(Made([f"word{at}" for at in range(100)]))
    assert vocabulary.examples("words", 4) == ["word0", "word25", "word50", "word75"]
    assert vocabulary.examples("pieces", 4) == []


def test_a_real_bert_vocabulary_adds_up(minilm):
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    vocabulary = read_vocabulary(tokenizer)
    by_hand = list(tokenizer.get_vocab())
    assert vocabulary.size == 30522
    assert len(vocabulary.tokens["unused"]) == sum(token.startswith("[unused") for token in by_hand) == 994
    pieces = [token for token in by_hand if token.startswith("##") and len(token) > 2]
    assert len(vocabulary.tokens["pieces"]) + len(vocabulary.tokens["character pieces"]) == len(pieces) == 5828
    assert set(vocabulary.tokens) == set(KINDS)
    assert vocabulary.special["mask_token"] == "[MASK]"


@pytest.mark.parametrize(
    "tokens",
    [
        ["the", "##ing", "[CLS]", "cat", "42"],
        ["\u0120the", "ing", "<s>", "\u0120cat", "\u012042"],
        ["\u2581the", "ing", "<s>", "\u2581cat", "\u258142"],
    ],
    ids=["WordPiece", "byte-level BPE", "SentencePiece"],
)
def test_whole_words_are_neither_pieces_nor_signs(tokens):
    assert whole_words(Made(tokens)) == {"the": 0, "cat": 3}

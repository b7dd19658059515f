"""Words are found by text, whatever the tokenizer: WordPiece, byte-level BPE, and SentencePiece's low lines."""

from functools import partial

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertTokenizerFast, PreTrainedTokenizerFast

from bertflow.errors import DataError, UsageError
from bertflow.words.study import Mention
from bertflow.words.tokens import find_word, read_tokens, spelled_alike, stack_tokens

TEXT = ["a rock and a rocking rock", "the king and queen rock", "New York is no rock", "café", "don't rock-solid"] * 4
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def word_piece(lower):
    letters = sorted(set("".join(TEXT)) - {" "})
    words = ["a", "rock", "king", "queen", "York", "york", "new", "New", "##ing", "the", "and", "is", "no", "cafe"]
    spelled = [*SPECIAL, *dict.fromkeys([*words, *letters, *(f"##{letter}" for letter in letters)])]
    return BertTokenizerFast(vocab={word: at for at, word in enumerate(spelled)}, do_lower_case=lower)


def trained(rules, trainer, model, normalizer=None):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer, tokenizer.decoder = rules
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.train_from_iterator(TEXT, trainer(special_tokens=["<s>", "</s>", "<unk>"], show_progress=False))
    start, end = (tokenizer.token_to_id(token) for token in ("<s>", "</s>"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", start), ("</s>", end)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **{f"{name}_token": "<s>" for name in ("bos", "cls")}, eos_token="</s>",
        sep_token="</s>", unk_token="<unk>",
    )  # fmt: skip


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
BPE = partial(trainers.BpeTrainer, vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
LOW_LINES = pre_tokenizers.Metaspace(), decoders.Metaspace()
UNIGRAM = partial(trainers.UnigramTrainer, vocab_size=60, unk_token="<unk>")
TOKENIZERS = {
    "uncased": word_piece(True),
    "cased": word_piece(False),
    "byte-level": trained(BYTES, BPE, models.BPE()),
    "low line": trained(LOW_LINES, UNIGRAM, models.Unigram(), normalizers.NFKC()),
}


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request):
    return TOKENIZERS[request.param]


def found(tokenizer, word, sentence, occurrence=1):
    """The characters that the tokens of a mention stand for: the second voice is the sentence itself."""
    tokens = read_tokens(tokenizer, sentence)
    at = find_word(tokens, Mention(word, sentence, occurrence), tokenizer)
    start, end = tokens.encoding.offsets[at[0]][0], tokens.encoding.offsets[at[-1]][1]
    bare = sentence[start:end]
    return start + len(bare) - len(bare.lstrip()), bare.strip()


@pytest.mark.parametrize("occurrence", [1, 2])
def test_the_nth_whole_word_is_found(tokenizer, occurrence):
    sentence = "a rock and a rocking rock"
    assert found(tokenizer, "rock", sentence, occurrence) == ([2, 21][occurrence - 1], "rock")


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("rocking", "a rock and a rocking rock"),
        ("rock", "rock and a king"),
        ("queen", "the king, and queen."),
        ("New York", "the New York rock"),
        ("don't", "don't rock"),
        ("rock", "a rock-solid king"),
        ("café", "the café is no rock"),
    ],
)
def test_words_are_whole_wherever_they_stand(tokenizer, word, sentence):
    assert found(tokenizer, word, sentence) == (sentence.index(word), word)


@pytest.mark.parametrize("word", ["roc", "ock", "ing", "queens", "rock and queen", "[CLS]"])
def test_what_is_no_whole_word_of_the_sentence_is_not_found(tokenizer, word, refusal):
    assert "is not in the sentence" in refusal(found, tokenizer, word, "a rock and a rocking queen")


@pytest.mark.parametrize(("word", "sentence"), [("king", "the King"), ("KING", "the king"), ("cafe", "the café")])
def test_case_and_accents_are_the_tokenizers(word, sentence, refusal):
    assert found(TOKENIZERS["uncased"], word, sentence)[0] == 4
    assert "is not in the sentence" in refusal(found, TOKENIZERS["cased"], word, sentence)


class Slow:
    is_fast = False


UNCASED, CASED = TOKENIZERS["uncased"], TOKENIZERS["cased"]


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: found(UNCASED, "queen", "a rocking King."), DataError,
         "The word 'queen' is not in the sentence 'a rocking King.'. Its pieces are [CLS] a rock ##ing king [UNK] "
         "[SEP]. Name a whole word, in the case that the tokenizer has it."),
        (lambda: found(CASED, "rock", "rock and rock", 3), DataError,
         "The word 'rock' stands 2 times in the sentence 'rock and rock', and occurrence 3 was asked for. Its pieces "
         "are [CLS] rock and rock [SEP]. Name a whole word, in the case that the tokenizer has it."),
        *((lambda one=one: found(one, " ", "a rock"), DataError,
           "A word is wanted, got ' '. Name one that stands in 'a rock'.") for one in TOKENIZERS.values()),
        (lambda: Mention("rock", "a rock", 0), UsageError, "Occurrences count from 1, got 0 for the word 'rock'."),
        (lambda: spelled_alike(UNCASED, " "), DataError, "The word ' ' has no tokens for this model. Leave it out."),
        (lambda: read_tokens(Slow(), "a rock"), UsageError,
         "The tokenizer Slow cannot say where in a text its pieces stand. Choose a model with a tokenizer.json."),
    ],
)  # fmt: skip
def test_what_cannot_be_found_is_refused_in_words(call, kind, message, refusal):
    assert refusal(call, error=kind) == (message)


def test_a_word_alone_is_spelled_as_inside_a_sentence(tokenizer):
    tokens = read_tokens(tokenizer, "the king")
    at = find_word(tokens, Mention("king", "the king"), tokenizer)
    assert spelled_alike(tokenizer, "king") == tokens.encoding.ids[at.start : at.stop]


def test_a_pair_is_read_with_its_parts():
    tokens = read_tokens(TOKENIZERS["uncased"], "a rock", "the king")
    assert tokens.encoding.tokens == ["[CLS]", "a", "rock", "[SEP]", "the", "king", "[SEP]"]
    assert tokens.segments == [0, 0, 0, 0, 1, 1, 1]
    assert tokens.encoding.sequence_ids == [None, 0, 0, None, 1, 1, None]


def test_a_batch_is_padded_on_the_right():
    rows = [read_tokens(TOKENIZERS["uncased"], text, segment=1) for text in ("a rock", "the king and queen")]
    batch = stack_tokens(rows, pad_id=0)
    assert batch["attention_mask"].sum(1).tolist() == [4, 6]
    assert batch["input_ids"][0].tolist() == [*rows[0].encoding.ids, 0, 0]
    assert batch["token_type_ids"].tolist() == [[1, 1, 1, 1, 0, 0], [1] * 6]

"""Texts as tokens, as a model takes them in; where a word stands among them; and what a tokenizer keeps whole.

Tokenizers mark either the pieces that go on with a word (WordPiece: ##ing) or those that begin one (byte-level BPE: Ġ,
SentencePiece: a low line).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from tokenizers import Encoding
from tokenizers.decoders import ByteLevel
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from bertflow.encoder.abstract import check_sentences
from bertflow.encoder.batching import placing
from bertflow.errors import DataError
from bertflow.words.study import Mention

SPACE = "\u2581"
"""What SentencePiece writes for a space."""
MARKS: Mapping[str, bool] = {"##": True, "Ġ": False, SPACE: False}
"""How tokenizers mark pieces, and whether a marked piece goes on with a word; others begin one."""


@dataclass(frozen=True)
class Tokens:
    """One text, or a pair of them, as a model reads it.

    Attributes:
        texts: The text, or the two of a pair.
        encoding: Its pieces with their ids, places in the text, words, and which text of a pair they belong to.
        segments: Segment of each token: which text of a pair it belongs to, for models that are told; else 0.
    """

    texts: tuple[str, ...]
    encoding: Encoding
    segments: Sequence[int]

    def __len__(self) -> int:
        return len(self.encoding.ids)


def read_tokens(
    tokenizer: PreTrainedTokenizerBase, text: str, second: str | None = None, segment: int | None = None
) -> Tokens:
    """Cut one text, or a pair; nothing is truncated.

    Args:
        tokenizer: The model's own.
        text: The text, or the first of a pair.
        second: The second of a pair.
        segment: Given to every token instead of what the tokenizer says.

    Raises:
        UsageError: If the tokenizer cannot say where its pieces stand.
        DataError: If there is no token at all.
    """
    texts = (text,) if second is None else (text, second)
    check_sentences(texts)
    (encoding,) = placing(tokenizer)(*texts, verbose=False).encodings
    if not encoding.ids:
        raise DataError(f"The text {text!r} has no tokens for this model. Leave it out.")
    return Tokens(texts, encoding, encoding.type_ids if segment is None else [segment] * len(encoding.ids))


def stack_tokens(texts: Sequence[Tokens], pad_id: int) -> dict[str, Tensor]:
    """Several texts side by side, padded on the right, as transformers takes them; each tensor (text, token)."""

    def padded(rows: Iterable[Sequence[int]], fill: int = 0) -> Tensor:
        return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=fill)

    return {
        "input_ids": padded((tokens.encoding.ids for tokens in texts), pad_id),
        "attention_mask": padded([1] * len(tokens) for tokens in texts),
        "token_type_ids": padded(tokens.segments for tokens in texts),
    }


def find_word(tokens: Tokens, mention: Mention, tokenizer: PreTrainedTokenizerBase) -> range:
    """The tokens that are the word.

    Raises:
        DataError: If it is not there, or not that often; the message names word, sentence and pieces.
    """
    target = normalize(tokenizer, mention.word)
    if not target:
        raise DataError(f"A word is wanted, got {mention.word!r}. Name one that stands in {mention.sentence!r}.")
    parts, offsets = tokens.encoding.sequence_ids, tokens.encoding.offsets
    borders = [at for at in range(len(tokens) + 1) if not _cuts(tokens, at)]
    places: list[range] = []
    for at, start in enumerate(borders[:-1], start=1):
        part = parts[start]
        if part is None or (places and start < places[-1].stop):
            continue
        for end in borders[at:]:
            spelled = normalize(tokenizer, tokens.texts[part][offsets[start][0] : offsets[end - 1][1]])
            if parts[end - 1] != part or len(spelled) > len(target):
                break
            if spelled == target:
                places.append(range(start, end))
                break
    if len(places) >= mention.occurrence:
        return places[mention.occurrence - 1]
    there = f"stands {len(places)} times in" if places else "is not in"
    asked = f", and occurrence {mention.occurrence} was asked for" if places else ""
    raise DataError(
        f"The word {mention.word!r} {there} the sentence {mention.sentence!r}{asked}. Its pieces are "
        f"{' '.join(tokens.encoding.tokens)}. Name a whole word, in the case that the tokenizer has it."
    )


def spelled_alike(tokenizer: PreTrainedTokenizerBase, word: str) -> list[int]:
    """Token ids of a word by itself, spelled as inside a sentence: byte-level BPE marks the space before a word.

    Raises:
        DataError: If there are none.
    """
    ids: list[int] = tokenizer(f" {word.strip()}", add_special_tokens=False, verbose=False)["input_ids"]
    if not ids:
        raise DataError(f"The word {word!r} has no tokens for this model. Leave it out.")
    return ids


def normalize(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    """Text as the tokenizer sees it: lower-cased, stripped of accents, or as it is."""
    normalizer = tokenizer.backend_tokenizer.normalizer
    return str(text if normalizer is None else normalizer.normalize_str(text)).replace(SPACE, " ").strip()


def _cuts(tokens: Tokens, index: int) -> bool:
    """Whether a word goes on across the border in front of token ``index``."""
    words = tokens.encoding.word_ids
    if index in (0, len(tokens)) or words[index] is None or words[index] != words[index - 1]:
        return False
    text, place = tokens.texts[tokens.encoding.sequence_ids[index] or 0], tokens.encoding.offsets[index][0]
    return text[place - 1 : place].isalnum() and text[place : place + 1].isalnum()


def whole_words(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Words of letters alone and their token ids: no pieces, numbers, signs or special tokens."""
    ids = tokenizer.get_vocab()
    mark = mark_of(ids)
    read = ((*read_token(token, mark), ids[token]) for token in sorted(ids, key=ids.__getitem__))
    return {bare: index for bare, goes_on, index in read if not goes_on and bare.isalpha()}


def mark_of(tokens: Iterable[str]) -> str:
    """The mark that most tokens bear; "##" by itself is a token like any other."""
    counts = Counter(mark for token in tokens for mark in MARKS if token.startswith(mark) and token != mark)
    return max(MARKS, key=counts.__getitem__) if counts else ""


def read_token(token: str, mark: str) -> tuple[str, bool]:
    """A token without its mark, and whether it goes on with a word; of byte-level BPE what its bytes spell."""
    bare = token.removeprefix(mark) or token
    goes_on = (bare != token) == MARKS.get(mark, True)
    return (ByteLevel().decode([bare]) if mark == "Ġ" else bare), goes_on

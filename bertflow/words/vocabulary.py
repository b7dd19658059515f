"""How tokenizers mark their tokens, and the words that they keep whole.

Tokenizers mark either the pieces that go on with a word (WordPiece: ##ing) or those that begin one (byte-level BPE: Ġ,
SentencePiece: a low line).
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from tokenizers.decoders import ByteLevel
from transformers import PreTrainedTokenizerBase

MARKS: Mapping[str, bool] = {"##": True, "Ġ": False, "\u2581": False}
"""How tokenizers mark pieces, and whether a marked piece goes on with a word; others begin one."""


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

"""What is a word, in any script.

नमस्ते दुनिया    letters with their marks, between spaces
    今天|天气|很好    two letters at a time, of scripts without spaces (Thai, Lao, Burmese, Khmer, Japanese, Chinese)

A text of the second kind has then about as many words as it has in English, and as many different ones as in Finnish.
"""

import re
from collections.abc import Iterator

import regex

_UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
UNSPACED = rf"(?:[{_UNSPACED}]\p{{M}}*){{1,2}}"
"""A word of a script without spaces, for ``regex``."""
_WORD = regex.compile(rf"[^\W\d_{_UNSPACED}]+|{UNSPACED}")
"""A word. In ``regex``, unlike in ``re``, marks belong to \\w."""
_ASCII = re.compile(r"[A-Za-z]+")
"""A word where all is ASCII, three times as fast."""


def written_words(text: str) -> Iterator[tuple[str, bool]]:
    """The words of a text in their order, without digits and punctuation; whether each follows right upon the last."""
    end = -1
    for word in (_ASCII if text.isascii() else _WORD).finditer(text):
        yield word[0], word.start() == end
        end = word.end()

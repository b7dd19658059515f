"""What is a word, in any script.

    नमस्ते दुनिया    letters with their marks, between spaces
    今天|天气|很好    two letters at a time, of scripts without spaces (Thai, Lao, Burmese, Khmer, Japanese, Chinese)

A text of the second kind has then about as many words as it has in English, and as many different ones as in Finnish.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import cache

_UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
_LETTER = f"[{_UNSPACED}]"
UNSPACED = rf"{_LETTER}{{1,2}}"
"""A word of a script without spaces, where marks need not be told from letters."""
_SPACED = rf"[^\W{_UNSPACED}]+"
SEARCHED = rf"(?=({_LETTER}{{2}}|(?<!{_LETTER}){_LETTER}|{_SPACED}))(?:{_LETTER}|{_SPACED})"
"""What BM25 counts: words and numbers; of scripts without spaces every two letters, which overlap (今天 天天 天气)."""
_ASCII = re.compile(r"[A-Za-z]+")
"""A word where all is ASCII."""


@cache
def marks() -> str:
    """The marks of letters, such as vowels in Hindi and Thai, for a class of ``re``: not letters to it."""
    return "".join(one for one in map(chr, range(0x300, 0x1F000)) if unicodedata.category(one)[0] == "M")


@cache
def _word() -> re.Pattern[str]:
    spaced, unspaced = (rf"(?:{letter}[{marks()}]*)" for letter in (rf"[^\W\d_{_UNSPACED}]", _LETTER))
    return re.compile(rf"{spaced}+|{unspaced}{{1,2}}")


def written_words(text: str) -> Iterator[tuple[str, bool]]:
    """The words of a text in their order, without digits and punctuation; whether each follows right upon the last."""
    end = -1
    for word in (_ASCII if text.isascii() else _word()).finditer(text):
        yield word[0], word.start() == end
        end = word.end()

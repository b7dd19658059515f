"""Prose out of docstrings: paragraphs and sentences, without code, tables and markup.

A docstring is cut into blocks at its blank lines. A block is prose if all its lines start at the margin and none looks
like a prompt, a list, a table, a field or a directive; a heading over its underline is dropped. Rules, not a parser:
what is in doubt is left out.
"""

import inspect
import re
from collections.abc import Iterator

WORDS = (4, 60)
"""The fewest and the most words of a sentence."""

_NOT_PROSE = re.compile(
    r"""
      >>>|\.\.\.(\s|$)|\$\s           # prompts
    | [-*+•]\s|\(?\w{1,2}[.)]\s      # lists
    | \||\+[-=]                       # tables
    | :\w[^:]*:|@\w+|\.\.\s           # fields and directives
    | (\w+\s+)*\w+:$                  # "Args:"
    | \w+\s:\s|\w+\s\(.*\)(:|\s--)    # parameters
    | \w[\w.]*\(.*\)\s*(->.*)?$       # signatures
    """,
    re.VERBOSE,
)
# A colon that announces what is not prose, the signs of code, a stop after a citation that was taken out.
_LEFTOVER = re.compile(r":$|[{}\\|=<>$]|::|https?:|__|\s[.,;](\s|$)")
_UNDERLINE = re.compile(r"([=\-~^\"'`#*+.])\1{2,}$")
_MARKUP = (
    (re.compile(r":[\w:+-]+:`~?(?:[^`<]*\.)?([^`<.]+)(?:\s*<[^>`]*>)?`"), r"\1"),  # :class:`~torch.nn.Module`
    (re.compile(r"`([^`<]+?)\s*<[^>`]*>`_*"), r"\1"),  # `text <address>`_
    (re.compile(r"\[`?([^\]`]+)`?\]\([^)]*\)"), r"\1"),  # [text](address)
    (re.compile(r"\[`~?(?:[\w.]*\.)?(\w+)`\]"), r"\1"),  # [`~generation.utils.Name`]
    (re.compile(r"\[\d+\]_?"), ""),  # [1]_
    (re.compile(r"`+([^`]+)`+_*"), r"\1"),  # ``code``
    (re.compile(r"\*\*([^*]+)\*\*"), r"\1"),  # **bold**
    (re.compile(r"(?<![\w*])\*([^*\s][^*]*)\*(?![\w*])"), r"\1"),  # *emphasis*
)
_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]?[A-Z])")
_ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|cf|vs|etc|resp|Fig|Eq|Sec|Ref|No|Dr|Mr|Mrs|St|al|approx|[A-Z]))\.$")


def paragraphs(docstring: str) -> Iterator[str]:
    """The paragraphs of a docstring that are prose, one line each, without markup."""
    for block in re.split(r"\n\s*\n", inspect.cleandoc(docstring)):
        lines = _without_heading(block.splitlines())
        if lines and not any(line.startswith((" ", "\t")) or _NOT_PROSE.match(line) for line in lines):
            paragraph = plain(" ".join(lines))
            if paragraph and not _LEFTOVER.search(paragraph):
                yield paragraph


def sentences(paragraph: str) -> list[str]:
    """The complete sentences of a paragraph: capital first, stop last, of a length that ``WORDS`` allows."""
    return [sentence for sentence in _cut(paragraph) if is_sentence(sentence)]


def is_summary(paragraph: str) -> bool:
    """Whether a paragraph reads as the summary line of a docstring: one sentence, its stop often left out."""
    words = paragraph.split()
    return 3 <= len(words) <= WORDS[1] and paragraph[0].isupper() and len(list(_cut(paragraph))) == 1


def is_sentence(text: str) -> bool:
    """Whether a text reads as one complete sentence."""
    words = text.split()
    letters = sum(character.isalpha() or character == " " for character in text)
    return (
        WORDS[0] <= len(words) <= WORDS[1]
        and text.lstrip("\"'(")[:1].isupper()
        and text.rstrip("\"')").endswith((".", "!", "?"))
        and letters >= 0.85 * len(text)
    )


def plain(text: str) -> str:
    """A text without inline markup, white space collapsed."""
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    return " ".join(text.split())


def _without_heading(lines: list[str]) -> list[str]:
    """A block without a heading and its underline, if it starts with them."""
    if len(lines) > 1 and _UNDERLINE.match(lines[1].strip()):
        return lines[2:]
    return lines


def _cut(paragraph: str) -> Iterator[str]:
    start = 0
    for gap in _END.finditer(paragraph):
        if not _ABBREVIATION.search(paragraph, start, gap.start()):
            yield paragraph[start : gap.end()].strip()
            start = gap.end()
    yield paragraph[start:].strip()

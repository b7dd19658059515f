"""Text that every machine has: the prose of the docstrings of Python and of what bertflow depends on; plain sentences.

Sentences to fit on, and retrieval pairs with natural labels: a docstring's summary line must find the paragraph that
follows it. Files are read, never imported; those that cannot be decoded are counted and logged. The text depends on
the versions that are installed, so ``source`` names them. Reading takes about ten seconds on one core.

A docstring is a text in triple quotes that opens a file or follows a line that ends in a colon: Python's own parser
finds the same in 5,672 of 5,689 files, in five times the time. It is cut into blocks at its blank lines. A block is
prose if all its lines start at the margin and none looks like a prompt, a list, a table, a field or a directive; a
heading over its underline is dropped. These are rules, not a parser: what is in doubt is left out.
"""

import ast
import inspect
import json
import os
import platform
import re
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import version
from importlib.resources import files as package_files
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path

import numpy as np

from bertflow.data import DOCSTRINGS
from bertflow.data.corpus import drawn_rows, sentence_spans
from bertflow.data.pairs import Pairs
from bertflow.errors import DataError, logger
from bertflow.progress import working
from bertflow.text_keys import text_key, unique_pairs

PLAIN = tuple(json.loads((package_files("bertflow.data") / "plain_sentences.json").read_text(encoding="utf-8")))
"""26 short sentences: most are English, some other languages, code, and what a tokenizer stumbles over. Golden vectors
are of them, and encoders are told apart by them; they never change, so that files of years can be compared."""
PACKAGES: Mapping[str, str] = {
    "numpy": "numpy",
    "scipy": "scipy",
    "sklearn": "scikit-learn",
    "torch": "torch",
    "pytorch_lightning": "pytorch-lightning",
    "lightning_fabric": "pytorch-lightning",
    "torchmetrics": "torchmetrics",
    "nflows": "nflows",
    "transformers": "transformers",
    "datasets": "datasets",
    "pandas": "pandas",
    "huggingface_hub": "huggingface_hub",
    "safetensors": "safetensors",
    "jsonargparse": "jsonargparse",
    "rich": "rich",
}
"""Module -> its package: the core dependencies, and those of their own dependencies that hold much prose."""

DOCSTRING_PAIRS = 500
"""Pairs of docstrings, where no others are given."""
SOME_FILES = 400
"""Source files, drawn at random, that give some 700 pairs in 0.5 s on one core (AMD EPYC); all take ten times that."""
LEFT_OUT = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "testing", "idlelib", "lib2to3", "__pycache__"}
    # transformers describes hundreds of models in one and the same words, and they take a third of the time.
    | {"models"}
)
"""Folders that are not read."""

WORDS = (4, 60)
"""The fewest and the most words of a sentence."""

# A colon at the end of a line, blank lines and comments, then a text in triple quotes.
_DOCSTRING = re.compile(
    r""":[ \t]*(?:\#[^\n]*)?\n(?:[ \t]*(?:\#[^\n]*)?\n)*[ \t(]*(?:\n[ \t]*)?
        ((?P<raw>[rR]?)[uU]?(?P<quotes>\"""|''')
            (?P<text>[^\\"']*(?:(?:\\.|(?!(?P=quotes))["'])[^\\"']*)*)(?P=quotes))""",
    re.DOTALL | re.VERBOSE,
)
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
_BLANK = re.compile(r"\n\s*\n")
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


def docstring_sentences() -> list[str]:
    """Distinct sentences by exact text, in the order of packages, paths and lines."""
    found = map(sentences, chain.from_iterable(_read_prose(None)))
    return list(dict.fromkeys(chain.from_iterable(found)))


def docstring_pairs(files: int | None = None) -> Pairs:
    """Summary lines and the paragraphs that follow them; no query and no text occurs twice.

    Args:
        files: Read only this many files, drawn at random with a fixed seed: a tenth of them takes a tenth of the time.
    """
    pairs = unique_pairs(
        (prose[0], prose[1])
        for prose in _read_prose(files)
        if len(prose) > 1 and is_summary(prose[0]) and sentences(prose[1])
    )
    packages = dict.fromkeys(package for module, package in PACKAGES.items() if find_spec(module))
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    first, second = zip(*pairs, strict=True) if pairs else ((), ())
    source = f"docstrings of Python {platform.python_version()}, {versions}"
    return Pairs(DOCSTRINGS, first, second, kind="retrieval", source=source)


def general_text() -> list[str]:
    """Distinct sentences of some docstrings, which stand for text in general: some 1,800, about 11 words long."""
    pairs = docstring_pairs(SOME_FILES)
    return list(dict.fromkeys([*pairs.first, *chain.from_iterable(map(sentences, pairs.second))]))


def docstring_corpus(n_pairs: int, n_sentences: int | None = None, seed: int = 0) -> tuple[list[str], Pairs]:
    """Sentences to fit on and pairs to score, that share no text.

    Args:
        n_pairs: How many pairs to draw.
        n_sentences: How many sentences to draw; all that are left if None.
        seed: The same seed draws the same, from the same installed versions.

    Returns:
        The sentences and the pairs. By text key, no sentence is a query or a text, nor a sentence of one.

    Raises:
        DataError: If there are fewer pairs or sentences than asked for.
    """
    generator = np.random.default_rng(seed)
    pairs = docstring_pairs()
    chosen = _draw(generator, len(pairs), n_pairs, "pairs")
    scored = pairs.taken(chosen)
    shown = {text_key(sentence) for text in scored.sentences for sentence in (text, *sentences(text))}
    left = [sentence for sentence in docstring_sentences() if text_key(sentence) not in shown]
    fitted = _draw(generator, len(left), len(left) if n_sentences is None else n_sentences, "sentences")
    return [left[k] for k in fitted], scored


def _draw(generator: np.random.Generator, n: int, wanted: int, noun: str) -> list[int]:
    """Distinct indices in rising order."""
    if wanted > n:
        raise DataError(f"{wanted} {noun} are wanted, but the docstrings hold {n}. Ask for at most {n}.")
    return sorted(generator.permutation(n)[:wanted].tolist())


@cache
@working("reading the docstrings of installed packages")
def _read_prose(files: int | None = None) -> tuple[tuple[str, ...], ...]:
    """The prose paragraphs of every docstring that has any; read once a process.

    Args:
        files: Read only this many files, and only the two paragraphs of a docstring that make a pair.
    """
    most = None if files is None else 2
    prose: list[tuple[str, ...]] = []
    skipped = 0
    paths = list(_source_files())
    for path in (paths[k] for k in drawn_rows(len(paths), len(paths) if files is None else files, 0)):
        try:
            texts = (text for text in read_docstrings(path) if files is None or _BLANK.search(text))
            prose += [found for text in texts if (found := tuple(islice(paragraphs(text), most)))]
        except (SyntaxError, ValueError, OSError):  # SyntaxError: no such coding, ValueError: not of the coding it says
            skipped += 1
    if skipped:
        logger.info("Docstrings: %d files could not be read and are left out.", skipped)
    if not prose:
        raise DataError("The installed packages hold no docstrings (is Python zipped?). Give your own text.")
    return tuple(prose)


def read_docstrings(path: str | Path) -> Iterator[str]:
    """The docstrings of a Python file, top down.

    Raises:
        SyntaxError: If the coding that the file names is not known.
        ValueError: If the file cannot be decoded.
    """
    with tokenize.open(path) as file:
        found = _DOCSTRING.finditer(":\n" + file.read())  # the file's own docstring, too, follows a colon
    for match in found:
        if "\\" not in match["text"] or match["raw"]:
            yield match["text"]
            continue
        with warnings.catch_warnings(action="ignore"):  # of others' escapes
            yield ast.literal_eval(match[1])


def _source_files() -> Iterator[str]:
    """The files of the standard library, then of each package, sorted."""
    specs = [spec for module in PACKAGES if (spec := find_spec(module))]
    places = chain.from_iterable(spec.submodule_search_locations or () for spec in specs)
    for root in [sysconfig.get_path("stdlib"), *places]:
        found: list[str] = []
        for folder, inside, files in os.walk(root):
            inside[:] = [name for name in inside if name not in LEFT_OUT]  # os.walk does not go there then
            found += [f"{folder}/{name}" for name in files if name.endswith(".py")]
        yield from sorted(found, key=lambda path: path.split("/"))  # the order of paths, in less time


def paragraphs(docstring: str) -> Iterator[str]:
    """The paragraphs of a docstring that are prose, one line each, without markup."""
    for block in _BLANK.split(inspect.cleandoc(docstring)):
        lines = block.splitlines()
        if len(lines) > 1 and _UNDERLINE.match(lines[1].strip()):
            lines = lines[2:]  # without a heading and its underline
        if lines and not any(line.startswith((" ", "\t")) or _NOT_PROSE.match(line) for line in lines):
            paragraph = plain(" ".join(lines))
            if paragraph and not _LEFTOVER.search(paragraph):
                yield paragraph


def sentences(paragraph: str) -> list[str]:
    """The complete sentences of a paragraph: capital first, stop last, of a length that ``WORDS`` allows."""
    return [paragraph[start:stop] for start, stop in sentence_spans(paragraph) if is_sentence(paragraph[start:stop])]


def is_summary(paragraph: str) -> bool:
    """Whether a paragraph reads as the summary line of a docstring: one sentence, its stop often left out."""
    words = paragraph.split()
    return 3 <= len(words) <= WORDS[1] and paragraph[0].isupper() and len(list(sentence_spans(paragraph))) == 1


def is_sentence(text: str) -> bool:
    """Whether a text reads as one complete sentence."""
    return (
        WORDS[0] <= len(text.split()) <= WORDS[1]
        and text.lstrip("\"'(")[:1].isupper()
        and text.rstrip("\"')").endswith((".", "!", "?"))
        and sum(character.isalpha() or character == " " for character in text) >= 0.85 * len(text)
    )


def plain(text: str) -> str:
    """A text without inline markup, white space collapsed."""
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    return " ".join(text.split())

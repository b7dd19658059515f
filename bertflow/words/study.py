"""What a study of words is: which words, in which contexts, and what to compare.

A study is rows, one a mention of a word in a sentence. Each mention has a label ("king", or "bank vault" for one of
three banks), and every context has the same labels, so that there is one matrix of similarities a context, beside that
of the static vectors. The studies that are shipped lie in ``studies/``; a file of yours has the same form:

    {"mentions": [{"context": "court", "word": "king", "sentence": "The king and also the queen ruled."}, ...],
     "pairs": [["king", "queen"]],
     "closer": [["king", "queen", "apple"]],
     "offsets": [["king", "man", "queen", "woman"]]}
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bertflow.errors import DataError, UnknownNameError, UsageError
from bertflow.records import read_record

if TYPE_CHECKING:
    from bertflow.words.compare import StudyResult

SHIPPED = ("king-queen", "bank", "bank-separate")
"""Names of the studies in ``studies/``."""
STATIC = "static"
"""What the panel of static vectors is called, and so no context can be."""
TEXTS, NUMBERS = ("context", "word", "sentence", "label"), ("occurrence", "segment")
"""Keys of a mention and what they hold; the first three must be there, the label is the word by default."""
LISTS: Mapping[str, int] = {"pairs": 2, "closer": 3, "offsets": 4}
"""Keys of a study that hold lists of labels, and how many labels such a list has."""
Labels = tuple[str, ...]


@dataclass(frozen=True)
class Mention:
    """A word in its sentence.

    Attributes:
        word: Whole, as the tokenizer's case has it; may be several words.
        sentence: Where it stands.
        occurrence: Which one, from 1, where it stands there several times.
        segment: Of all tokens of the sentence; 0 by default, and for models that are not told.
    """

    word: str
    sentence: str
    occurrence: int = 1
    segment: int | None = None

    def __post_init__(self) -> None:
        if self.occurrence < 1:
            raise UsageError(f"Occurrences count from 1, got {self.occurrence} for the word {self.word!r}.")


@dataclass(frozen=True)
class Study:
    """Words in contexts, and what to compare.

    Attributes:
        title: What it is about.
        contexts: The mentions of each context, by their labels.
        pairs: (a, b): whose similarity is followed from layer to layer; every two where none are named.
        closer: (a, b, c): is a nearer to b than to c?
        offsets: (a, b, c, d): is a - b the same as c - d?

    Raises:
        DataError: If there is nothing to compare, or contexts differ in their labels.
    """

    title: str
    contexts: Mapping[str, Mapping[str, Mention]]
    pairs: tuple[Labels, ...] = ()
    closer: tuple[Labels, ...] = ()
    offsets: tuple[Labels, ...] = ()

    def __post_init__(self) -> None:
        if not self.contexts or len(self.labels) < 2:
            raise DataError("A study compares at least two words in a context. Add mentions.")
        if STATIC in self.contexts:
            raise DataError(f"No context can be called {STATIC!r}, since the static vectors are. Rename it.")
        for context, mentions in self.contexts.items():
            if alone := mentions.keys() ^ set(self.labels):
                raise DataError(
                    f"Every context has the same labels, but {', '.join(sorted(alone))} stands in one of {context!r} "
                    f"and {next(iter(self.contexts))!r} alone. Add a mention, or drop that label everywhere."
                )
        for label in self.labels:
            words = {mentions[label].word.casefold() for mentions in self.contexts.values()}
            if len(words) > 1:
                raise DataError(
                    f"A label has one static vector, but {label!r} stands for {' and '.join(sorted(words))}. "
                    "Give each word a label of its own."
                )
        for key in LISTS:
            if unknown := {label for labels in getattr(self, key) for label in labels} - set(self.labels):
                raise DataError(
                    f"{key} names {', '.join(sorted(unknown))}, but the labels are {', '.join(self.labels)}. "
                    "Use those, or add mentions."
                )

    @property
    def labels(self) -> Labels:
        """Of the rows and columns of every matrix."""
        return tuple(next(iter(self.contexts.values())))

    @property
    def words(self) -> list[str]:
        """The word of each label, whose static vector it has."""
        return [mention.word for mention in next(iter(self.contexts.values())).values()]

    def mentions(self, context: str) -> list[Mention]:
        """One mention a label."""
        return [self.contexts[context][label] for label in self.labels]

    def followed(self) -> tuple[Labels, ...]:
        """The pairs to follow."""
        return self.pairs or tuple(combinations(self.labels, 2))


def load_study(name: str | Path, segment: int | None = None) -> Study:
    """Read a study.

    Args:
        name: One of ``SHIPPED``, or a JSON file of the same form.
        segment: For the mentions that name none.

    Raises:
        UnknownNameError: If it is neither.
        DataError: If a file has another form; the message names the file and what is wrong.
    """
    if str(name) in SHIPPED:
        with as_file(files("bertflow.words") / "studies" / f"{name}.json") as path:
            return _read(read_record(path, dict[str, Any], "study"), str(name), segment)
    if not Path(name).is_file():
        raise UnknownNameError(f"Unknown study {str(name)!r}. Known: {', '.join(SHIPPED)}; or a JSON file of yours.")
    content = read_record(name, dict[str, Any], "study", "Repair the file.")
    try:
        return _read(content, str(name), segment)
    except DataError as error:
        raise DataError(f"{name}: {error}") from None


def word_study(words: Sequence[str], sentences: Sequence[str], segment: int | None = None) -> Study:
    """Some words, all of them in each of some sentences.

    Args:
        words: ``king``, or ``bank#2`` for the second of several.
        sentences: Each is a context.
        segment: Of all tokens.

    Raises:
        DataError: If there is nothing to compare.
    """
    if repeated := [word for at, word in enumerate(words) if word in words[:at]]:
        raise DataError(f"The word {repeated[0]!r} is named twice. Write {repeated[0]}#2 for its second occurrence.")
    contexts = {
        f"context {number}": {word: _numbered(word, sentence, segment) for word in words}
        for number, sentence in enumerate(sentences, start=1)
    }
    return Study(f"{', '.join(words)} in {len(sentences)} sentences", contexts)


def compare_words(
    words: Sequence[str] | None = None,
    sentences: Sequence[str] | None = None,
    *,
    study: str | Path | None = None,
    pooling: Sequence[str] | None = None,
    segment: int | None = None,
    model: str | Path | None = None,
    revision: str | None = None,
    output: str | Path | None = None,
    format: Literal["png", "svg"] | None = None,  # noqa: A002 - the command's word
) -> "StudyResult":
    """Compare static and contextual vectors of words.

    How alike are words by their static vectors (the embedding matrix), and in their contexts, layer by layer? Cosine
    and Euclidean distance, and whether offsets such as king - man and queen - woman agree, as vectors and in length.

    Args:
        words: Whole words that stand in every sentence; bank#2 is the second of a sentence.
        sentences: The contexts.
        study: Instead: king-queen, bank (three banks in one sentence), bank-separate (in three), or a JSON file.
        pooling: Poolings of the pieces of a word, as mean(3) or mean(1,2) (default: the mean at every layer).
        segment: Segment of every token (default: 0).
        model: Hub id or folder (default: the embedded MiniLM).
        revision: Branch, tag or commit, for a hub id.
        output: Folder to write words.json and heatmaps to; needs matplotlib.
        format: File format of the heatmaps: png or svg (default: png).

    Raises:
        UsageError: If options do not go together, or the model has no such pooling or segment.
        DataError: If a word is not in its sentence, or a study is not complete.
    """
    by_hand = bool(words or sentences)
    if by_hand == (study is not None):
        got = "both" if by_hand else "neither"
        raise UsageError(f"Words with sentences (--in), or a study, are wanted; got {got}. Give one of them.")
    if by_hand and not (words and sentences):
        missing = "the words to look for are" if not words else "a sentence (--in) is"
        raise UsageError(f"Words and sentences belong together, but {missing} missing. Give both.")
    if format and output is None:
        raise UsageError("format is for the pictures, which need output. Give both or neither.")
    chosen = word_study(words or (), sentences or (), segment) if study is None else load_study(study, segment)
    if output is not None:
        import bertflow.plots  # noqa: F401 - refuses before the work is done, not after
    from bertflow.encoder.embedded import embedded_encoder
    from bertflow.words.compare import run_study
    from bertflow.words.encoder import WordEncoder

    result = run_study(WordEncoder(model or embedded_encoder(), revision), chosen, pooling or ())
    return result if output is None else result.written_to(Path(output), format or "png")


def _numbered(spelled: str, sentence: str, segment: int | None) -> Mention:
    word, _, number = spelled.rpartition("#")
    if word and number.isdecimal():
        return Mention(word, sentence, int(number), segment)
    return Mention(spelled, sentence, segment=segment)


def _read(content: dict[str, Any], name: str, segment: int | None) -> Study:
    known = {"title", "mentions", *LISTS}
    if not isinstance(content.get("mentions"), list) or content.keys() - known:
        raise DataError(f"A study is an object with a list of mentions, and of {', '.join(LISTS)}; this is another.")
    contexts: dict[str, dict[str, Mention]] = {}
    for number, row in enumerate(content["mentions"], start=1):
        _check_row(row, number)
        label, mentions = row.get("label", row["word"]), contexts.setdefault(row["context"], {})
        if label in mentions:
            raise DataError(f"Mention {number} is a second {label!r} in {row['context']!r}. Give it another label.")
        mentions[label] = Mention(row["word"], row["sentence"], row.get("occurrence", 1), row.get("segment", segment))
    lists = {key: _read_lists(content.get(key, []), key, length) for key, length in LISTS.items()}
    return Study(str(content.get("title", name)), contexts, **lists)


def _check_row(row: Any, number: int) -> None:
    if not isinstance(row, dict) or row.keys() - {*TEXTS, *NUMBERS} or set(TEXTS[:3]) - row.keys():
        raise DataError(
            f"Mention {number} should have {', '.join(TEXTS[:3])}, and may have {', '.join((*TEXTS[3:], *NUMBERS))}, "
            f"but is {row!r}."
        )
    for key in row:
        wanted = str if key in TEXTS else int
        if type(row[key]) is not wanted:
            what = "a text" if wanted is str else "a number"
            raise DataError(f"{key} of mention {number} should be {what}, but is {row[key]!r}.")


def _read_lists(value: Any, key: str, length: int) -> tuple[Labels, ...]:
    rows = value if isinstance(value, list) else [value]
    if any(not isinstance(row, list) or len(row) != length for row in rows):
        raise DataError(f"{key} should be a list of lists of {length} labels each, but is {value!r}.")
    return tuple(tuple(map(str, row)) for row in rows)

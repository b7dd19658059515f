"""What a study of words is: which words, in which contexts, and what to compare; and where they stand.

A study is rows, one for each mention of a word in a sentence. Each mention has a label ("king", or "bank vault" for one
of three banks), and every context has the same labels, so that there is one matrix of similarities for each context,
beside that of the static vectors. The studies that are shipped lie in ``studies/``; a file of yours has the same form:

    {"mentions": [{"context": "court", "word": "king", "sentence": "The king and also the queen ruled."}, ...],
     "pairs": [["king", "queen"]],
     "closer": [["king", "queen", "apple"]],
     "offsets": [["king", "man", "queen", "woman"]]}
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import as_file, files
from itertools import combinations
from pathlib import Path
from typing import ClassVar

from bertflow.errors import DataError, UnknownNameError, UsageError, how_many
from bertflow.records import read_record

SHIPPED = ("king-queen", "bank", "bank-separate")
"""Names of the studies in ``studies/``."""
STATIC = "static"
"""Name of the panel of static vectors, which no context can have."""
LISTS: Mapping[str, int] = {"pairs": 2, "closer": 3, "offsets": 4}
"""Fields of a study that hold lists of labels, and how many labels such a list has."""
Labels = tuple[str, ...]
NO_OTHER_KEYS: Mapping[str, str] = {"extra": "forbid"}
"""Option of pydantic: a misspelled key of a study is refused."""


@dataclass(frozen=True)
class Mention:
    """A word in its sentence.

    Attributes:
        word: Whole, as the tokenizer's case has it; may be several words.
        sentence: Where it stands.
        occurrence: Which one, from 1, where it stands there several times.
        segment: Segment of all tokens of the sentence; 0 by default, and for models without segments.
        context: Name of the context; a study needs it.
        label: Its name in the study; the word by default.
    """

    __pydantic_config__: ClassVar = NO_OTHER_KEYS

    word: str
    sentence: str
    occurrence: int = 1
    segment: int | None = None
    context: str = ""
    label: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.label or self.word)
        if self.occurrence < 1:
            raise UsageError(f"Occurrences count from 1, got {self.occurrence} for the word {self.word!r}.")


@dataclass(frozen=True)
class Study:
    """Words in contexts, and what to compare.

    Attributes:
        mentions: The words in their contexts.
        title: What it is about.
        pairs: (a, b): whose similarity is followed from layer to layer; every two where none are named.
        closer: (a, b, c): is a nearer to b than to c?
        offsets: (a, b, c, d): is a - b the same as c - d?

    Raises:
        DataError: If there is nothing to compare, or contexts differ in their labels.
    """

    __pydantic_config__: ClassVar = NO_OTHER_KEYS

    mentions: tuple[Mention, ...]
    title: str = ""
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
        for key, length in LISTS.items():
            named = getattr(self, key)
            if any(len(labels) != length for labels in named):
                raise DataError(f"{key} should be a list of lists of {length} labels each, but is {named!r}.")
            if unknown := {label for labels in named for label in labels} - set(self.labels):
                raise DataError(
                    f"{key} names {', '.join(sorted(unknown))}, but the labels are {', '.join(self.labels)}. "
                    "Use those, or add mentions."
                )

    @cached_property
    def contexts(self) -> Mapping[str, Mapping[str, Mention]]:
        """The mentions of each context, by their labels.

        Raises:
            DataError: If a mention has no context, or its context another one of its label.
        """
        contexts: dict[str, dict[str, Mention]] = {}
        for number, mention in enumerate(self.mentions, start=1):
            context, label = mention.context, mention.label
            if not context:
                raise DataError(f"Mention {number}, {label!r}, has no context. Name one.")
            if contexts.setdefault(context, {}).setdefault(label, mention) is not mention:
                raise DataError(f"Mention {number} is a second {label!r} in {context!r}. Give it another label.")
        return contexts

    @property
    def labels(self) -> Labels:
        """Labels of the rows and columns of every matrix."""
        return tuple(next(iter(self.contexts.values())))

    def of(self, context: str) -> list[Mention]:
        """One mention for each label."""
        return [self.contexts[context][label] for label in self.labels]

    def followed(self) -> tuple[Labels, ...]:
        """The pairs to follow."""
        return self.pairs or tuple(combinations(self.labels, 2))


def load_study(name: str | Path, segment: int | None = None) -> Study:
    """Read a study.

    Args:
        name: One of ``SHIPPED``, or a JSON file of the same form.
        segment: Segment of the mentions that name none.

    Raises:
        UnknownNameError: If it is neither.
        DataError: If a file has another form; the message names the file and what is wrong.
    """
    name = str(name)
    if name not in SHIPPED and not Path(name).is_file():
        raise UnknownNameError(f"Unknown study {name!r}. Known: {', '.join(SHIPPED)}; or a JSON file of yours.")
    shipped = files("bertflow.words") / "studies" / f"{name}.json"
    with as_file(shipped if name in SHIPPED else Path(name)) as path:
        study = read_record(path, Study, "study", "Repair the file.")
    mentions = (replace(mention, segment=segment) if mention.segment is None else mention for mention in study.mentions)
    return replace(study, mentions=tuple(mentions), title=study.title or name)


def _stands(mention: Mention) -> bool:
    """Whether a word is in its sentence as it is spelled, whatever the case, as often as its occurrence says."""
    found = re.findall(rf"(?<!\w){re.escape(mention.word)}(?!\w)", mention.sentence, re.IGNORECASE)
    return len(found) >= mention.occurrence


def word_study(words: Sequence[str], sentences: Sequence[str], segment: int | None = None) -> Study:
    """Some words in some sentences: all of them in each, or each where it is.

    Args:
        words: ``king``, or ``bank#2`` for the second of several.
        sentences: Each is a context, if it holds all of several words. Else all words are compared as they are in their
            sentences, in one context; a word of several sentences is numbered, ``bank (2)``.
        segment: Segment of all tokens.

    Raises:
        DataError: If there is nothing to compare.
    """
    if repeated := [word for at, word in enumerate(words) if word in words[:at]]:
        raise DataError(f"The word {repeated[0]!r} is named twice. Write {repeated[0]}#2 for its second occurrence.")
    mentions = []
    for number, sentence in enumerate(sentences, start=1):
        for spelled in words:
            numbered = re.fullmatch(r"(.+)#(\d+)", spelled)
            word, occurrence = numbered.groups() if numbered else (spelled, 1)
            mentions.append(Mention(word, sentence, int(occurrence), segment, f"context {number}", spelled))
    standing = [one for one in mentions if _stands(one)]
    apart = len(words) == 1 or len(standing) < len(mentions)
    if apart and len(sentences) > 1 and {one.label for one in standing} == {*words}:
        counts, places = Counter(one.label for one in standing), Counter[str]()
        mentions = []
        for one in standing:
            places[one.label] += 1
            label = f"{one.label} ({places[one.label]})" if counts[one.label] > 1 else one.label
            mentions.append(replace(one, context="their sentences", label=label))
    return Study(tuple(mentions), f"{', '.join(words)} in {how_many(len(sentences), 'sentences')}")

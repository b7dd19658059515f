"""A linear probe of poolings on tags of words: which layers hold what a tagger needs, cross-validated.

    words in sentences --poolings--> one vector a word --(calibrator)--> logistic regression --> a tag for each word

Words are split by sentence: a sentence is in one fold, and so are all that are the same text (``bertflow.text_keys``).
Each word is tagged on its own, so figures are below those of a tagger that reads its own tags, and comparable with one
another. All held-out words are scored at once:

    entity F1       tags that spell entities, as B-ORG: over exact spans and types, micro-averaged, as conlleval has it
                    (seqeval would be a dependency for one short function, ``bertflow.data.conll.entities``)
    macro F1        other tags: the mean over tags of the F1 of each

The interval is that of sentences drawn again, the same ones for every pooling. The classifier's C is fixed. It is what
scikit-learn calls it, on vectors that are centered (which changes nothing, since the intercept is free) and divided by
one number, so that their mean squared length is 1: then it means the same for every width and unit.

Source: Devlin et al. 2019, arXiv:1810.04805, section 5.3 and table 7, for the layers and for the first piece of a word
(``cls``); there an LSTM reads the vectors, and the weights of the layers are learned.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold

from bertflow import TransformerEncoder
from bertflow.calibration.spelling import parse_calibrator
from bertflow.data.conll import TaggedText, entities
from bertflow.encoder.words import encode_words, word_places
from bertflow.errors import DataError, NullDirectionWarning
from bertflow.evaluation.poolings import embed_poolings, recipe_of
from bertflow.evaluation.rows import interval, number
from bertflow.evaluation.significance import Float64, pair_weights
from bertflow.evaluation.sweeping import RAW, WEIGHTED, AbstractSweep, Candidate
from bertflow.studies.probing import ITERATIONS
from bertflow.tables import Table
from bertflow.text_keys import text_key

C = 4.0
"""Strength of the classifier, the inverse of its regularization; chosen on the development part of WNUT-17, where 2 to
8 give the same figures."""
RESAMPLES = 1000
TOKENS = ("mean", "cls")
"""Token reductions that are tried by default: the mean of a word's pieces, and the first of them."""
COMPARED = (RAW, "whitening")
"""What every pooling is probed after, by default."""
Split = tuple[NDArray[np.intp], NDArray[np.intp]]
"""Words to fit on, and words that are held out."""


@dataclass(frozen=True)
class WordRow(Candidate):
    """The F1 of a linear probe of the words of a pooling.

    Attributes:
        calibrator: Fitted on the words of the training folds; raw for none.
        f1: In [0, 1].
        low: Lower end of its 95 % interval.
        high: Upper end.
        accuracy: Share of the words whose tag is right, in [0, 1]: F1 over all tags, micro-averaged.
    """

    calibrator: str
    f1: float
    low: float
    high: float
    accuracy: float

    def cell(self) -> str:
        """F1 and its interval, x 100."""
        return f"{number(self.f1)} ({interval(self.low, self.high)})"


@dataclass(frozen=True, repr=False)
class WordProbe(AbstractSweep):
    """F1 of a linear probe of words in their sentences.

    Attributes:
        rows: By pooling, then by calibrator.
        measure: What F1 is taken over: entities, or tags.
        sentences: Number of sentences.
        words: Number of words that were tagged.
        cut: Words behind ``max_length``, left out.
        without_pieces: Words that the tokenizer makes nothing of, left out.
        entities: Number of entities; None where tags spell none.
        tags: Number of different tags.
        majority: Share of the most frequent tag.
        folds: Folds of the cross-validation.
        seed: Random seed for the folds and the interval.
        strength: The classifier's C.
        source: Where the tags came from.
    """

    rows: tuple[WordRow, ...]
    measure: str
    sentences: int
    words: int
    cut: int
    without_pieces: int
    entities: int | None
    tags: int
    majority: float
    folds: int
    seed: int
    strength: float
    source: str

    title: ClassVar[str] = "A linear probe of words in their sentences"
    quantity: ClassVar[str] = "F1 of a linear probe x 100"

    @property
    def calibrators(self) -> list[str]:
        """In their order."""
        return list(dict.fromkeys(row.calibrator for row in self.rows))

    def table(self) -> Table:
        """A line a pooling, x 100: F1 and its interval after each calibrator."""
        found = {(row.pooling, row.calibrator): (number(row.f1), interval(row.low, row.high)) for row in self.rows}
        lines = [
            (pooling, *(cell for name in self.calibrators for cell in found[pooling, name]))
            for pooling in dict.fromkeys(row.pooling for row in self.rows)
        ]
        titles = (title for name in self.calibrators for title in (name, "95 % interval"))
        return Table(("pooling", *titles), tuple(lines))

    def cells(self) -> list[tuple[str, Candidate, float]]:
        """A panel for each calibrator."""
        return [(row.calibrator, row, 100 * row.f1) for row in self.rows]

    def summary(self) -> list[str]:
        """What was best, and how the numbers were made."""
        best = [
            max((row for row in self.rows if row.calibrator == name), key=attrgetter("f1")) for name in self.calibrators
        ]
        spelled = f"{self.entities} entities, " if self.entities is not None else ""
        lines = [f"Best {row.calibrator}: {row.pooling}, {row.cell()}." for row in best]
        lines += [
            f"{self.measure} x 100 of a logistic regression (C = {self.strength:g}) that tags each word by its vector; "
            f"{self.folds} folds of whole sentences (seed {self.seed}); {self.words} words in {self.sentences} "
            f"sentences of {self.source}, {spelled}{self.tags} tags, the most frequent {number(self.majority)} % "
            f"of the words; {self.encoder['encoder']}.",
        ]
        if self.cut:
            lines.append(f"{self.cut} words behind max_length={self.encoder['max_length']} tokens were left out.")
        if self.without_pieces:
            lines.append(f"{self.without_pieces} words that the tokenizer makes nothing of were left out.")
        return lines


@dataclass(frozen=True)
class Gold:
    """What is to be found: the tags of the words that are read, by sentence.

    Attributes:
        tags: Number of each word's tag; (n,).
        names: The tags.
        sentence: Number of each word's sentence, rising; (n,).
        group: Number of each word's text, which equal sentences share; (n,).
        spelled: Whether the tags spell entities.
    """

    tags: NDArray[np.intp]
    names: Sequence[str]
    sentence: NDArray[np.intp]
    group: NDArray[np.intp]
    spelled: bool

    def counts(self, guessed: NDArray[np.intp]) -> Float64:
        """For each text and tag (or all entities at once): right, guessed and true ones; (texts, tags or 1, 3)."""
        counts = np.zeros((self.group.max() + 1, 1 if self.spelled else len(self.names), 3))
        if not self.spelled:
            right = guessed == self.tags
            for column, tags, chosen in ((0, self.tags, right), (1, guessed, ...), (2, self.tags, ...)):
                np.add.at(counts[..., column], (self.group[chosen], tags[chosen]), 1)
            return counts
        for words in self.by_sentence():
            made, true = (entities([self.names[tag] for tag in tags[words]]) for tags in (guessed, self.tags))
            counts[self.group[words.start], 0] += len(made & true), len(made), len(true)
        return counts

    def by_sentence(self) -> Iterator[slice]:
        """The words of each sentence that has any."""
        bounds = [0, *(np.flatnonzero(np.diff(self.sentence)) + 1), len(self.sentence)]
        return (slice(*bounds[at : at + 2]) for at in range(len(bounds) - 1))

    def splits(self, folds: int, seed: int) -> list[Split]:
        """Folds of whole sentences, the same texts in one.

        Raises:
            DataError: For fewer texts than folds, or a training part with one tag.
        """
        if (texts := self.group.max() + 1) < folds:
            raise DataError(f"{folds} folds need as many different sentences, got {texts}. Give more text.")
        found = list(GroupKFold(folds, shuffle=True, random_state=seed).split(self.tags, groups=self.group))
        if any(len(np.unique(self.tags[train])) < 2 for train, _ in found):
            raise DataError("Without the sentences of one fold only one tag is left. Give more text, or other folds.")
        return found


def gold_of(text: TaggedText, read: NDArray[np.bool_]) -> Gold:
    """The tags of the words that are read; ``read`` is for all words, one sentence after the other."""
    numbers = {name: at for at, name in enumerate(text.names)}
    keys = [text_key(" ".join(words)) for words in text.sentences]
    texts = {key: at for at, key in enumerate(dict.fromkeys(keys))}
    tags = np.array([numbers[tag] for row in text.tags for tag in row])[read]
    sentence = np.repeat(np.arange(len(keys)), list(map(len, text.sentences)))[read]
    _, group = np.unique(np.array([texts[key] for key in keys])[sentence], return_inverse=True)
    return Gold(tags, text.names, sentence, group, text.spells_entities)


def f1_of(counts: Float64) -> Float64:
    """F1 (...) of counts (..., tags, 3), the mean over tags; those that are neither guessed nor there do not count."""
    made_and_true = counts[..., 1] + counts[..., 2]
    each = np.divide(2 * counts[..., 0], made_and_true, out=np.zeros_like(made_and_true), where=made_and_true > 0)
    return np.asarray(each.sum(-1) / np.maximum((made_and_true > 0).sum(-1), 1))


def interval_of(counts: Float64, seed: int) -> tuple[float, float]:
    """The middle 95 % of F1 over texts drawn again; ``counts`` as of ``Gold``."""
    texts, *rest = counts.shape
    drawn = pair_weights([np.arange(texts)], RESAMPLES, np.random.default_rng(seed))
    f1 = np.concatenate([f1_of((weights @ counts.reshape(texts, -1)).reshape(-1, *rest)) for weights in drawn])
    low, high = np.quantile(f1, (0.025, 0.975))
    return float(low), float(high)


def guess_tags(
    x: NDArray[np.float32], tags: NDArray[np.intp], splits: Sequence[Split], calibrator: str = RAW
) -> NDArray[np.intp]:
    """The tag (n,) of each word (n, width) by a classifier that has not seen its fold."""
    guessed = np.empty_like(tags)
    for train, held_out in splits:
        parts = [x[train], x[held_out]]
        if calibrator != RAW:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NullDirectionWarning)  # a layer of a LayerNorm has one
                fitted = parse_calibrator(calibrator).fit(parts[0])
            parts = [fitted.transform(part) for part in parts]
        mean = parts[0].mean(0)
        scale = np.sqrt(np.square(parts[0] - mean).sum(1).mean()) or 1
        fit_on, guess_on = ((part - mean) / scale for part in parts)
        guessed[held_out] = LogisticRegression(C=C, max_iter=ITERATIONS).fit(fit_on, tags[train]).predict(guess_on)
    return guessed


def probe_words(
    encoder: TransformerEncoder,
    text: TaggedText,
    poolings: Sequence[str],
    calibrators: Sequence[str] = COMPARED,
    folds: int = 5,
    seed: int = 0,
    progress: bool | None = None,
) -> WordProbe:
    """Cross-validate a linear probe on the words of every pooling.

    Args:
        encoder: As for ``sweep_poolings``.
        text: Words and their tags.
        poolings: Spellings; the pieces of a word take the place of a sentence's tokens.
        calibrators: Spellings, or raw; each is fitted on the words of the training folds.
        folds: Two or more.
        seed: Random seed for the folds and the interval.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).

    Raises:
        UsageError: For a pooling that cannot be used.
        DataError: For too little text; the message says what is missing.
    """
    places = word_places(encoder, text.sentences)
    if not places.read.any():
        raise DataError(f"{text.source} has no word with a token for this model. Give other text.")
    gold = gold_of(text, places.read)
    splits = gold.splits(folds, seed)
    rows: list[WordRow] = []
    encode = partial(encode_words, encoder)
    scratch, each = 0, len(places.first) / len(text.sentences)
    for candidate, x in embed_poolings(encoder, text.sentences, poolings, progress, encode, each):
        scratch += x.nbytes if candidate.pooling != WEIGHTED else 0
        for name in calibrators:
            guessed = guess_tags(x, gold.tags, splits, name)
            counts, right = gold.counts(guessed), float((guessed == gold.tags).mean())
            low, high = interval_of(counts, seed)
            f1 = float(f1_of(counts.sum(0)))
            rows.append(WordRow(**vars(candidate), calibrator=name, f1=f1, low=low, high=high, accuracy=right))
    return WordProbe(
        rows=tuple(rows),
        encoder=recipe_of(encoder),
        scratch_bytes=scratch,
        measure="Entity F1" if gold.spelled else "Macro F1 over tags",
        sentences=len(text.sentences),
        words=len(gold.tags),
        cut=places.cut,
        without_pieces=int((~places.read).sum()) - places.cut,
        entities=int(gold.counts(gold.tags)[..., 2].sum()) if gold.spelled else None,
        tags=len(gold.names),
        majority=float(np.bincount(gold.tags).max() / len(gold.tags)),
        folds=folds,
        seed=seed,
        strength=C,
        source=text.source,
    )

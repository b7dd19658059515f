"""Linear probes of poolings, cross-validated: what a logistic regression reads from texts, and from words.

    texts     text --pooling--> a vector --logistic regression--> its label
    words     words in sentences --pooling--> a vector a word --(calibrator)--> logistic regression --> a tag each

A probe says what an embedding holds, not what its cosine shows. Texts are scaled inside each fold, on its training
part, and scored by accuracy. Words are split by sentence: a sentence is in one fold, and so are all that are the same
text (``bertflow.text_keys``). Each word is tagged on its own, so figures are below those of a tagger that reads its own
tags, and comparable with one another. All held-out words are scored at once:

    entity F1       tags that spell entities, as B-ORG: over exact spans and types, micro-averaged, as conlleval has it
    macro F1        other tags: the mean over tags of the F1 of each

The interval is that of sentences drawn again, the same ones for every pooling. The classifier's C is fixed. It is what
scikit-learn calls it, on vectors that are centered (which changes nothing, since the intercept is free) and divided by
one number, so that their mean squared length is 1: then it means the same for every width and unit.

Source of words: Devlin et al. 2019, arXiv:1810.04805, section 5.3 and table 7, for the layers and for the first piece
of a word (``cls``); there an LSTM reads the vectors, and the weights of the layers are learned.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bertflow import TransformerEncoder
from bertflow.array_types import Bools, Float32, Float64, Intp
from bertflow.calibration.spelling import RAW, parse_calibrator
from bertflow.data.labeled import LabeledText, TaggedText, entities
from bertflow.encoder.words import encode_words, word_places
from bertflow.errors import DataError, without_null_warnings
from bertflow.evaluation.poolings import WEIGHTED, recipe_of, try_poolings
from bertflow.evaluation.significance import pair_weights
from bertflow.evaluation.sweeping import Candidate, Sweep, SweepRow
from bertflow.tables import interval, number
from bertflow.text_keys import text_key

ITERATIONS = 1000  # of the optimizer; scaled embeddings need some tens
C = 4.0
"""Strength of the classifier, the inverse of its regularization; chosen on the development part of WNUT-17, where 2 to
8 give the same figures."""
RESAMPLES = 1000
TOKENS = ("mean", "cls")
"""Token reductions that are tried by default: the mean of a word's pieces, and the first of them."""
COMPARED = (RAW, "whitening")
"""What every pooling is probed after, by default."""
Split = tuple[Intp, Intp]
"""Words to fit on, and words that are held out."""


class TextProbe(Sweep):
    """Accuracies of a linear probe on labels of texts, and their standard deviation over the folds."""

    title = "A linear probe of layers and poolings"
    quantity = "accuracy of a linear probe x 100"
    behind = ("+-",)
    spelled = "{} +- {}"

    def _best_lines(self) -> Iterator[str]:
        """What every sweep says, and whether the best one is better than a guess."""
        yield from super()._best_lines()
        if (best := self.best()[0]).value <= self.facts["majority"] + best.facts["deviation"]:
            yield "That is hardly better than to guess the most frequent label: no layer tells the labels apart."


def probe_texts(
    encoder: TransformerEncoder,
    labeled: LabeledText,
    poolings: Sequence[str],
    folds: int = 5,
    seed: int = 0,
    progress: bool | None = None,
) -> Sweep:
    """Cross-validate a linear probe on every pooling.

    Args:
        encoder: The encoder, as for ``sweep_poolings``.
        labeled: Texts and their labels.
        poolings: Spellings.
        folds: Two or more.
        seed: Random seed for the folds.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).

    Raises:
        DataError: If a label has fewer texts than there are folds.
    """
    counts, n = Counter(labeled.labels), len(labeled.labels)
    label, fewest = counts.most_common()[-1]
    if fewest < folds:
        raise DataError(
            f"Every label needs a text in each of {folds} folds, but {label!r} has {fewest}. "
            "Give more text, or fewer folds."
        )
    encoder.count_tokens(labeled.texts)

    def measure(candidate: Candidate, x: Float32) -> Iterator[SweepRow]:
        if candidate.pooling != WEIGHTED:
            found = accuracy_of_folds(x, labeled.labels, folds, seed)
            accuracy, deviation = float(found.mean()), float(found.std(ddof=1))
            facts = {"accuracy": accuracy, "deviation": deviation}
            yield SweepRow(candidate, "accuracy", accuracy, (number(accuracy), number(deviation)), facts)

    rows, scratch = try_poolings(encoder, labeled.texts, poolings, measure, progress)
    majority, described = max(counts.values()) / n, recipe_of(encoder)
    how = (
        f"Accuracy x 100 of a logistic regression, mean and standard deviation over {folds} stratified folds "
        f"(seed {seed}); {n} texts of {labeled.source}, {len(counts)} labels, "
        f"the most frequent label has {number(majority)} % of the texts; "
        f"{described['encoder']}."
    )
    about = {"n": n, "labels": len(counts), "majority": majority, "folds": folds, "seed": seed}
    return TextProbe(["accuracy"], rows, described, {**about, "source": labeled.source}, [how], scratch)


def accuracy_of_folds(x: Float32, labels: Sequence[str], folds: int, seed: int) -> Float64:
    """Accuracy (folds,) of a logistic regression on embeddings (n, width), each fold left out in turn."""
    pipeline = make_pipeline(StandardScaler(), LogisticRegression(max_iter=ITERATIONS))
    splits = StratifiedKFold(folds, shuffle=True, random_state=seed)
    return np.asarray(cross_val_score(pipeline, x.astype(np.float64), np.asarray(labels), cv=splits))


class WordProbe(Sweep):
    """F1 of a linear probe of words in their sentences, with its 95 % interval."""

    title = "A linear probe of words in their sentences"
    quantity = "F1 of a linear probe x 100"
    behind = ("95 % interval",)
    spelled = "{} ({})"


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

    tags: Intp
    names: Sequence[str]
    sentence: Intp
    group: Intp
    spelled: bool

    def counts(self, guessed: Intp) -> Float64:
        """For each text and tag (or all entities at once): right, guessed and true ones; (texts, tags or 1, 3)."""
        counts = np.zeros((self.group.max() + 1, 1 if self.spelled else len(self.names), 3))
        if not self.spelled:
            right = guessed == self.tags
            for column, tags, chosen in ((0, self.tags, right), (1, guessed, ...), (2, self.tags, ...)):
                np.add.at(counts[..., column], (self.group[chosen], tags[chosen]), 1)
            return counts
        bounds = [0, *(np.flatnonzero(np.diff(self.sentence)) + 1), len(self.sentence)]
        for words in map(slice, bounds, bounds[1:]):
            made, true = (entities([self.names[tag] for tag in tags[words]]) for tags in (guessed, self.tags))
            counts[self.group[words.start], 0] += len(made & true), len(made), len(true)
        return counts

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


def gold_of(text: TaggedText, read: Bools) -> Gold:
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


def guess_tags(x: Float32, tags: Intp, splits: Sequence[Split], calibrator: str = RAW) -> Intp:
    """The tag (n,) of each word (n, width) by a classifier that has not seen its fold."""
    guessed = np.empty_like(tags)
    for train, held_out in splits:
        parts = [x[train], x[held_out]]
        if calibrator != RAW:
            with without_null_warnings():  # a layer of a LayerNorm has one
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
) -> Sweep:
    """Cross-validate a linear probe on the words of every pooling.

    Args:
        encoder: The encoder, as for ``sweep_poolings``.
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

    def measure(candidate: Candidate, x: Float32) -> Iterator[SweepRow]:
        for name in calibrators:
            guessed = guess_tags(x, gold.tags, splits, name)
            counts = gold.counts(guessed)
            f1, (low, high) = float(f1_of(counts.sum(0))), interval_of(counts, seed)
            right = float((guessed == gold.tags).mean())
            facts = {"calibrator": name, "f1": f1, "low": low, "high": high, "accuracy": right}
            yield SweepRow(candidate, name, f1, (number(f1), interval(low, high)), facts)

    encode, each = partial(encode_words, encoder), len(places.first) / len(text.sentences)
    rows, scratch = try_poolings(encoder, text.sentences, poolings, measure, progress, encode, each)
    named = "Entity F1" if gold.spelled else "Macro F1 over tags"
    left_out = {"cut": places.cut, "without_pieces": int((~places.read).sum()) - places.cut}
    about: dict[str, Any] = {"measure": named, "sentences": len(text.sentences), "words": len(gold.tags), **left_out}
    about["entities"] = int(gold.counts(gold.tags)[..., 2].sum()) if gold.spelled else None
    about |= {"tags": len(gold.names), "majority": float(np.bincount(gold.tags).max() / len(gold.tags))}
    about |= {"folds": folds, "seed": seed, "strength": C, "source": text.source}
    described = recipe_of(encoder)
    return WordProbe(list(dict.fromkeys(calibrators)), rows, described, about, list(_how(about, described)), scratch)


def _how(about: Mapping[str, Any], encoder: Mapping[str, Any]) -> Iterator[str]:
    """How the values were made, in words."""
    spelled = f"{about['entities']} entities, " if about["entities"] is not None else ""
    yield (
        f"{about['measure']} x 100 of a logistic regression (C = {C:g}) that tags each word by its vector; "
        f"{about['folds']} folds of whole sentences (seed {about['seed']}); {about['words']} words in "
        f"{about['sentences']} sentences of {about['source']}, {spelled}{about['tags']} tags, the most frequent "
        f"tag has {number(about['majority'])} % of the words; {encoder['encoder']}."
    )
    if about["cut"]:
        yield f"{about['cut']} words behind max_length={encoder['max_length']} tokens were left out."
    if about["without_pieces"]:
        yield f"{about['without_pieces']} words that the tokenizer makes nothing of were left out."

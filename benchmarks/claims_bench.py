"""What the claims are measured on: the encoders at hand, their text and embeddings, each read when it is first wanted.

    scored        the seven test sets, embedded by each encoder's own layers (``material.py``)
    layers        a smaller sample, the pairs of STS-B and STS16, by every layer
    fitted on     target (the scored sentences), other (a mixture without them), nli; or 6,000 of them

What is fitted on what is a row of ``claims_systems.SYSTEMS``.
"""

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from claims_rules import Measured
from claims_systems import FORMS, PARTS, SYSTEMS
from closed_forms import applied
from material import MIXTURE, Embedder, Material, Vectors
from numpy.typing import NDArray

from bertflow.correlation import percentile_interval, spearman
from bertflow.data.corpus import read_frequencies
from bertflow.data.pairs import unique_sentences
from bertflow.data.sts import load_sts
from bertflow.data.sts_tasks import SUITES
from bertflow.encoder.transformer import StaticEncoder, TransformerEncoder
from bertflow.evaluation.aggregation import ScoredTask, suite_figures
from bertflow.evaluation.significance import Figure, generator, pair_weights
from bertflow.evaluation.ungraded import right_ranks
from bertflow.geometry.contexts import LayerGeometry, contextuality, read_token_states
from bertflow.moments import Moments
from bertflow.similarity import SIMILARITIES
from bertflow.training.flow_fit import FittedFlow, fit_flow
from bertflow.words.encoder import WordEncoder, read_static_words
from bertflow.words.panels import StudyResult, run_study
from bertflow.words.study import load_study

Float64 = NDArray[np.float64]
SAMPLE_TASKS = ("stsb", "sts16")
FITTED = 6_000
"""Sentences that a flow, and what it is compared with, are fitted on."""
GROUPS, IN_GROUP = 8, 250
"""Disjoint groups of sentences, for what has no bootstrap of its own."""


class Bench:
    """Reads and computes what claims ask for, once.

    Args:
        data_dir: Holds ``sts``, ``text``, ``nli`` and ``encoders``.
        cache: Where embeddings are kept.
        seed: Random seed for samples, resamples and fits.
        resamples: Of every bootstrap.
    """

    def __init__(self, data_dir: Path, cache: Path, seed: int, resamples: int) -> None:
        self.data_dir, self.cache, self.seed, self.resamples = data_dir, cache, seed, resamples
        self.folders = Embedder(data_dir, cache).folders
        # Bound here, so that what is kept goes when the bench goes.
        self.flow = functools.cache(self._flow)
        self.similarities = functools.cache(self._similarities)
        self.hits = functools.cache(self._hits)
        self.by_layer = functools.cache(self._by_layer)
        self.geometry = functools.cache(self._geometry)
        self.vocabulary = functools.cache(self._vocabulary)
        self.study = functools.cache(self._study)

    @functools.cached_property
    def material(self) -> Material:
        """The seven test sets, other text, and retrieval pairs."""
        return Material(self.data_dir, self.cache, SUITES["sts7"])

    @functools.cached_property
    def counts(self) -> dict[str, int]:
        """How often words occur in subtitles."""
        return read_frequencies(self.data_dir / "text" / "en_50k.txt.gz")

    @functools.cached_property
    def sample(self) -> "Sample":
        """The smaller sample."""
        return Sample(self.data_dir)

    def rows(self, name: str, n: int, most: int) -> NDArray[np.intp]:
        """A seeded choice of up to ``most`` of n rows, rising."""
        return np.sort(generator(self.seed, name).permutation(n)[:most])

    def replicates(self, name: str, n: int, of: Callable[[Float64], Float64]) -> Float64:
        """``of`` each resample's weights, (rows, n) -> (rows,), how often each of n was drawn."""
        blocks = pair_weights((np.arange(n),), self.resamples, generator(self.seed, name))
        return np.concatenate([of(weights) for weights in blocks])

    def means(self, name: str, values: Float64) -> Float64:
        """The mean of the values (n,) on each resample of them."""
        return self.replicates(name, len(values), lambda weights: weights @ values / len(values))

    def redrawn(self, name: str, n: int, of: Callable[[NDArray[np.intp]], float]) -> Float64:
        """``of`` the rows, repeated as often as they were drawn, on each resample of n."""
        everything = np.arange(n)
        return self.replicates(
            name, n, lambda weights: np.array([of(np.repeat(everything, row.astype(int))) for row in weights])
        )

    def fitted_rows(self, part: str, pooling: str, on: str) -> Vectors:
        """Embeddings that a map is fitted on."""
        subject = PARTS[part]
        setting = "transductive" if on in ("target", "part of target") else "inductive"
        x = self.material.embedded(subject.encoder, setting).fitted[pooling]
        if on == "nli":
            each = len(x) // len(MIXTURE)
            return np.array(x[-each:])
        return np.array(x[self.rows(on, len(x), FITTED)] if on.startswith("part") else x)

    def _flow(self, part: str, on: str) -> FittedFlow:
        x = self.fitted_rows(part, PARTS[part].stand_in.mean, on)
        return fit_flow(x, n_components="all", random_state=self.seed)

    def _similarities(self, part: str, name: str) -> list[Float64]:
        system, subject = SYSTEMS[name], PARTS[part]
        pooling = getattr(subject.stand_in, system.pooling)
        fitted: torch.nn.Module
        if system.form == "flow":
            fitted = self.flow(part, system.on).map
        else:
            fitted = FORMS[system.form](Moments.of(self.fitted_rows(part, pooling, system.on)))
        setting = "transductive" if pooling.startswith("mean") or system.on == "target" else "inductive"
        z = applied(fitted, self.material.embedded(subject.encoder, setting).scored[pooling])
        return [task.similarities[0] for task in self.material.scored_tasks([z])]

    def compare(self, part: str, first: str, second: str, aggregation: str = "all") -> Measured:
        """Spearman x 100 of one system minus that of another, mean of the seven test sets."""
        both = zip(self.similarities(part, first), self.similarities(part, second), strict=True)
        tasks = [
            ScoredTask(pairs, "cosine", np.stack(two)) for pairs, two in zip(self.material.sets, both, strict=True)
        ]
        return self.compared(tasks, (first, second), aggregation)

    def compared(self, tasks: Sequence[ScoredTask], names: Sequence[str], aggregation: str = "all") -> Measured:
        """Mean over tasks of Spearman x 100, the first of two systems minus the second."""
        figure = self._figure(tasks, aggregation)
        return gap(figure, 0, 1, names)

    def scores(self, systems: Sequence[Sequence[Float64]]) -> Figure:
        """Scores of systems, given by their similarities for each task of the smaller sample; pairs are resampled."""
        tasks = [
            ScoredTask(pairs, "cosine", np.stack([found[at] for found in systems]))
            for at, pairs in enumerate(self.sample.sets)
        ]
        return self._figure(tasks, "all")

    def _figure(self, tasks: Sequence[ScoredTask], aggregation: str) -> Figure:
        """The mean over tasks of Spearman."""
        figures = suite_figures("claims", tasks, self.resamples, self.seed)
        return next(one for one in figures if (one.aggregation, one.metric) == (aggregation, "cosine_spearman"))

    def compare_poolings(self, part: str, first: str, second: str) -> Measured:
        """The same of two poolings, or ``static``, on the pairs of the smaller sample."""
        x = self.by_layer(PARTS[part].encoder)
        return self.compared(self.sample.scored_tasks([x[first], x[second]]), (first, second))

    def _by_layer(self, encoder: str) -> dict[str, Vectors]:
        """The smaller sample by every layer's mean and [CLS], some joins, and static."""
        blocks = next(one.blocks for one in PARTS.values() if one.encoder == encoder)
        poolings = [f"mean({layer})" for layer in range(blocks + 1)] + [f"cls({k})" for k in range(1, blocks + 1)]
        poolings += ["mean(1,2)", "mean(1,-1)", "static"]
        text = "\0".join(("claims", encoder, *poolings, "", *self.sample.sentences))
        path = self.cache / f"claims-{hashlib.sha256(text.encode()).hexdigest()[:24]}.npz"
        if not path.exists():
            model = TransformerEncoder(self.folders[encoder], max_length=128)
            found = model.encode_poolings(self.sample.sentences, poolings[:-1])
            found["static"] = StaticEncoder(self.folders[encoder]).encode(self.sample.sentences)
            aside = path.with_suffix(".aside.npz")
            np.savez(aside, allow_pickle=False, **found)
            aside.rename(path)
        with np.load(path) as kept:
            return {pooling: kept[pooling] for pooling in poolings}

    def _hits(self, part: str, form: str) -> Float64:
        """Whether each docstring's summary line finds its paragraph (2,500,); fitted on others."""
        subject = PARTS[part]
        data, pooling = self.material.embedded(subject.encoder, "docstrings"), subject.stand_in.mean
        fitted = FORMS[form](Moments.of(np.array(data.fitted[pooling])))
        assert data.texts is not None, "retrieval has texts"
        queries, texts = (applied(fitted, side[pooling]) for side in (data.scored, data.texts))
        return (right_ranks(queries, texts) == 1).astype(np.float64)

    def _geometry(self, encoder: str) -> list[tuple[LayerGeometry, ...]]:
        """Contextuality of all layers, in each of some disjoint groups of test sentences."""
        sentences = self.material.sentences
        chosen = generator(self.seed, "groups").permutation(len(sentences))[: GROUPS * IN_GROUP]
        return [
            contextuality(*read_token_states(self.folders[encoder], [sentences[row] for row in rows]), seed=self.seed)
            for rows in np.split(chosen, GROUPS)
        ]

    def _vocabulary(self, encoder: str) -> tuple[tuple[str, ...], NDArray[np.float32]]:
        return read_static_words(self.folders[encoder])

    def _study(self, encoder: str, name: str) -> StudyResult:
        return run_study(WordEncoder(self.folders[encoder]), load_study(name))


class Sample:
    """The pairs of ``SAMPLE_TASKS``.

    Args:
        data_dir: Holds ``sts``.

    Attributes:
        sets: The pairs, by task.
        sentences: Distinct ones.
    """

    def __init__(self, data_dir: Path) -> None:
        self.sets = [load_sts(task, data_dir / "sts") for task in SAMPLE_TASKS]
        self.sentences = unique_sentences(self.sets)
        row_of = {sentence: row for row, sentence in enumerate(self.sentences)}
        self._sides = [pairs.rows(row_of) for pairs in self.sets]

    def scored_tasks(self, systems: Sequence[Vectors]) -> list[ScoredTask]:
        """The tasks as k systems see them; each system embeds ``sentences``."""
        paired = SIMILARITIES["cosine"].paired
        return [
            ScoredTask(pairs, "cosine", np.stack([paired(x[one], x[two]) for x in systems]))
            for pairs, (one, two) in zip(self.sets, self._sides, strict=True)
        ]


def gap(figure: Figure, first: int, second: int, names: Sequence[str]) -> Measured:
    """Spearman x 100 of one system of a figure minus that of another."""
    low, high = figure.interval(first, less=second)
    assert low is not None, "resamples have variance"
    assert high is not None, "as low"
    one, other = (100 * float(figure.values[at]) for at in (first, second))
    numbers = _plain(dict(zip(names, (one, other), strict=True)))
    return Measured(one - other, 100 * low, 100 * high, figure.n, "pairs", numbers)


def chosen_by(judge: Float64, figure: Figure) -> Measured:
    """Score x 100 of the system that a judge puts first minus that of the best one."""
    return gap(figure, int(judge.argmax()), int(figure.values.argmax()), ("chosen", "best"))


def ranked_by(judge: Float64, figure: Figure) -> Measured:
    """Spearman of what a judge says of systems and of their scores."""
    drawn = np.array([spearman(judge, scores) for scores in figure.replicates.T])
    numbers = {"systems": len(judge), "best": 100 * figure.values.max(), "worst": 100 * figure.values.min()}
    return estimated(spearman(judge, figure.values), drawn, figure.n, "pairs", numbers)


def estimated(value: float, replicates: Float64, n: int, unit: str, numbers: Mapping[str, float]) -> Measured:
    """A value with the middle 95 % of its replicates."""
    return Measured(float(value), *percentile_interval(replicates), n, unit, _plain(numbers))


def certain(value: float, n: int, unit: str, numbers: Mapping[str, float]) -> Measured:
    """A value that is not an estimate."""
    return Measured(float(value), None, None, n, unit, _plain(numbers))


def _plain(numbers: Mapping[str, float]) -> dict[str, float]:
    return {name: round(float(value), 4) for name, value in numbers.items()}

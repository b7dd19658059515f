"""The supervised ceiling: what could labels make of an encoder's embeddings?

    share that a system closes = (system - raw) / (ceiling - raw)

The first question of the paper (Li et al. 2020): do the embeddings hold too little meaning, or does the cosine leave it
unused? What labels can read from the same embeddings, and the cosine cannot, was left unused. So the ceiling is a
regression of the gold score on the two embeddings of a pair, fitted to the labels of the scored task itself:

    cosines      of the raw embeddings, and centered and whitened: each alone, and together; not penalised
    features     |u - v| and u v, coordinate by coordinate, of rows of length one, raw or whitened or both: a ridge
                 regression under an RBF kernel, by Nystroem's approximation, beside the cosines
    labels       the task's own pairs; for STS-B its train part; for SICK-R its train and trial parts
    folds        whole components of the graph whose edges are pairs: no sentence, by its text key, stands in two folds.
                 A pair is scored by what was fitted to labeled pairs of the other four folds
    choice       strengths and weights, for each fold, on predictions across the other four

As cosines alone are among what is weighed, it falls back to the best of them where labels add nothing. Kernel, inputs
and strengths were chosen on ``tuning``. It is what this regression finds with this many labels, not the most that any
model could: with more labels it rises. As it may learn which kinds of pairs people score high, which no similarity of
two sentences knows, a share is rather too low than too high.

The sums of a fit over folds (Gram matrices) add up, so that a fit without two folds costs a subtraction and a solution.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import nnls
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.stats import rankdata

from bertflow import Center, SentenceEncoder, Whitening
from bertflow.array_types import Bools, Float64, Floats, Intp
from bertflow.data.pairs import Pairs, joined, unique_sentences
from bertflow.data.sts import load_sts
from bertflow.data.sts_tasks import TASKS
from bertflow.errors import DataError, UsageError, without_null_warnings
from bertflow.evaluation.aggregation import members_of
from bertflow.evaluation.score_table import SystemFacts
from bertflow.evaluation.sides import Systems, row_numbers
from bertflow.evaluation.significance import sentence_numbers
from bertflow.progress import Advance, bar
from bertflow.similarity import COSINE, unit_rows
from bertflow.text_keys import hash_texts

RAW = "raw"
"""The system whose embeddings the ceiling is read from."""
CEILING = "ceiling"
"""Name of the ceiling in tables."""
LABELED: Mapping[str, tuple[str, ...]] = {
    "stsb": ("stsb-train",),
    "stsb-dev": ("stsb-train",),
    "sickr": ("sickr-train", "sickr-trial"),
}
"""The tasks whose labels another one is predicted from; all others are predicted from their own."""
FOLDS = 5
LANDMARKS = 500
"""Pairs that the kernel is approximated by."""
STRENGTHS = 10.0 ** np.arange(-1, 3.5, 0.5)
"""Penalties of the features, whose total variance is one."""
WIDTHS = (128, 64)
"""Sizes of whitening, beside the full one."""
SLIGHT = 1e-3
"""Penalty of the cosines, whose variance is one: enough to tell equal ones apart."""
Design = tuple[Float64, Float64]
"""Columns (n, d) that are regressed on, the first of ones; and penalties (strengths, d)."""
INPUTS = (("raw",), ("whitening",), ("raw", "whitening"))
"""The embeddings whose features are regressed on."""


@dataclass(frozen=True)
class SupervisedCeiling:
    """Predicts the gold scores of pairs from those of other pairs; stands among the systems of a report.

    Attributes:
        encoder: The raw encoder.
        sets: What will be scored.
        labeled: Task -> the labeled pairs that it is predicted from; a task that is missing here uses its own pairs.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
    """

    encoder: SentenceEncoder
    sets: Sequence[Pairs]
    labeled: Mapping[str, Pairs]
    progress: bool | None = None

    def facts(self, name: str) -> SystemFacts:
        """What a report says of it: as the encoder, with all text that is whitened together."""
        text = unique_sentences([*self.sets, *self.labeled.values()])
        description = {**self.encoder.describe(), "supervised": "cross-validated"}
        return SystemFacts(name, description, hash_texts(text), labels=(), embeds=False)

    def scores(self, pairs: Pairs) -> Float64:
        """Predicted gold scores (n,), each from pairs that share no sentence with its own.

        Raises:
            DataError: If there are too few pairs to be split, or their labels do not differ.
        """
        labeled = self.labeled.get(pairs.task)
        if labeled is None and pairs.task in TASKS and TASKS[pairs.task].aggregation != "all":
            # Sub-sets with scales of their own.
            result = np.empty(len(pairs))
            for members in members_of(pairs.subsets).values():
                result[members] = self._predicted(pairs.taken(members), None)
            return result
        return self._predicted(pairs, labeled)

    def _predicted(self, pairs: Pairs, labeled: Pairs | None) -> Float64:
        both = pairs if labeled is None else joined([pairs, labeled])
        has_label = np.arange(len(both)) >= (0 if labeled is None else len(pairs))
        folds = sentence_folds(both)
        for fold in range(FOLDS):
            inside, outside = (both.target[has_label & (folds == fold)], both.target[has_label & (folds != fold)])
            if not len(inside) or len(np.unique(outside)) < 2:
                raise DataError(
                    f"The ceiling of {pairs.task} needs labeled pairs in each of {FOLDS} folds, and different scores "
                    f"outside of each, got {len(inside)} pairs in fold {fold + 1} and {len(np.unique(outside))} scores "
                    "outside. Give more labeled pairs."
                )
        sentences = both.sentences
        x = self.encoder.encode(sentences, progress=self.progress)
        designs = list(_designs(x, both.rows(row_numbers(sentences))))
        with bar(len(designs), f"ceiling of {pairs.task}", self.progress, "regressions") as advance:
            return nested_ridge(designs, both.target, folds, has_label, advance)[: len(pairs)]


def sentence_folds(pairs: Pairs) -> Intp:
    """The fold (n,) of each pair, so that no sentence stands in two of them.

    Raises:
        DataError: If the pairs are connected by their sentences so that they cannot be split.
    """
    from sklearn.model_selection import GroupKFold

    [(first, second)] = sentence_numbers([pairs])
    nodes = 1 + int(max(first.max(), second.max()))
    edges = coo_array((np.ones(len(pairs)), (first, second)), shape=(nodes, nodes))
    groups = connected_components(edges, directed=False)[1][first]
    distinct = len(np.unique(groups))
    if distinct < FOLDS:
        raise DataError(
            f"The ceiling of {pairs.task} needs at least {FOLDS} groups of pairs that share no sentence, got "
            f"{distinct}. Give more pairs."
        )
    folds = np.empty(len(pairs), dtype=np.intp)
    for fold, (_, members) in enumerate(GroupKFold(FOLDS, shuffle=True, random_state=0).split(groups, None, groups)):
        folds[members] = fold
    return folds


def nested_ridge(designs: Sequence[Design], gold: Float64, folds: Intp, labeled: Bools, advance: Advance) -> Float64:
    """Predictions (n,) of stacked ridge regressions by nested cross-validation.

    For each fold, all is decided on the labeled pairs of the other folds, each of them predicted without both folds:
    the strength of each design by Spearman, then weights of the designs, none negative, by least squares.

    Args:
        designs: What is regressed on.
        gold: Gold scores (n,); only those of labeled pairs are read.
        folds: Fold of each pair.
        labeled: Which pairs are fitted to.
        advance: Is told of each design that is done.

    Source of the weights: Breiman 1996, "Stacked regressions".
    """
    predicted = []
    for design in designs:
        predicted.append(_left_out(design, gold, folds, labeled))
        advance(1)
    result = np.empty(len(gold))
    for fold in range(FOLDS):
        scored, others = folds == fold, labeled & (folds != fold)
        ranks = _unit_ranks(gold[others])
        best = np.stack([one[fold][(_unit_ranks(one[fold][:, others]) @ ranks).argmax()] for one in predicted])
        mean = gold[others].mean()
        weights, _ = nnls((best[:, others] - mean).T, gold[others] - mean)
        result[scored] = mean + weights @ (best[:, scored] - mean)
    return result


def _left_out(design: Design, gold: Float64, folds: Intp, labeled: Bools) -> Float64:
    """Predictions (folds, strengths, n): entry k of a pair in fold j is made from labeled pairs in neither k nor j."""
    columns, penalties = design
    members = [folds == fold for fold in range(FOLDS)]
    own = [columns[labeled & one] for one in members]
    grams = np.stack([one.T @ one for one in own])
    products = np.stack([one.T @ gold[labeled & where] for one, where in zip(own, members, strict=True)])
    result = np.empty((FOLDS, len(penalties), len(gold)))
    for k in range(FOLDS):
        for j in range(k, FOLDS):
            kept = [fold for fold in range(FOLDS) if fold not in (k, j)]
            gram, product = grams[kept].sum(0), products[kept].sum(0)
            weights = [cho_solve(cho_factor(gram + np.diag(penalty)), product) for penalty in penalties]
            for left, scored in ((k, j), (j, k)):
                result[left][:, members[scored]] = np.stack(weights) @ columns[members[scored]].T
    return result


def _unit_ranks(values: Float64) -> Float64:
    """Centered ranks of the last axis, scaled to length one, so that products are Spearman correlations."""
    ranks = rankdata(values, axis=-1) - (values.shape[-1] + 1) / 2
    return ranks / np.maximum(np.linalg.norm(ranks, axis=-1, keepdims=True), np.finfo(float).tiny)


def _designs(x: Floats, rows: Intp) -> Iterator[Design]:
    """Each cosine alone, all of them, then all of them with the features of each input.

    Args:
        x: Embeddings (sentences, dim).
        rows: Both sides of the pairs (2, n).
    """
    views = _views(x)
    ones = np.ones((rows.shape[1], 1))
    cosines = np.hstack([_scaled(COSINE.paired(z[rows[0]], z[rows[1]])[:, None]) for z in views.values()])
    for chosen in (*cosines.T[:, :, None], cosines):
        yield np.hstack([ones, chosen]), np.array([[0.0] + [SLIGHT] * chosen.shape[1]])
    features = {name: _features(unit_rows(views[name]), rows) for name in ("raw", "whitening")}
    for names in INPUTS:
        added = np.hstack([features[name] for name in names])
        free = [0.0] + [SLIGHT] * len(views)
        penalties = np.stack([np.r_[free, np.full(added.shape[1], strength)] for strength in STRENGTHS])
        yield np.hstack([ones, cosines, added]), penalties


def _views(x: Floats) -> dict[str, Float64]:
    """The embeddings as they are, and in closed forms that need no labels, by name."""
    raw = np.asarray(x, dtype=np.float64)
    with without_null_warnings():  # dropped, as in the baselines
        white = Whitening().fit_transform(raw)
    # The columns of whitening fall by variance, so the first of them are whitening to this many.
    reduced = {f"whitening({k})": white[:, :k] for k in WIDTHS if k < white.shape[1]}
    return {"raw": raw, "center": Center().fit_transform(raw), "whitening": white, **reduced}


def _features(units: Float64, rows: Intp) -> Float64:
    """|u - v| and u v of each pair under an RBF kernel: (n, landmarks), of total variance one."""
    from sklearn.kernel_approximation import Nystroem

    u, v = units[rows[0]], units[rows[1]]
    pairs = _scaled(np.hstack([np.abs(u - v), u * v]))
    kernel = Nystroem(kernel="rbf", gamma=1.0, n_components=min(LANDMARKS, len(pairs)), random_state=0)
    return _scaled(kernel.fit_transform(pairs))


def _scaled(columns: Float64) -> Float64:
    """Columns of mean zero and total variance one."""
    centered = columns - columns.mean(0)
    return centered / np.sqrt(max(centered.var(0).sum(), np.finfo(float).tiny))


def labeled_pairs(tasks: Sequence[str], data_dir: str | Path) -> dict[str, Pairs]:
    """Labeled pairs of other tasks that each task is predicted from; see ``load_sts`` for what is refused."""
    return {task: joined([load_sts(one, data_dir) for one in LABELED[task]]) for task in tasks if task in LABELED}


def ceilings_of(
    systems: Systems, sets: Sequence[Pairs], labeled: Mapping[str, Pairs], progress: bool | None = None
) -> dict[str, SupervisedCeiling]:
    """The ceiling of each raw encoder among some systems, by the name it has in tables.

    Raises:
        UsageError: If a system has such a name already.
    """
    found = {}
    for name, system in systems.items():
        if name == RAW or name.startswith(f"{RAW} of "):
            ceiling = CEILING + name.removeprefix(RAW)
            if ceiling in systems:
                raise UsageError(f"Two systems would be called {ceiling!r}. Name one as NAME=path, or leave one out.")
            found[ceiling] = SupervisedCeiling(system, sets, labeled, progress=progress)
    return found

"""Two analyses beside the scores: does a system look at the surface, and what could labels still make of it?

Lexical similarity: are pairs found similar because they share words rather than meaning?

    rho(similarity, edit distance)      strongly negative: it looks at the surface; gold scores are the measure
    rho(similarity, gold)               on all pairs, and on those that differ by at most four edits

The paper (Li et al. 2020, table 6 and figure 2) does not say what it edits, so both are here: characters and words, of
lower-cased text. Between its gold scores and the edit distance it has -24.61; on the same pairs words give -23.92 and
characters -20.50, and at most four edits are 383 or 16 pairs: it probably counts words, cut in another way.

The supervised ceiling: every closed form is an affine map x -> (x - c) W whose cosines are scored, and only W and c
differ. So let labels choose c and W, of the same family. The map maximizes the Pearson correlation of the cosine with
the gold scores, within each sub-set (scales differ), by full-batch Adam. It starts half-way to whitening (principal
coordinates over the root of their deviation), is pulled back there, and stops where held-out pairs are served best:
else 50,000 weights learn 5,000 pairs by heart. Start, rank and pull were chosen by training on one sub-set of
``tuning`` and watching the other. It is a lower bound of what labels can do: text unlike the labelled pairs can still
be served better by a calibrator that saw it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cosine_similarity

from bertflow.affine import NULL_SHARE, AffineMap, principal_directions
from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.base import AbstractCalibrator, Provenance
from bertflow.correlation import FEWEST, spearman
from bertflow.data.pairs import Pairs
from bertflow.data.sts import pair_keys
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.errors import DataError, UsageError
from bertflow.evaluation.figures import members_of
from bertflow.evaluation.rows import SystemFacts, number, task_title
from bertflow.evaluation.systems import encode_sets, row_numbers
from bertflow.files import to_json
from bertflow.moments import Moments
from bertflow.similarity import SIMILARITIES
from bertflow.tables import Section, Table
from bertflow.text_keys import hash_texts

NEAR = 4
"""Edits of a pair that counts as near."""
LEVELS: Mapping[str, Callable[[str], list[str]]] = {
    "characters": lambda sentence: list(sentence.lower()),
    "words": lambda sentence: sentence.lower().split(),
}
"""What is inserted, deleted or replaced."""
GOLD = "gold"
"""Stands among the systems: how the human scores themselves go with edit distance."""
FEWEST_PAIRS = 20
"""In each sub-set: fewer cannot be split."""
SIZE = 0.1
"""Standard deviation of the coordinates that are mapped."""
CHECK_EVERY = 5
PATIENCE = 10
"""Checks without a gain on the held-out pairs after which the fit stops."""
Agreement = Callable[[Sequence[Tensor], Tensor], Tensor]
"""Sub-sets of pairs, embeddings -> how well cosines and gold scores agree."""


@dataclass(frozen=True)
class LexicalRow:
    """One system, or the gold scores, under one level of edits. Correlations are Spearman's, in [-1, 1].

    Attributes:
        system: As tables call it.
        level: A row of ``LEVELS``.
        n: Pairs.
        distance: Correlation of similarity and edit distance.
        gold: Correlation of similarity and gold score; None of the gold scores with themselves.
        near: Pairs of at most ``NEAR`` edits.
        near_gold: Correlation with the gold scores among those; None where there are too few, or no variance.
    """

    system: str
    level: str
    n: int
    distance: float
    gold: float | None
    near: int
    near_gold: float | None


@dataclass(frozen=True)
class Lexical:
    """All rows of one task, by level, then by system.

    Systems that are left out were trained on labels of these pairs.
    """

    task: str
    rows: tuple[LexicalRow, ...]
    left_out: tuple[str, ...] = ()

    def table(self) -> Table:
        """A line a system, x 100."""
        by_system = {
            name: [row for row in self.rows if row.system == name]
            for name in dict.fromkeys(row.system for row in self.rows)
        }
        levels = by_system[GOLD]
        distances = [f"edits of {row.level}" for row in levels]
        near = [f"gold, at most {NEAR} {row.level} ({row.near} pairs)" for row in levels]
        lines = [
            (name, *(number(value, "spearman") for value in values))
            for name, rows in by_system.items()
            for values in [(rows[0].gold, *(row.distance for row in rows), *(row.near_gold for row in rows))]
        ]
        return Table((f"lexical, {task_title(self.task)}", "gold", *distances, *near), tuple(lines))

    def section(self) -> Section:
        """The table, and how it was made."""
        n = self.rows[0].n
        lines = [
            f"Spearman x 100 on the {n:,} pairs of {task_title(self.task)}; edits are counted in characters and in "
            "words of lower-cased text. The more negative a system's columns of edits, beside those of gold, the more "
            "it looks at the surface."
        ]
        lines += [f"{name} is left out: it was trained on labels of these pairs." for name in self.left_out]
        return Section("Lexical similarity", self.table(), tuple(lines))

    def to_json(self) -> str:
        """Everything; correlations in [-1, 1]."""
        return to_json({"format": 1, "task": self.task, "at_most": NEAR, "rows": [asdict(row) for row in self.rows]})


def lexical_table(
    systems: Mapping[str, SentenceEncoder], pairs: Pairs, similarity: str = "cosine", progress: bool | None = None
) -> Lexical:
    """How the similarities of every system, and the gold scores, go with the edit distance of the pairs.

    Args:
        systems: By the name they have in the table.
        pairs: The paper's are ``stsb-dev``.
        similarity: A row of ``SIMILARITIES``.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
    """
    scores = {GOLD: pairs.target}
    leaks = [name for name, system in systems.items() if SystemFacts.of(name, system).label_leak(pairs.task)]
    kept = {name: system for name, system in systems.items() if name not in leaks}
    [sides] = encode_sets(kept, [pairs], similarity, progress)
    scores |= {name: SIMILARITIES[similarity].paired(first, second) for name, first, second in sides}
    rows = []
    for level, cut in LEVELS.items():
        distances = [edit_distance(cut(a), cut(b)) for a, b in zip(pairs.first, pairs.second, strict=True)]
        rows += [_row(name, level, found, pairs.target, np.array(distances)) for name, found in scores.items()]
    return Lexical(pairs.task, tuple(rows), tuple(leaks))


def edit_distance(first: Sequence[str], second: Sequence[str]) -> int:
    """The fewest insertions, deletions and replacements that turn one into the other (Levenshtein).

    Row i holds the distances of the first i parts of ``first`` to every beginning of ``second``. Insertions run along
    a row, so that each entry is the smallest of those left of it plus their distance in columns: a running minimum.
    """
    codes = {part: code for code, part in enumerate(dict.fromkeys([*first, *second]))}
    others = np.array([codes[part] for part in second], dtype=np.intp)
    columns = np.arange(len(second) + 1)
    row = columns
    for at, part in enumerate(first, start=1):
        without_insertions = np.minimum(row[1:] + 1, row[:-1] + (others != codes[part]))
        row = np.minimum.accumulate(np.concatenate([[at], without_insertions]) - columns) + columns
    return int(row[-1])


def _row(
    system: str, level: str, scores: NDArray[np.float64], gold: NDArray[np.float64], distances: NDArray[np.int_]
) -> LexicalRow:
    near = distances <= NEAR
    varied = near.sum() >= FEWEST and np.ptp(gold[near]) > 0 and np.ptp(scores[near]) > 0
    return LexicalRow(
        system,
        level,
        n=len(gold),
        distance=spearman(scores, distances.astype(np.float64)),
        gold=None if system == GOLD else spearman(scores, gold),
        near=int(near.sum()),
        near_gold=spearman(scores[near], gold[near]) if varied and system != GOLD else None,
    )


class LabelledLinear(AbstractCalibrator):
    """An affine map fitted to labels: the one calibrator here that needs labels.

    Its provenance names the labels, so that scores on the same labels are refused.

    Args:
        rank: Width of the result, at most; fewer where the embeddings span fewer directions.
        pull: Weight of the squared distance from the start.
        steps: Largest number of optimizer steps.
        learning_rate: Of Adam.
        held_out: Share of the pairs of each sub-set that decide when to stop.
        random_state: Random seed for the held-out pairs.
    """

    def __init__(
        self,
        rank: int = 128,
        pull: float = 1e-3,
        steps: int = 200,
        learning_rate: float = 1e-3,
        held_out: float = 0.2,
        random_state: int = 0,
    ) -> None:
        self.rank = rank
        self.pull = pull
        self.steps = steps
        self.learning_rate = learning_rate
        self.held_out = held_out
        self.random_state = random_state

    def fit_pairs(
        self, encoder: SentenceEncoder, pairs: Pairs, scored: Sequence[Pairs] = (), progress: bool | None = None
    ) -> "LabelledLinear":
        """Fit to the gold scores of ``pairs``.

        Args:
            encoder: Makes the raw embeddings.
            pairs: Labelled pairs.
            scored: Sets that will be scored: their pairs, in either order, are left out.
            progress: Whether to show a progress bar (default: in a terminal or a notebook).

        Raises:
            DataError: If a sub-set has too few pairs left, or embeddings do not differ.
        """
        sentences = pairs.sentences
        x = encoder.encode(sentences, progress=progress)
        self.moments_, self.n_features_in_ = Moments.of(x), x.shape[1]
        rows = torch.from_numpy(pairs.rows(row_numbers(sentences)))
        agreement = partial(_agreement, rows, torch.from_numpy(pairs.target).float())
        self.map_ = self._optimized(x, agreement, _groups(pairs, scored))
        self.provenance_ = Provenance.of(encoder.describe(), hash_texts(sentences), pairs.task)
        return self

    def _fit_map(self, *_: Any, **__: Any) -> NoReturn:
        raise UsageError("LabelledLinear is fitted to labelled pairs, got embeddings alone. Call fit_pairs.")

    def _optimized(self, x: NDArray[np.float32], agreement: Agreement, groups: list[Tensor]) -> AffineMap:
        deviation, directions = principal_directions(self.moments_)
        span = int((deviation > NULL_SHARE * math.sqrt(self.moments_.mean_square_norm)).sum())
        if not span:
            raise DataError(f"All {len(x)} embeddings are equal, so there is nothing to fit. Use another pooling.")
        basis = directions[:, :span] / np.sqrt(deviation[:span])
        # The shift is in units of the coordinates, so these are of a size at which it moves as fast as the weight.
        basis *= SIZE / np.sqrt(deviation[:span].mean())
        coordinates = torch.from_numpy((x - self.moments_.mean) @ basis).float()
        shift, weight = self._ascend(coordinates, agreement, groups)
        onto = basis @ weight.double().numpy()
        center = self.moments_.mean + shift.double().numpy() @ np.linalg.pinv(basis)
        return AffineMap(center, onto, np.linalg.pinv(onto))

    def _ascend(self, coordinates: Tensor, agreement: Agreement, groups: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Shift and weight of the step at which held-out pairs were served best."""
        training, held_out = _split(groups, self.held_out, self.random_state)
        width = coordinates.shape[1]
        shift = torch.zeros(width, requires_grad=True)
        start = torch.eye(width)[:, : self.rank]
        weight = start.clone().requires_grad_(True)
        optimizer = torch.optim.Adam([shift, weight], lr=self.learning_rate)
        best, waited = (-math.inf, 0, shift.detach().clone(), weight.detach().clone()), 0
        for step in range(self.steps + 1):
            if step % CHECK_EVERY == 0:
                with torch.no_grad():
                    value = float(agreement(held_out, (coordinates - shift) @ weight))
                waited += 1
                if value > best[0]:
                    best, waited = (value, step, shift.detach().clone(), weight.detach().clone()), 0
                if waited == PATIENCE:
                    break
            optimizer.zero_grad()
            found = agreement(training, (coordinates - shift) @ weight)
            loss = self.pull * (weight - start).square().sum() - found
            loss.backward()  # torch ships it without types
            optimizer.step()
        self.facts_ = {"held_out_pearson": best[0], "steps": best[1], "pairs": sum(map(len, groups))}
        return best[2], best[3]


def ceiling_system(
    encoder: SentenceEncoder, pairs: Pairs, scored: Sequence[Pairs] = (), seed: int = 0, progress: bool | None = None
) -> CalibratedEncoder:
    """The supervised ceiling of an encoder, as a system beside the others.

    Args:
        encoder: The same raw encoder that the others calibrate.
        pairs: Labelled pairs: ``tuning``.
        scored: Sets that will be scored; their pairs are not trained on.
        seed: Random seed for the held-out pairs.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
    """
    return CalibratedEncoder(encoder, LabelledLinear(random_state=seed).fit_pairs(encoder, pairs, scored, progress))


def _groups(pairs: Pairs, scored: Sequence[Pairs]) -> list[Tensor]:
    """The pairs of each sub-set, without those that are scored."""
    taken = {key for one in scored for key in pair_keys(one)}
    kept = np.array([key not in taken for key in pair_keys(pairs)])
    groups = []
    for name, members in members_of(pairs.subsets).items():
        group = members[kept[members]]
        if len(group) < FEWEST_PAIRS or np.ptp(pairs.target[group]) == 0:
            raise DataError(
                f"The ceiling needs at least {FEWEST_PAIRS} pairs of different scores in the sub-set {name} of "
                f"{pairs.task}, got {len(group)} that are not scored themselves. Give more labelled pairs."
            )
        groups.append(torch.from_numpy(group))
    return groups


def _split(groups: Sequence[Tensor], share: float, seed: int) -> tuple[list[Tensor], list[Tensor]]:
    """Training and held-out pairs of each sub-set."""
    rng = np.random.default_rng(seed)
    shuffled = [group[torch.from_numpy(rng.permutation(len(group)))] for group in groups]
    cuts = [round(share * len(group)) for group in groups]
    parts = list(zip(shuffled, cuts, strict=True))
    return [group[cut:] for group, cut in parts], [group[:cut] for group, cut in parts]


def _agreement(rows: Tensor, gold: Tensor, groups: Sequence[Tensor], z: Tensor) -> Tensor:
    """Pearson correlation of cosine and gold score, mean over the sub-sets.

    Args:
        rows: Rows of the first and of the second sentence of each pair.
        gold: Scores, on any scale.
        groups: The pairs of each sub-set.
        z: Embeddings.
    """
    found = []
    for group in groups:
        cosines = cosine_similarity(z[rows[0, group]], z[rows[1, group]])
        ours, theirs = cosines - cosines.mean(), gold[group] - gold[group].mean()
        found.append((ours * theirs).sum() / (ours.norm() * theirs.norm()))
    return torch.stack(found).mean()

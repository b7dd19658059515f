"""The supervised ceiling: what a linear map makes of the same raw embeddings when it is told the answers.

"Too little information, or badly used?", the paper asks of BERT. Every closed form is an affine map x -> (x - c) W
whose cosines are scored, and only W and c differ. So the question has a number: let labels choose c and W, of the same
family, and say which share of the way from raw to there a calibrator goes that saw no labels:

    share = (calibrated - raw) / (ceiling - raw)

The map maximizes the Pearson correlation of the cosine with the gold scores, within each sub-set (scales differ), by
full-batch Adam. It starts half-way to whitening (principal coordinates over the root of their deviation), is pulled
back there, and stops where held-out pairs are served best: else 50,000 weights learn 5,000 pairs by heart. Start, rank
and pull were chosen by training on one sub-set of ``tuning`` and watching the other. It is a lower bound of what labels
can do: text unlike the labelled pairs can still be served better by a calibrator that saw it, and shares above 100 %
say so.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cosine_similarity

from bertflow.affine import NULL_SHARE, AffineMap, principal_directions
from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.base import AbstractCalibrator, Provenance
from bertflow.data.pairs import Pairs, unique_sentences
from bertflow.data.sts import pair_keys
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.errors import DataError, UsageError
from bertflow.evaluation.encoding import row_numbers
from bertflow.evaluation.report import Report
from bertflow.moments import Moments
from bertflow.tables import MISSING, Section, Table

FEWEST_PAIRS = 20
"""In each sub-set: fewer cannot be split."""
SIZE = 0.1
"""Standard deviation of the coordinates that are mapped."""
CHECK_EVERY = 5
PATIENCE = 10
"""Checks without a gain on the held-out pairs after which the fit stops."""


@dataclass(frozen=True)
class Questions:
    """Pairs as the optimizer reads them.

    Attributes:
        first: Row of the first sentence of each pair.
        second: Row of the second one.
        gold: Scores, on any scale.
        groups: The pairs of each sub-set.
    """

    first: Tensor
    second: Tensor
    gold: Tensor
    groups: list[Tensor]


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
        sentences = unique_sentences([pairs])
        x = encoder.encode(sentences, progress=progress)
        row_of = row_numbers(sentences)
        self.moments_, self.n_features_in_ = Moments.of(x), x.shape[1]
        self.map_ = self._optimized(x, _questions(pairs, row_of, scored))
        known = Provenance.of(encoder, sentences)
        self.provenance_ = Provenance(known.encoder, known.text_hashes, (*known.labels, pairs.task))
        return self

    def _fit_map(
        self,
        x: NDArray[np.floating],
        encoder: SentenceEncoder | None = None,
        sentences: Sequence[str] | None = None,
    ) -> NoReturn:
        raise UsageError("LabelledLinear is fitted to labelled pairs, got embeddings alone. Call fit_pairs.")

    def _optimized(self, x: NDArray[np.float32], questions: Questions) -> AffineMap:
        deviation, directions = principal_directions(self.moments_)
        span = int((deviation > NULL_SHARE * math.sqrt(self.moments_.mean_square_norm)).sum())
        if not span:
            raise DataError(f"All {len(x)} embeddings are equal, so there is nothing to fit. Use another pooling.")
        basis = directions[:, :span] / np.sqrt(deviation[:span])
        # The shift is in units of the coordinates, so these are of a size at which it moves as fast as the weight.
        basis *= SIZE / np.sqrt(deviation[:span].mean())
        coordinates = torch.from_numpy((x - self.moments_.mean) @ basis).float()
        shift, weight = self._ascend(coordinates, questions)
        onto = basis @ weight.double().numpy()
        center = self.moments_.mean + shift.double().numpy() @ np.linalg.pinv(basis)
        return AffineMap(center, onto, np.linalg.pinv(onto))

    def _ascend(self, coordinates: Tensor, questions: Questions) -> tuple[Tensor, Tensor]:
        """Shift and weight of the step at which held-out pairs were served best."""
        training, held_out = _split(questions.groups, self.held_out, self.random_state)
        width = coordinates.shape[1]
        shift = torch.zeros(width, requires_grad=True)
        start = torch.eye(width)[:, : self.rank]
        weight = start.clone().requires_grad_(True)
        optimizer = torch.optim.Adam([shift, weight], lr=self.learning_rate)
        best, waited = (-math.inf, 0, shift.detach().clone(), weight.detach().clone()), 0
        for step in range(self.steps + 1):
            if step % CHECK_EVERY == 0:
                with torch.no_grad():
                    found = float(_agreement((coordinates - shift) @ weight, questions, held_out))
                waited += 1
                if found > best[0]:
                    best, waited = (found, step, shift.detach().clone(), weight.detach().clone()), 0
                if waited == PATIENCE:
                    break
            optimizer.zero_grad()
            agreement = _agreement((coordinates - shift) @ weight, questions, training)
            loss = self.pull * (weight - start).square().sum() - agreement
            loss.backward()  # torch ships it without types
            optimizer.step()
        self.facts_ = {"held_out_pearson": best[0], "steps": best[1], "pairs": sum(map(len, questions.groups))}
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


def gap_closed(value: float, raw: float, ceiling: float) -> float | None:
    """Which share of the way from ``raw`` to ``ceiling`` is gone; None where the ceiling does not lie above."""
    return (value - raw) / (ceiling - raw) if ceiling > raw else None


def gap_table(report: Report, raw: str, ceiling: str) -> Table:
    """The share of the gap between two systems that each other one with the same weights closes, in percent.

    Args:
        report: Scores of all of them.
        raw: Name of the system at 0 %.
        ceiling: Name of the system at 100 %.
    """
    columns = [column for column in report.columns if column.metric == report.metric]

    def cell(system: str, task: str, how: str) -> str:
        value, low, high = (report.value(name, task, how) for name in (system, raw, ceiling))
        share = gap_closed(value, low, high)
        return MISSING if share is None else f"{100 * share:.0f} %"

    weights = {facts.name: facts.description.get("weights") for facts in report.systems}
    names = [name for name in weights if name not in (raw, ceiling) and weights[name] == weights[raw]]
    lines = [(name, *(cell(name, column.task, column.aggregation) for column in columns)) for name in names]
    return Table((f"{raw} to {ceiling}", *(column.title for column in columns)), tuple(lines))


def gap_section(report: Report, raw: str, ceiling: str) -> Section:
    """The table, and what it says."""
    labels = next(", ".join(facts.labels) for facts in report.systems if facts.name == ceiling)
    return Section(
        f"What share of the gap between {raw} and {ceiling} is closed",
        gap_table(report, raw, ceiling),
        (
            f"{ceiling} is an affine map that was trained on the labels of {labels}, without the pairs scored here: a "
            "lower bound of what labels can make of the same embeddings. The others saw no labels.",
        ),
    )


def _questions(pairs: Pairs, row_of: dict[str, int], scored: Sequence[Pairs]) -> Questions:
    taken = {key for one in scored for key in pair_keys(one)}
    kept = [at for at, key in enumerate(pair_keys(pairs)) if key not in taken]
    members: dict[str, list[int]] = {name: [] for name in dict.fromkeys(pairs.subsets)}
    for at in kept:
        members[pairs.subsets[at]].append(at)
    for name, group in members.items():
        if len(group) < FEWEST_PAIRS or np.ptp(pairs.target[group]) == 0:
            raise DataError(
                f"The ceiling needs at least {FEWEST_PAIRS} pairs of different scores in the sub-set {name} of "
                f"{pairs.task}, got {len(group)} that are not scored themselves. Give more labelled pairs."
            )
    first, second = torch.from_numpy(pairs.rows(row_of))
    gold = torch.from_numpy(pairs.target).float()
    return Questions(first, second, gold, [torch.tensor(group) for group in members.values()])


def _split(groups: Sequence[Tensor], share: float, seed: int) -> tuple[list[Tensor], list[Tensor]]:
    """Training and held-out pairs of each sub-set."""
    rng = np.random.default_rng(seed)
    shuffled = [group[torch.from_numpy(rng.permutation(len(group)))] for group in groups]
    cuts = [round(share * len(group)) for group in groups]
    parts = list(zip(shuffled, cuts, strict=True))
    return [group[cut:] for group, cut in parts], [group[:cut] for group, cut in parts]


def _agreement(z: Tensor, questions: Questions, groups: Sequence[Tensor]) -> Tensor:
    """Pearson correlation of cosine and gold score, mean over the sub-sets."""
    found = []
    for group in groups:
        cosines = cosine_similarity(z[questions.first[group]], z[questions.second[group]])
        ours, theirs = cosines - cosines.mean(), questions.gold[group] - questions.gold[group].mean()
        found.append((ours * theirs).sum() / (ours.norm() * theirs.norm()))
    return torch.stack(found).mean()

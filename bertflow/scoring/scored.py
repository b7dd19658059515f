"""Cosines of pairs that people can use, and how ordinary the sentences of a text are."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bertflow.calibration.spelling import parse_calibrator
from bertflow.data.corpus import load_sentences
from bertflow.data.pairs import Pairs, load_pairs
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.errors import DataError, UsageError
from bertflow.evaluation.systems import pair_cosines, remembering
from bertflow.files import atomic_folder, require_replaceable
from bertflow.opening import LoadOptions, load, require_openable
from bertflow.registry import lookup
from bertflow.results import AbstractResult
from bertflow.scoring.domain import DOMAIN, DomainCheck, DomainReport
from bertflow.scoring.drift import Outside
from bertflow.scoring.labelled import LabelledThreshold, require_target
from bertflow.scoring.probability import CURVES
from bertflow.scoring.random_pairs import Threshold, unseen_sample
from bertflow.scoring.scores import SCORES, ScoreCalibrator
from bertflow.tables import Table

logger = logging.getLogger("bertflow")
SHOWN = 20
"""Pairs that are shown; a file gets all of them."""
MOST = 0.5
"""Share of the labelled pairs that do not match from which a threshold that they pass is useless for such pairs."""
WIDTH = 40
"""Characters of a text that are shown."""
Row = tuple[str | float, ...]


@dataclass(frozen=True, repr=False)
class ScoredPairs(AbstractResult):
    """What ``bertflow.score`` gives back.

    Attributes:
        scores: The calibrator of scores, fitted or opened; None if no pairs were scored.
        threshold: The cosine from which a pair is a match, by random pairs or by labelled ones.
        pairs: The pairs that were scored; None if only a text was asked about.
        cosines: Their cosines (n,).
        percentiles: Percent of random pairs with a lower cosine, (n,).
        probabilities: Probability of a match, (n,); None without labels.
        matches: Whether the cosine reaches the threshold, (n,).
        outside: How many of the texts of the pairs are out of domain of the text of the random pairs; of query-text
            pairs only the texts are looked at. None without a domain check.
        domain: How ordinary the sentences of a text are; None if that was not asked.
        fail_on_drift: Whether text that has drifted misses what was required.
        output: The file with the whole result; None if none was asked for.
    """

    scores: ScoreCalibrator | None = None
    threshold: Threshold | LabelledThreshold | None = None
    pairs: Pairs | None = None
    cosines: "NDArray[np.float64] | Sequence[float]" = ()
    percentiles: "NDArray[np.float64] | Sequence[float]" = ()
    probabilities: "NDArray[np.float64] | None" = None
    matches: NDArray[np.bool_] | Sequence[bool] = ()
    outside: Outside | None = None
    domain: DomainReport | None = None
    fail_on_drift: bool = False
    output: str | Path | None = None

    name: ClassVar[str] = "scores"
    not_in_json: ClassVar[tuple[str, ...]] = (
        "scores",
        "pairs",
        "cosines",
        "percentiles",
        "probabilities",
        "matches",
        "outside",
        "fail_on_drift",
    )

    @property
    def header(self) -> tuple[str, ...]:
        """The columns of ``rows``."""
        probability = () if self.probabilities is None else ("probability",)
        return ("sentence1", "sentence2", "cosine", "percentile", *probability, "match")

    def rows(self) -> list[Row]:
        """One a pair; "match" is yes or no."""
        if self.pairs is None:
            return []
        numbers = [self.cosines, self.percentiles, *([] if self.probabilities is None else [self.probabilities])]
        rounded = [[round(float(value), 6) for value in column] for column in numbers]
        matches = ["yes" if match else "no" for match in self.matches]
        return list(zip(self.pairs.first, self.pairs.second, *rounded, matches, strict=True))

    def parts(self) -> Iterator[Table | str]:
        """The threshold, the first pairs, and the strangest sentences."""
        if self.scores is not None:
            yield f"Match: {self.threshold}; {self.scores.pairs_:,} {self.scores.drawn}."
        if self.pairs is not None:
            yield Table(self.header, tuple(tuple(map(_cell, row)) for row in self.rows()[:SHOWN]))
            shown = f" The first {SHOWN} stand above." if len(self.pairs) > SHOWN else ""
            rest = " --output FILE gets all." if shown and not self.output else ""
            yield f"{sum(self.matches):,} of {len(self.pairs):,} pairs match.{shown}{rest}"
        if self.outside and self.outside.clear:
            yield str(self.outside)
        yield from self._by_labels()
        if self.domain is not None:
            yield from self.domain.parts()
        if self.output:
            yield f"The whole result is in {self.output}."

    def _by_labels(self) -> Iterator[str]:
        """How the labelled pairs fare at a threshold that random pairs chose."""
        if self.scores is None or self.scores.labelled_ is None or hasattr(self.threshold, "passing"):
            return
        assert self.threshold is not None, "scores have one"
        passing = self.scores.labelled_.passing(self.threshold.value)
        yield f"On the {len(self.scores.labelled_):,} labelled pairs: {passing}."
        if passing.passed_others.value >= MOST:
            yield (
                f"This threshold is useless for such pairs: it tells random pairs from related ones, and "
                f"{passing.others:,} of {len(self.scores.labelled_.others):,} pairs that are labelled 0 pass, too. "
                "Choose one by the labels: --precision P or --recall R."
            )

    def missed(self) -> str:
        """Drift, where that was not to be."""
        drift = self.domain.drift if self.domain and self.fail_on_drift else None
        return f"This is other text than the one that was fitted on. {drift}" if drift and drift.refit else ""

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        pairs = [dict(zip(self.header, row, strict=True)) for row in self.rows()]
        return {**super().as_dict(), "pairs": pairs, "out_of_domain": self.outside and self.outside.share}


def score_pairs(
    encoder: str | Path | SentenceEncoder,
    options: LoadOptions,
    pairs: str | Path | Sequence[tuple[str, str]] | None,
    columns: str | None,
    domain: str | Path | Sequence[str] | None,
    fit_on: str | Path | Sequence[str] | None,
    queries: str | Path | Sequence[str] | None,
    labels: str | Path | None,
    wanted: str,
    target: float,
    method: str,
    density: str | None,
    save: str | Path | None,
    max_sentences: int,
    seed: int,
    without_text_hashes: bool,
    progress: bool | None,
) -> ScoredPairs:
    """Score pairs, fit scores, look at a text: what is ``wanted`` is a rate, precision or recall, and ``target`` it."""
    by_rate = wanted == "false_match_rate"
    require_replaceable(save, SCORES, "an encoder that was saved with its scores", "--save")
    lookup("method", {"auto": None, **CURVES}, method)
    DomainCheck(parse_calibrator(density or "gaussian"))
    if not by_rate:
        require_target(wanted, target, fit_on is None or labels is not None)
    require_openable(encoder, **options)
    home = Path(encoder) if isinstance(encoder, str | Path) else None
    for asked_for, kept in ((pairs, SCORES), (domain, DOMAIN)) if fit_on is None else ():
        if asked_for is not None:
            _kept(home, kept)
    labelled = load_pairs(labels, "binary") if labels else None
    asked, text, strange, wondered = _pairs(pairs, columns), *map(_sentences, (fit_on, domain, queries))
    if isinstance(encoder, str | Path):
        encoder = load(encoder, **options)
    if text is not None:
        seen = encoder.fitted_hashes()
        text = unseen_sample(text, seen, max_sentences, seed, _named(fit_on, "The text"))
        wondered = wondered and unseen_sample(wondered, seen, max_sentences, seed, _named(queries, "The queries"))
    found, check, system = ScoredPairs(), None, remembering(encoder)
    if text is not None:
        check = _domain_of(system.raw, text, density, strange is not None, bool(save))
    elif home and (asked is not None or strange is not None):
        check = DomainCheck.find(home, encoder.raw)
    if asked is not None or save:
        if text is not None:
            scores = ScoreCalibrator(method, seed).fit_sentences(system, text, wondered, progress)
        else:
            scores = ScoreCalibrator.load(_kept(home, SCORES), encoder)
        if labelled is not None:
            scores.fit_labels(pair_cosines(system, scores.asked(labelled), progress), labelled.target)
        threshold = scores.threshold(target) if by_rate else _by_label(scores, wanted, target)
        found = ScoredPairs(scores, threshold)
        if asked is not None:
            cosines = pair_cosines(system, scores.asked(asked), progress)
            chances = scores.probability(cosines) if scores.probability_ else None
            matches = cosines >= threshold.value
            found = ScoredPairs(scores, threshold, asked, cosines, scores.percentile(cosines), chances, matches)
            if check:
                outside = check.is_outside(system.raw.encode(list(scores.judged(asked)), progress=progress))
                found = replace(found, outside=Outside(int(outside.sum()), len(outside)))
        if save:
            with atomic_folder(save) as aside:
                (encoder.forget_text() if without_text_hashes else encoder).write(aside)
                scores.save(aside)
                if check:
                    check.save(aside)
    if strange is not None:
        assert check, "it was fitted, or is in the folder"
        found = replace(found, domain=check.report(encoder.raw, strange, progress))
    return found


def _sentences(given: str | Path | Sequence[str] | None) -> list[str] | None:
    return load_sentences(str(given)) if isinstance(given, str | Path) else given if given is None else list(given)


def _named(given: object, otherwise: str) -> str:
    return str(given) if isinstance(given, str | Path) else otherwise


def _domain_of(
    raw: SentenceEncoder, text: list[str], density: str | None, needed: bool, saved: bool
) -> DomainCheck | None:
    """What ordinary text is; where that is not ``needed``, but ``saved``, too little text is said."""
    try:
        return DomainCheck.of_text(raw, text, density or "gaussian")
    except DataError as error:
        if needed:
            raise
        if saved:
            logger.warning("No domain check is saved: %s", error)
        return None


def _pairs(given: str | Path | Sequence[tuple[str, str]] | None, columns: str | None) -> Pairs | None:
    if isinstance(given, str | Path):
        return load_pairs(given, "texts", columns)
    first, second = zip(*given, strict=True) if given else ((), ())
    return Pairs("pairs", tuple(first), tuple(second), kind="texts") if given else None


def _by_label(scores: ScoreCalibrator, wanted: str, target: float) -> LabelledThreshold:
    require_target(wanted, target, scores.labelled_ is not None)
    assert scores.labelled_ is not None, "as was made sure"
    return scores.labelled_.threshold(wanted, target, scores.random_state)


def _kept(home: Path | None, name: str) -> Path:
    """The folder of an encoder that keeps what was fitted to text."""
    if home is None or not (home / name).exists():
        what, do = (name, "Fit the scores to your text") if "." in name else (f"{name}/", "Say what ordinary text is")
        raise UsageError(f"{home or 'The encoder'} holds no {what}. {do}: add --fit_on TEXT.")
    return home


def _cell(value: str | float) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    return value if len(value) <= WIDTH else f"{value[: WIDTH - 3]}..."

"""Cosines of pairs that people can use, and how ordinary the sentences of a text are."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bertflow.array_types import Bools, Float64
from bertflow.calibration.spelling import parse_calibrator
from bertflow.data.corpus import load_sentences
from bertflow.data.pairs import Pairs, load_pairs
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.options import EncoderOptions
from bertflow.errors import DataError, UsageError, how_many, logger
from bertflow.evaluation.names import Model, Text
from bertflow.evaluation.sides import pair_cosines
from bertflow.evaluation.systems import remembering
from bertflow.files import atomic_folder
from bertflow.opening import load
from bertflow.places import require_place
from bertflow.registry import lookup
from bertflow.results import AbstractResult, Parts, ready_for_json
from bertflow.scoring.domain import DOMAIN, UNCHECKED, DomainCheck, DomainReport
from bertflow.scoring.drift import Excess
from bertflow.scoring.labeled import CURVES, Labeled, LabeledThreshold, require_target
from bertflow.scoring.random_pairs import FEWEST, Threshold, unseen_sample
from bertflow.scoring.scores import SCORES, ScoreCalibrator
from bertflow.tables import Table, cell

DRAWN = 10_000
"""Most random pairs of the scored texts that are drawn."""
PREVIEW, BRIEF = 10, 3
"""Pairs that are shown, and those in an answer of 24 lines; a file gets all of them."""
MOST = 0.5
"""Share of the labeled non-matches that pass a threshold from which it is useless for such pairs."""
KINDS = "The threshold is for pairs of one kind of text. For names and their texts: --fit_on TEXTS --queries NAMES."
"""Line below pairs none of which passes."""
UNCOUNTED = " Of the {:,} given, those that the encoder was fitted on do not count, nor more than --max_sentences."
"""Reason that sentences are too few."""
Row = tuple[str | float, ...]


@dataclass(frozen=True, repr=False)
class ScoredPairs(AbstractResult):
    """What ``bertflow.score`` gives back.

    Attributes:
        scores: The calibrator of scores, fitted or opened; None if no pairs were scored.
        threshold: The cosine from which a pair is a match, by random pairs or by labeled ones.
        pairs: The pairs that were scored; None if only a text was asked about.
        cosines: Their cosines (n,).
        outside: How many of the texts of the pairs are out of domain of the text of the random pairs; of query-text
            pairs only the texts are looked at. None without a domain check.
        at_random: How many random pairs of their texts pass the threshold; None if there are few, or labels chose it.
        domain: How ordinary the sentences of a text are; None if that was not asked.
        fail_on_drift: Whether text that has drifted misses what was required.
        output: The file with the whole result; None if none was asked for.
    """

    scores: ScoreCalibrator | None = None
    threshold: Threshold | LabeledThreshold | None = None
    pairs: Pairs | None = None
    cosines: Float64 = field(default_factory=lambda: np.empty(0))
    outside: Excess | None = None
    at_random: Excess | None = None
    domain: DomainReport | None = None
    fail_on_drift: bool = False
    output: str | Path | None = None

    name = "scores"

    @property
    def percentiles(self) -> Float64:
        """Percent of random pairs with a lower cosine, (n,)."""
        return self.scores.percentile(self.cosines) if self.scores else self.cosines

    @property
    def probabilities(self) -> Float64 | None:
        """Probability of a match, (n,); None without labels."""
        return self.scores.probability(self.cosines) if self.scores and self.scores.probability_ else None

    @property
    def matches(self) -> Bools:
        """Whether the cosine reaches the threshold, (n,)."""
        return self.cosines >= (self.threshold.value if self.threshold else np.inf)

    @property
    def header(self) -> tuple[str, ...]:
        """The columns of ``rows``."""
        return tuple(self._columns())

    def rows(self) -> list[Row]:
        """One a pair; "match" is yes or no."""
        return list(zip(*self._columns().values(), strict=True))

    def _columns(self) -> dict[str, Sequence[str | float]]:
        first, second = (self.pairs.first, self.pairs.second) if self.pairs else ((), ())
        numbers = {"cosine": self.cosines, "percentile": self.percentiles, "probability": self.probabilities}
        rounded = {name: np.round(values, 6).tolist() for name, values in numbers.items() if values is not None}
        texts = {"sentence1": first, "sentence2": second}
        return {**texts, **rounded, "match": np.where(self.matches, "yes", "no").tolist()}

    def parts(self) -> Parts:
        """The first pairs, the threshold below them, and the strangest sentences."""
        return self._told(PREVIEW, 40, self.domain.parts() if self.domain else ())

    def answer(self) -> Parts:
        """The parts, with fewer pairs and sentences, each in one line."""
        width = 15 if "probability" in self.header else 20
        return self._told(BRIEF, width, self.domain.answer() if self.domain else ())

    def _told(self, most: int, width: int, domain: Parts) -> Parts:
        """The first pairs, with ``width`` characters of a text; the threshold, the domain, the file."""
        if self.pairs is not None:
            shown = tuple(tuple(cell(one, 4, width) for one in row) for row in self.rows()[:most])
            yield Table(self.header, shown, prose=True)
        if self.scores is not None:
            yield f"Match: {self.threshold}; {self.scores.pairs_:,} {self.scores.drawn}."
        if self.pairs is not None:
            first = f" The table shows the first {most}." if len(self.pairs) > most else ""
            rest = " --output FILE gets all." if first and not self.output else ""
            yield f"Matches: {sum(self.matches):,} of {how_many(len(self.pairs), 'pairs')}.{first}{rest}"
            if self.scores and not (self.scores.queries_ or any(self.matches)):
                yield KINDS
        yield from self._doubts()
        yield from self._by_labels()
        yield from domain
        if self.output:
            yield f"The whole result is in {self.output}."

    def _doubts(self) -> Iterator[str]:
        """Whether the threshold holds for texts such as these."""
        if (random := self.at_random) and random.clear:
            queries = " --queries FILE" if self.scores and self.scores.queries_ else ""
            yield (
                f"The threshold does not hold for these texts: paired at random, {100 * random.share:.3g} % of "
                f"{random.n:,} pairs pass, and not {100 * random.usual:g} %. Fit it on such texts: --fit_on FILE"
                f"{queries}."
            )
        if (outside := self.outside) and outside.clear:
            yield (
                f"{outside.some:,} of {outside.n:,} texts are out of domain of the text that the percentiles were made "
                "of (other topics, or another length): the threshold does not hold for them. Fit it on text of this "
                "kind: --fit_on FILE."
            )
        elif self.pairs and not outside:
            yield UNCHECKED

    def _by_labels(self) -> Iterator[str]:
        """How the labeled pairs fare at a threshold that random pairs chose."""
        labeled = self.scores and self.scores.labeled_
        if not labeled or not isinstance(self.threshold, Threshold):
            return
        passing = labeled.passing(self.threshold.value)
        yield f"On the {len(labeled):,} labeled pairs: {passing}."
        if passing.passed_others.value >= MOST:
            yield (
                f"This threshold is useless for such pairs: it tells random pairs from related ones, and "
                f"{passing.others:,} of {len(labeled.others):,} pairs that are labeled 0 pass, too. "
                "Choose one by the labels: --precision P or --recall R."
            )

    def missed(self) -> str:
        """Drift, where ``fail_on_drift`` forbids it."""
        drift = self.domain.drift if self.domain and self.fail_on_drift else None
        return f"This is other text than the one that was fitted on. {drift}" if drift and drift.refit else ""

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        found = {"threshold": self.threshold, "domain": self.domain, "output": self.output}
        pairs = [dict(zip(self.header, row, strict=True)) for row in self.rows()]
        kind = {"out_of_domain": self.outside, "passing_at_random": self.at_random}
        return ready_for_json({**found, "pairs": pairs, **{name: one and one.share for name, one in kind.items()}})


def score_pairs(
    encoder: Model,
    options: EncoderOptions,
    pairs: str | Path | Sequence[tuple[str, str]] | None,
    columns: str | None,
    domain: Text | None,
    fit_on: Text | None,
    queries: Text | None,
    labels: str | Path | None,
    wanted: str,
    target: float | None,
    method: str,
    density: str | None,
    save: str | Path | None,
    max_sentences: int,
    seed: int,
    without_text_hashes: bool,
    progress: bool | None,
) -> ScoredPairs:
    """Score pairs, fit scores, look at a text; ``target`` is the value of ``wanted``: a rate, precision or recall."""
    by_rate = wanted == "false_match_rate"
    require_place(save, folder=True, new=True, sign=SCORES, what="an encoder that was saved with its scores", by="save")
    lookup("method", {"auto": None, **CURVES}, method)
    DomainCheck(parse_calibrator(density or "gaussian"))
    if not by_rate:
        assert target is not None, "precision or recall was given"
        require_target(wanted, target, fit_on is None or labels is not None)
    home = Path(encoder) if isinstance(encoder, str | Path) else None
    encoder = load(encoder, **options)
    kept = fit_on is None  # opened before any text is read
    scores = ScoreCalibrator.load(_kept(home, SCORES), encoder) if kept and pairs else None
    check = DomainCheck.find(_kept(home, SCORES if domain is None else DOMAIN), encoder.raw) if kept else None
    labeled = load_pairs(labels, "binary") if labels else None
    asked, (text, name), (strange, _) = _pairs(pairs, columns), _sentences(fit_on, "The text"), _sentences(domain, "")
    wondered, of_queries = _sentences(queries, "The queries")
    found, system = ScoredPairs(), remembering(encoder)
    if text is not None:
        seen, given = encoder.fitted_hashes(), len(text)
        text = unseen_sample(text, seen, max_sentences, seed, name)
        wondered = wondered and unseen_sample(wondered, seen, max_sentences, seed, of_queries, "queries")
        check = _domain_of(system.raw, text, given, density, strange is not None, bool(save))
        if asked is not None or save:
            scores = ScoreCalibrator(method, seed).fit_sentences(system, text, wondered, progress)
    if scores:
        if labeled is not None:
            scores.fit_labels(pair_cosines(system, scores.asked(labeled), progress), labeled.target)
        by_labels = partial((scores.labeled_ or Labeled((), ())).threshold, wanted, seed=scores.random_state)
        threshold = scores.threshold if by_rate else by_labels
        found = ScoredPairs(scores, scores.strict_threshold() if target is None else threshold(target))
        if asked is not None:
            found = replace(found, pairs=asked, cosines=pair_cosines(system, scores.asked(asked), progress))
            if isinstance(at := found.threshold, Threshold) and len(anew := _paired_anew(asked, seed)) >= FEWEST:
                by_chance = pair_cosines(system, scores.asked(_listed(anew)), progress) >= at.value
                found = replace(found, at_random=Excess(int(by_chance.sum()), len(anew), at.rate))
            if check:
                outside = check.is_outside(system.raw.encode(list(scores.judged(asked)), progress=progress))
                found = replace(found, outside=Excess(int(outside.sum()), len(outside)))
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


def _sentences(given: Text | None, otherwise: str) -> tuple[list[str] | None, str]:
    """The sentences of a text, if one is given, and what messages call it."""
    if isinstance(given, str | Path):
        return load_sentences(str(given)), str(given)
    return None if given is None else list(given), otherwise


def _domain_of(
    raw: SentenceEncoder, text: list[str], given: int, density: str | None, needed: bool, saved: bool
) -> DomainCheck | None:
    """What ordinary text is; if it is only ``saved``, not ``needed``, a note says that there is too little text."""
    try:
        return DomainCheck.of_text(raw, text, density or "gaussian")
    except DataError as error:
        said = f"{error}{UNCOUNTED.format(given)}" if given > len(text) else str(error)
        if needed:
            raise DataError(said) from None
        if saved:
            logger.warning("No domain check is saved: %s", said)
        return None


def _pairs(given: str | Path | Sequence[tuple[str, str]] | None, columns: str | None) -> Pairs | None:
    if isinstance(given, str | Path):
        return load_pairs(given, "texts", columns)
    return _listed(given) if given else None


def _listed(pairs: Sequence[tuple[str, str]]) -> Pairs:
    first, second = zip(*pairs, strict=True)
    return Pairs("pairs", tuple(first), tuple(second), kind="texts")


def _paired_anew(pairs: Pairs, seed: int) -> list[tuple[str, str]]:
    """First texts with the second ones of other pairs, at random; none that is a pair already, or a text twice."""
    order = np.random.default_rng(seed).permutation(len(pairs))[:DRAWN]
    known = {*zip(pairs.first, pairs.second, strict=True)}
    drawn = [(pairs.first[at], pairs.second[other]) for at, other in zip(order, np.roll(order, 1), strict=True)]
    return [one for one in drawn if one not in known and one[0] != one[1]]


def _kept(home: Path | None, name: str) -> Path:
    """The folder of an encoder that keeps what was fitted to text."""
    if home is None or not (home / name).exists():
        what, do = (name, "Fit the scores to your text") if "." in name else (f"{name}/", "Say what ordinary text is")
        raise UsageError(f"{home or 'The encoder'} holds no {what}. {do}: add --fit_on TEXT.")
    return home

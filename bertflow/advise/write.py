"""What ``bertflow fix`` leaves behind.

    encoder/                 the encoder, calibrated if that is advised, with scores.json and domain/
    sentence-transformers/   where a calibrator is advised: the same for other tools
    calibrator/ or scores/   instead of both, where vectors were given without their encoder
    geometry/                the report of `bertflow inspect`, before and after
    fix.json   fix.md        the verdict and every number behind it

The folder is there whole or not at all.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bertflow.advise.candidates import ROWS_A_DIRECTION, Candidates
from bertflow.advise.evidence import Judged
from bertflow.advise.source import Source
from bertflow.advise.text import SplitText
from bertflow.advise.verdict import Geometry, Verdict
from bertflow.calibrated import RECORD, CalibratedEncoder
from bertflow.data.pairs import Pairs
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.errors import UsageError
from bertflow.evaluation.encoding import pair_cosines
from bertflow.evaluation.tables import Column, value_table
from bertflow.export.targets import write_export
from bertflow.files import atomic_folder, write_json, write_text
from bertflow.geometry.inspecting import write_report
from bertflow.scoring.domain import FEWEST as FEWEST_OF_DOMAIN
from bertflow.scoring.domain import DomainCheck
from bertflow.scoring.labels import FEWEST as FEWEST_OF_LABELS
from bertflow.scoring.scores import ScoreCalibrator
from bertflow.tables import Table

EXPORTED = "sentence-transformers"
"""The folder for other tools, and what ``bertflow export`` calls it."""
RATES = (0.01, 0.001)
"""False-match rates whose thresholds the report gives."""
SHOWN: Mapping[str, tuple[str, ...]] = {
    "graded labels": ("cosine_spearman",),
    "binary labels": ("cosine_auc",),
    "retrieval labels": ("hit@1", "mrr", "random_median_cosine", "random_p95_cosine"),
    "mined pairs": ("hit@1", "mrr", "random_median_cosine", "random_p95_cosine"),
}
"""The metrics of each kind of evidence that tables show."""
TITLES = {
    "cosine_spearman": "Spearman",
    "cosine_auc": "ROC AUC",
    "mrr": "MRR",
    "random_median_cosine": "median cosine",
    "random_p95_cosine": "95 % cosine",
}


@dataclass(frozen=True)
class Outcome:
    """Everything that is known in the end.

    Attributes:
        name: What was to be fixed.
        source: Where embeddings come from.
        text: What was fitted on, and what was not.
        candidates: What was tried.
        raw: Geometry of the raw embeddings that were fitted on.
        before: The same of the raw embeddings of the reference text.
        after: The same of those of the system that is advised.
        judged: The evidence, after it has spoken.
        verdict: What to do.
        binary: Binary labels that nothing was judged by, to learn probabilities from.
        seed: Of the random pairs.
    """

    name: str
    source: Source
    text: SplitText
    candidates: Candidates
    raw: Geometry
    before: Geometry
    after: Geometry
    judged: tuple[Judged, ...]
    verdict: Verdict
    binary: Pairs | None
    seed: int

    @property
    def system(self) -> SentenceEncoder:
        """The one that is advised."""
        return self.candidates.all[self.verdict.system]


def result_table(judged: Judged) -> Table:
    """All systems on the judging half, x 100."""
    kind, task = judged.evidence.kind, judged.evidence.judging.task
    shown = [Column(TITLES.get(metric, metric), task, "all", metric) for metric in SHOWN[kind.title]]
    return value_table(judged.report.rows, shown)


def write(outcome: Outcome, folder: Path) -> list[str]:
    """Write the folder, whole or not at all.

    Returns:
        What there is to say about it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(folder) as aside:
        place, scores = _write_system(outcome, aside), _fit_scores(outcome)
        scores.save(place)
        lines = [*_thresholds(scores), *_write_domain(outcome, place), *_write_export(outcome, place, aside, folder)]
        _write_geometry(outcome, aside)
        write_json(aside / "fix.json", _record(outcome, lines))
        write_text(aside / "fix.md", _markdown(outcome, lines))
    where = folder / place.name
    return [*lines, f"written   {where}, {folder / 'fix.md'}"]


def _write_system(outcome: Outcome, aside: Path) -> Path:
    """The encoder or, of vectors, the calibrator; returns the folder that the scores belong to."""
    pooling = outcome.candidates.poolings[outcome.verdict.system]
    encoder = outcome.source.saved(pooling, outcome.text.fitted)
    system = outcome.system
    if encoder is None:
        if not isinstance(system, CalibratedEncoder):
            (aside / "scores").mkdir()
            return aside / "scores"
        system.calibrator.save(aside / "calibrator")
        return aside / "calibrator"
    place = aside / "encoder"
    if isinstance(system, CalibratedEncoder):
        CalibratedEncoder(encoder, system.calibrator).save(place)
    else:
        encoder.save(place)
    return place


def _fit_scores(outcome: Outcome) -> ScoreCalibrator:
    scores = ScoreCalibrator(random_state=outcome.seed).fit_sentences(outcome.system, outcome.text.reference)
    labels = outcome.binary
    if labels is not None and len(labels) >= FEWEST_OF_LABELS:
        scores.fit_labels(pair_cosines(outcome.system, labels), labels.target)
    return scores


def _thresholds(scores: ScoreCalibrator) -> list[str]:
    lines = []
    for rate in RATES:
        try:
            lines.append(f"threshold {scores.threshold(rate)}")
        except UsageError as error:
            lines.append(f"threshold {error}")
    return lines


def _write_domain(outcome: Outcome, place: Path) -> list[str]:
    """What ordinary text is, for the encoder without its calibrator."""
    raw = outcome.source.pooled(outcome.candidates.poolings[outcome.verdict.system])
    fitted, held_out = outcome.text.fitted, outcome.text.reference
    if len(held_out) < FEWEST_OF_DOMAIN or len(fitted) < ROWS_A_DIRECTION * raw.dim:
        return [f"domain    not written: {len(fitted):,} sentences are too few for a Gaussian of {raw.dim} dimensions"]
    DomainCheck().fit_sentences(raw, fitted, held_out).save(place)
    return []


def _write_export(outcome: Outcome, place: Path, aside: Path, folder: Path) -> list[str]:
    """The sentence-transformers folder of an encoder that was changed; ``folder`` is what ``aside`` will be."""
    if not isinstance(outcome.system, CalibratedEncoder) or not (place / RECORD).is_file():
        return []
    notes = [f"`bertflow fix`: {outcome.verdict.word}.", *outcome.verdict.reasons]
    saved = CalibratedEncoder.load(place)
    written = write_export(saved, aside / EXPORTED, EXPORTED, name=f"{outcome.name}, calibrated", notes=notes)
    flag = f", with trust_remote_code=True for {', '.join(written.ours)}" if written.ours else ""
    return [f"others    SentenceTransformer({str(folder / EXPORTED)!r}){flag}"]


def _write_geometry(outcome: Outcome, aside: Path) -> None:
    """The report on what was and what is advised."""
    pairs = outcome.judged[0].evidence.judging if outcome.judged else None
    systems = {"raw": outcome.candidates.raw, outcome.verdict.system: outcome.system}
    of_pairs = None if pairs is None or pairs.kind == "binary" else pairs
    write_report(aside / "geometry", f"Geometry of {outcome.name}", systems, outcome.text.reference, of_pairs)


def _record(outcome: Outcome, lines: list[str]) -> dict[str, Any]:
    """Every number, ready for JSON."""
    text = outcome.text
    return {
        "format": 1,
        "of": outcome.name,
        **outcome.verdict.as_dict(),
        "text": {"fitted": len(text.fitted), "reference": len(text.reference), "pairs_in_the_text": text.mined},
        "geometry": {
            "fitted_raw": asdict(outcome.raw),
            "reference_raw": asdict(outcome.before),
            "reference_advised": asdict(outcome.after),
        },
        "evidence": [
            {
                "kind": one.evidence.kind.title,
                "metric": one.evidence.kind.metric,
                "chosen": one.chosen,
                "gain": asdict(one.gain) if one.gain else None,
                "report": one.report.as_dict(),
            }
            for one in outcome.judged
        ],
        "not_tried": dict(outcome.candidates.left_out),
        "seed": outcome.seed,
        "said": lines,
    }


def _markdown(outcome: Outcome, lines: list[str]) -> str:
    """The same for people."""
    verdict, text = outcome.verdict, outcome.text
    parts = [
        f"# {outcome.name}: {verdict.word}\n",
        *(f"{reason}\n" for reason in verdict.reasons),
        "## Geometry\n",
        f"Of {outcome.before.n:,} sentences that nothing was fitted on, one a document.\n",
        _geometry_table(outcome).to_markdown(),
    ]
    for one in outcome.judged:
        parts += [
            f"## {one.evidence.kind.title.capitalize()}\n",
            f"{len(one.evidence.choosing):,} chose ({one.chosen}), {len(one.evidence.judging):,} others judge. x 100, "
            "and cosines as they are.\n",
            result_table(one).to_markdown(),
            *(f"* {caption}" for caption in one.report.captions()),
            "",
        ]
    parts += [
        "## Scores\n",
        *(f"* {line}" for line in lines),
        "",
        f"Fitted on {len(text.fitted):,} sentences without labels, seed {outcome.seed}.",
        *(f"\nNot tried: {name} ({why})." for name, why in outcome.candidates.left_out.items()),
    ]
    return "\n".join(parts) + "\n"


def _geometry_table(outcome: Outcome) -> Table:
    rows = {"raw": outcome.before, outcome.verdict.system: outcome.after}
    return Table(
        ("system", "dim", "mean cosine", "5 %", "median", "95 %", "participation ratio", "length"),
        tuple(
            (
                name,
                f"{row.dim}",
                *(f"{value:.3f}" for value in (row.mean, row.p5, row.median, row.p95)),
                f"{row.participation:.0f}",
                f"{row.norm:.3g}",
            )
            for name, row in rows.items()
        ),
    )

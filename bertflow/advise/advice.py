"""What ``bertflow.fix`` gives back, and the folder that it writes, whole or not at all.

encoder/                 the encoder, calibrated if that is advised, with scores.json and domain/
vetoed/                  the encoder, or calibrator, with a likely change that something speaks against
sentence-transformers/   where a calibrator is advised: the same for other tools
calibrator/ or scores/   instead of both, where vectors were given without their encoder
geometry/                the report of `bertflow inspect`, before and after
fix.json   fix.md        the verdict and every number behind it
"""

import copy
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertflow.advise.asked_queries import AskedQueries
from bertflow.advise.asking import write_asked
from bertflow.advise.bare_vectors import VectorEncoder, lacks_text
from bertflow.advise.evidence import FEWEST_LABELS, Judgement
from bertflow.advise.keeping import Choice, choices_section
from bertflow.advise.likely import Geometry, Shape
from bertflow.advise.naming import in_words
from bertflow.advise.reasons import PROOF_BY_QUERIES
from bertflow.advise.rules import GENTLE, LIKELY
from bertflow.advise.split import SplitText
from bertflow.calibration.closed_forms import Whitening
from bertflow.calibration.flow import FlowCalibrator
from bertflow.calibration.spelling import RAW
from bertflow.data.pairs import Pairs
from bertflow.encoder import ENCODER
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.cutting import Cut
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import UsageError
from bertflow.evaluation.names import CHOSEN
from bertflow.evaluation.sides import Systems
from bertflow.export.targets import write_export
from bertflow.files import atomic_folder, write_json, write_text
from bertflow.geometry import REPORT
from bertflow.geometry.inspecting import write_report
from bertflow.geometry.report import show_page
from bertflow.next_steps import next_command
from bertflow.places import require_place
from bertflow.results import AbstractResult, Parts
from bertflow.scoring.domain import DomainCheck
from bertflow.scoring.scores import ScoreCalibrator
from bertflow.tables import Section, Strong, Table

EXPORTED = "sentence-transformers"
"""The folder for other tools, and what ``bertflow export`` calls it."""
REASONS = 3
"""Reasons that are shown at first."""
ASKED = "ask.csv"
BESIDE = "vetoed"
"""The folder of a change that something speaks against."""
NEAR_ONE = (0.9, 0.99)
"""Cosines above which a threshold has four digits, and six."""
SHOWN: Mapping[str, tuple[str, str]] = {
    "dim": ("dim", "d"),
    "mean cosine": ("mean", ".3f"),
    "5 %": ("p5", ".3f"),
    "median": ("median", ".3f"),
    "95 %": ("p95", ".3f"),
    "participation ratio": ("participation", ".0f"),
    "norm": ("norm", ".3g"),
}
"""Column of the table of geometry -> what it shows of a ``Geometry``, and how."""


@dataclass(frozen=True, repr=False, eq=False)
class Advice(AbstractResult):
    """What to do with an encoder, and every number behind it.

    Attributes:
        of: Name of the encoder.
        verdict: What to do: "leave it", "rescale the scores", "whiten", "use the flow" or "you need labels".
        system: The candidate to use; "raw" for none.
        standing: Whether the change is proven on the text or likely (``bertflow.advise.rules``); empty for none.
        reasons: Plain sentences with the numbers behind the verdict.
        naming: Gain of naming a purpose, or what the named purpose may cost other uses.
        shape: What the geometry of the plain mean of the layers says of the encoder.
        cut: How many sentences are longer than the encoder reads; None for one that reads them whole.
        geometry: "fitted_raw": of raw embeddings of the text that was fitted on; "reference_raw" and
            "reference_advised": of other text.
        evidence: What each kind of evidence measured; the first one decided.
        stand_in: What pairs of other text said of what is likely; None where they were not asked.
        asked: Pairs to judge, if they were asked for; they have no score yet.
        choices: Where vectors are kept: the best map for them, and the best overall if it is known.
        scores: What a cosine of the advised encoder means.
        between: The threshold of a text of one column with one of the other; empty where a table has no pairs.
        queries: What queries find before and after; None where none were given.
        domain: What ordinary text is for the encoder without its calibrator; None where there is too little text.
        notes: Thresholds, and what else there is to say.
        text: The text that was fitted on, and the text that was not.
        systems: All encoders that were compared, by name: "raw", then the candidates by their spelling.
        not_tried: Spelling of a candidate -> why it was not tried.
        encoder: The encoder to use: calibrated if that is advised.
        beside: The candidate that may help, but that something speaks against; empty for none.
        beside_encoder: The encoder with it; the raw one for none.
        seed: Random seed for the samples and fits.
        folder: Where the advice was saved; None if it was not.
        exported: How other tools open the encoder in that folder, in one line.
        labels_sha256: Digest of the file of labels that chose the candidate; empty for none.
    """

    of: str
    verdict: str
    system: str
    standing: str
    reasons: tuple[str, ...]
    naming: str
    shape: Shape
    cut: Cut | None
    geometry: Mapping[str, Geometry]
    evidence: tuple[Judgement, ...]
    stand_in: Judgement | None
    asked: Pairs | None
    choices: tuple[Choice, ...]
    scores: ScoreCalibrator
    between: str
    queries: AskedQueries | None
    domain: DomainCheck | None
    notes: tuple[str, ...]
    text: SplitText
    systems: Systems
    not_tried: Mapping[str, str]
    encoder: SentenceEncoder
    beside: str
    beside_encoder: SentenceEncoder
    seed: int
    folder: Path | None = None
    exported: tuple[str, ...] = ()
    labels_sha256: str = ""

    format = 1
    not_in_json = ("asked", "scores", "domain", "notes", "systems", "encoder", "beside_encoder", "folder", "exported")

    def answer(self) -> Iterator[str]:
        """What to do, three reasons, the threshold, and the files."""
        yield Strong(f"VERDICT: {self.verdict}" + (f" ({self.system})" if self.system != RAW else ""))
        if self.standing:
            yield f"EVIDENCE: {self.standing}"
        if words := in_words(self.system):
            yield f"effect    {words}"
        yield ""
        yield from (f"{at}. {reason}" for at, reason in enumerate(self.reasons[:REASONS], start=1))
        yield ""
        yield from filter(None, (*self._threshold(), self.between))
        if self.queries is not None and self.queries.outside is not None:
            yield f"queries   {next(self.queries.lines())}"
        if self.naming:
            yield f"purpose   {self.naming}"
        yield from self._files()

    def _threshold(self) -> Iterator[str]:
        """The lowest cosine at which two texts are a match."""
        with suppress(UsageError):
            at = self.scores.strict_threshold()
            n, value = f"{1 / at.rate:,.0f}", f"{at.value:.{2 + 2 * sum(at.value >= near for near in NEAR_ONE)}f}"
            if at.of_copies:
                yield f"threshold none: {at.of_copies}"
            else:
                random = "random pairs" if self.text.judged == "sentences" else f"random pairs of {self.text.judged}"
                pairs = "query-text pairs" if self.scores.queries_ else random
                yield f"threshold cosine >= {value} is a match; 1 of {n} {pairs} passes"

    def _files(self) -> Iterator[str]:
        """What was written, and what to do with it."""
        if not self.folder:
            return
        written = [self._place, *([EXPORTED] if self.exported else []), f"geometry/{REPORT}", "fix.md"]
        yield f"files     in {self.folder}: {', '.join(written)}"
        if self.beside and self._kept(self.beside_encoder) is not None:
            yield f"vetoed    {self.beside}, in {self.folder / BESIDE}: use it only if labels prove it"
        if self.asked is not None:
            yield f"asked     {self.folder / ASKED}: fill in the score of {len(self.asked)} pairs, then --labels FILE"
        elif self.standing in (LIKELY, GENTLE) or self.beside:
            queries = f"{FEWEST_LABELS} pairs of a query and its text"
            more = f"{FEWEST_LABELS} labeled pairs or more (--ask 100 writes pairs to label)"
            if self.evidence and not (first := self.evidence[0]).evidence.mined:
                more = queries if first.proves else f"more pairs (the {len(first.evidence):,} given are no proof)"
            more = queries if PROOF_BY_QUERIES in self.reasons else more
            yield f"prove     with {'the text of the vectors and ' * lacks_text(self.encoder.raw)}--labels FILE, {more}"

    def parts(self) -> Parts:
        """The answer; the other reasons; what else there is to say; the geometry before and after, and the evidence."""
        yield from self.answer()
        yield from self.exported
        yield from self.reasons[REASONS:]
        raw = self.system == RAW
        used = f"{len(self.text.whole):,} {self.text.judged}" if raw else f"{len(self.text.fitted):,} sentences"
        yield f"{'No map; percentiles from' if raw else 'Fitted on'} {used}, seed {self.seed}."
        yield from (f"Not tried: {name} ({why})." for name, why in self.not_tried.items())
        yield from self.notes
        if self.choices:
            yield choices_section(self.choices, self.shape.bare)
        rows = {RAW: self.geometry["reference_raw"], self.system: self.geometry["reference_advised"]}
        lines = [
            (name, *(format(getattr(row, field), form) for field, form in SHOWN.values())) for name, row in rows.items()
        ]
        of = f"Of {rows[RAW].n:,} distinct held-out sentences. The figures in the reasons are of the fitting text."
        yield Section("Geometry", Table(("system", *SHOWN), tuple(lines)), (of,))
        yield from (one.section() for one in (*self.evidence, *filter(None, [self.stand_in])))
        if self.queries is not None:
            yield self.queries.section()

    def headline(self) -> str:
        """The verdict in one line."""
        return f"{self.of}: {self.verdict}" + (f" ({self.system})" if self.system != RAW else "")

    def as_dict(self) -> dict[str, Any]:
        """Every number, ready for JSON."""
        return {**super().as_dict(), "said": [*self.notes, *self.exported]}

    def to_markdown(self) -> str:
        """The parts as a document."""
        return f"# {self.of}: {self.verdict}\n\n{super().to_markdown()}"

    def save(self, folder: str | Path) -> Path:
        """Write the folder, whole or not at all; returns it.

        Args:
            folder: New or empty.

        Raises:
            UsageError: If there is something in the folder.
        """
        self.saved(folder)
        return Path(folder)

    def saved(self, folder: str | Path, shown: bool = False) -> "Advice":
        """Write as ``save`` does, and show the report if that is wanted; returns the advice that knows where it is."""
        folder = Path(folder)
        require_place(folder, folder=True, new=True)
        with atomic_folder(folder) as aside:
            place = aside / self._place
            written = {place: self.encoder} | ({aside / BESIDE: self.beside_encoder} if self.beside else {})
            for path, encoder in written.items():
                if (kept := self._kept(encoder)) is not None:
                    kept.save(path)
            self.scores.save(place)
            if self.domain:
                self.domain.save(place)
            if self.asked is not None:
                write_asked(aside / ASKED, self.asked)
            advice = replace(self, folder=folder, exported=self._export(aside, folder))
            judged = (one.evidence.judging for one in self.evidence[:1])
            write_report(
                aside / "geometry",
                f"Geometry report: {self.of}",
                self._looked_at(),
                self.text.reference,
                next((pairs for pairs in judged if pairs.kind != "binary"), None),
                verdict=self.headline() + (f": {self.standing}" if self.standing else ""),
                then=next_command(folder / "encoder") if place.name == "encoder" else "",
            )
            write_json(aside / CHOSEN, advice.as_dict())
            write_text(aside / "fix.md", advice.to_markdown())
        if shown:
            show_page(folder / "geometry" / REPORT)
        return advice

    def _kept(self, encoder: SentenceEncoder) -> Any:
        """What is saved: the encoder, or its calibrator if the encoder cannot be saved; None for neither."""
        if self._place == "encoder":
            return encoder
        kept = copy.copy(encoder.calibrator)
        if isinstance(encoder.raw, VectorEncoder) and kept is not None:
            # A file cannot encode queries: they are made where its vectors were.
            kept.provenance_ = encoder.raw.provenance
        return kept

    def _looked_at(self) -> dict[str, SentenceEncoder]:
        """The systems of the report: raw, the first whitening and flow that were tried, and the advised one."""
        advised, shown = self.systems[self.system], {RAW: self.systems[RAW]}
        for kind in (Whitening, FlowCalibrator):
            tried = [name for name, one in self.systems.items() if isinstance(one.calibrator, kind)]
            if tried and not isinstance(advised.calibrator, kind):
                shown[tried[0]] = self.systems[tried[0]]
        return {**shown, self.system: advised}

    @property
    def _place(self) -> str:
        """The folder for the scores: that of the encoder, or of the calibrator if the encoder cannot be saved."""
        if isinstance(self.encoder.raw, TransformerEncoder):
            return "encoder"
        return "scores" if self.system == RAW else "calibrator"

    def _export(self, aside: Path, folder: Path) -> tuple[str, ...]:
        """Write the folder for other tools, if the encoder was changed; returns how to open it."""
        if self._place != "encoder" or self.system == RAW:
            return ()
        name, notes = f"{self.of}, calibrated", [f"`bertflow fix`: {self.verdict}.", *self.reasons]
        saved = aside / self._place / ENCODER if self.encoder.calibrator else None
        written = write_export(self.encoder, aside / EXPORTED, EXPORTED, saved=saved, name=name, notes=notes)
        flag = ", trust_remote_code=True" if written.ours else ""
        return (f"Other tools open the encoder as SentenceTransformer({str(folder / EXPORTED)!r}{flag})",)

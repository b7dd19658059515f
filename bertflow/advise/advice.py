"""``Advice``: the result of ``bertflow.fix``, and the folder that it writes.

    encoder/                 the encoder, calibrated if that is advised, with scores.json and domain/
    sentence-transformers/   where a calibrator is advised: the same for other tools
    calibrator/ or scores/   instead of both, where vectors were given without their encoder
    geometry/                the report of `bertflow inspect`, before and after
    fix.json   fix.md        the verdict and every number behind it

The folder is written whole or not at all.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from bertflow.advise.candidates import Candidates, Source
from bertflow.advise.evidence import Judgement
from bertflow.advise.text import SplitText
from bertflow.advise.verdict import Geometry
from bertflow.calibrated import CalibratedEncoder
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import UsageError
from bertflow.export.targets import write_export
from bertflow.files import atomic_folder, write_json, write_text
from bertflow.geometry.inspecting import write_report
from bertflow.results import AbstractResult
from bertflow.scoring.domain import DomainCheck
from bertflow.scoring.scores import ScoreCalibrator
from bertflow.tables import Section, Table

EXPORTED = "sentence-transformers"
"""The folder for other tools, and what ``bertflow export`` calls it."""

SHOWN: Mapping[str, tuple[str, str]] = {
    "dim": ("dim", "d"),
    "mean cosine": ("mean", ".3f"),
    "5 %": ("p5", ".3f"),
    "median": ("median", ".3f"),
    "95 %": ("p95", ".3f"),
    "participation ratio": ("participation", ".0f"),
    "length": ("norm", ".3g"),
}
"""Column of the table of geometry -> what it shows of a ``Geometry``, and how."""


@dataclass(frozen=True, repr=False, eq=False)
class Advice(AbstractResult):
    """What to do with an encoder, and every number behind it.

    Attributes:
        of: Name of the encoder.
        verdict: What to do: "leave it", "rescale the scores", "whiten", "use the flow" or "you need labels".
        system: The candidate to use; "raw" for none.
        reasons: Plain sentences with the numbers behind the verdict.
        geometry: "fitted_raw": of raw embeddings of the text that was fitted on; "reference_raw" and
            "reference_advised": of other text.
        evidence: What each kind of evidence measured; the first one decided.
        scores: What a cosine of the advised encoder means.
        domain: What ordinary text is for the encoder without its calibrator; None where there is too little text.
        notes: Thresholds, and what else there is to say.
        text: The text that was fitted on, and the text that was not.
        candidates: What was tried.
        source: Where the embeddings come from.
        seed: Random seed of the samples and fits.
        folder: Where the advice was saved; None if it was not.
        exported: How other tools open the encoder in that folder.
    """

    of: str
    verdict: str
    system: str
    reasons: tuple[str, ...]
    geometry: Mapping[str, Geometry]
    evidence: tuple[Judgement, ...]
    scores: ScoreCalibrator
    domain: DomainCheck | None
    notes: tuple[str, ...]
    text: SplitText
    candidates: Candidates
    source: Source
    seed: int
    folder: Path | None = None
    exported: str = ""

    @cached_property
    def encoder(self) -> SentenceEncoder:
        """The encoder to use: calibrated if that is advised."""
        raw = self.source.usable(self.candidates.poolings[self.system], self.text.fitted)
        advised = self.candidates.systems[self.system]
        return raw if advised.calibrator is None else CalibratedEncoder(raw, advised.calibrator)

    def parts(self) -> Iterator[Table | Section | str]:
        """The tables of the evidence, the verdict with its reasons, and what was saved."""
        for one in self.evidence:
            yield f"\n{len(one.evidence.judging):,} {one.evidence.kind.title}, held out, x 100:"
            yield one.table
        yield f"\nVERDICT: {self.verdict}"
        yield from self.reasons
        yield from (f"not tried: {name} ({why})" for name, why in self.candidates.left_out.items())
        if self.system != "raw":
            yield f"before    {self.geometry['reference_raw']}"
            yield f"after     {self.geometry['reference_advised']}"
        yield from self._said
        if self.folder:
            yield f"written   {self.folder / self._place}, {self.folder / 'fix.md'}"

    def headline(self) -> str:
        """The verdict in one line."""
        return f"{self.of}: {self.verdict}" + (f" ({self.system})" if self.system != "raw" else "")

    def as_dict(self) -> dict[str, Any]:
        """Every number, ready for JSON."""
        text = self.text
        return {
            "format": 1,
            "of": self.of,
            "verdict": self.verdict,
            "system": self.system,
            "reasons": list(self.reasons),
            "text": {"fitted": len(text.fitted), "reference": len(text.reference), "pairs_in_the_text": text.mined},
            "geometry": {name: asdict(geometry) for name, geometry in self.geometry.items()},
            "evidence": [one.as_dict() for one in self.evidence],
            "not_tried": dict(self.candidates.left_out),
            "seed": self.seed,
            "said": self._said,
        }

    def to_markdown(self) -> str:
        """The verdict, the geometry before and after, and the tables of the evidence."""
        parts = [
            f"# {self.of}: {self.verdict}\n",
            *(f"{reason}\n" for reason in self.reasons),
            "## Geometry\n",
            f"Of {self.geometry['reference_raw'].n:,} sentences that nothing was fitted on, one a document.\n",
            self._geometry_table.to_markdown(),
        ]
        for one in self.evidence:
            parts += [
                f"## {one.evidence.kind.title.capitalize()}\n",
                f"{len(one.evidence.choosing):,} chose ({one.chosen}), {len(one.evidence.judging):,} others judge. "
                "x 100, and cosines as they are.\n",
                one.table.to_markdown(),
                *(f"* {caption}" for caption in one.report.captions()),
                "",
            ]
        parts += [
            "## Scores\n",
            *(f"* {line}" for line in self._said),
            "",
            f"Fitted on {len(self.text.fitted):,} sentences without labels, seed {self.seed}.",
            *(f"\nNot tried: {name} ({why})." for name, why in self.candidates.left_out.items()),
        ]
        return "\n".join(parts) + "\n"

    def save(self, folder: str | Path) -> Path:
        """Write the folder, whole or not at all; returns it.

        Args:
            folder: New or empty.

        Raises:
            UsageError: If there is something in the folder.
        """
        self.saved(folder)
        return Path(folder)

    def saved(self, folder: str | Path) -> "Advice":
        """Write the folder as ``save`` does; returns the advice that knows where it is."""
        folder = Path(folder)
        require_new(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with atomic_folder(folder) as aside:
            place = aside / self._place
            self._write_encoder(place)
            self.scores.save(place)
            if self.domain:
                self.domain.save(place)
            advice = replace(self, folder=folder, exported=self._export(place, aside, folder))
            pairs = [one.evidence.judging for one in self.evidence[:1] if one.evidence.judging.kind != "binary"]
            systems = {"raw": self.candidates.systems["raw"], self.system: self.candidates.systems[self.system]}
            title = f"Geometry of {self.of}"
            write_report(aside / "geometry", title, systems, self.text.reference, pairs[0] if pairs else None)
            write_json(aside / "fix.json", advice.as_dict())
            write_text(aside / "fix.md", advice.to_markdown())
        return advice

    @property
    def _said(self) -> list[str]:
        return [*self.notes, *([self.exported] if self.exported else [])]

    @property
    def _place(self) -> str:
        """The folder that the scores belong to."""
        if isinstance(self.source.encoder, TransformerEncoder):
            return "encoder"
        return "scores" if self.system == "raw" else "calibrator"

    def _write_encoder(self, place: Path) -> None:
        """The encoder or, without one that can be saved, its calibrator."""
        if place.name == "encoder":
            assert isinstance(self.encoder, CalibratedEncoder | TransformerEncoder)
            self.encoder.save(place)
        elif self.encoder.calibrator is not None:
            self.encoder.calibrator.save(place)
        else:
            place.mkdir()

    def _export(self, place: Path, aside: Path, folder: Path) -> str:
        """The folder for other tools, if the encoder was changed; returns how to open it."""
        if place.name != "encoder" or self.system == "raw":
            return ""
        written = write_export(
            CalibratedEncoder.load(place),
            aside / EXPORTED,
            EXPORTED,
            name=f"{self.of}, calibrated",
            notes=[f"`bertflow fix`: {self.verdict}.", *self.reasons],
        )
        flag = f", with trust_remote_code=True for {', '.join(written.ours)}" if written.ours else ""
        return f"others    SentenceTransformer({str(folder / EXPORTED)!r}){flag}"

    @property
    def _geometry_table(self) -> Table:
        rows = {"raw": self.geometry["reference_raw"], self.system: self.geometry["reference_advised"]}
        lines = [
            (name, *(format(getattr(row, field), form) for field, form in SHOWN.values())) for name, row in rows.items()
        ]
        return Table(("system", *SHOWN), tuple(lines))


def require_new(folder: Path) -> None:
    """Refuse a folder that holds something.

    Raises:
        UsageError: If it does.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UsageError(f"The folder {folder} must be new or empty, but something is there. Choose another output.")

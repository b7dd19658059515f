"""``bertflow.fix``: all cosines are 0.9, what can be done? Read, measure, try, judge, decide.

    text --> documents --> fitted | put aside (reference, mined pairs)
    encoder or vectors --> raw + candidates, fitted --> judged by labels, by mined pairs --> verdict --> Advice

``Advice`` is the result, and the folder that it writes, whole or not at all:

    encoder/                 the encoder, calibrated if that is advised, with scores.json and domain/
    sentence-transformers/   where a calibrator is advised: the same for other tools
    calibrator/ or scores/   instead of both, where vectors were given without their encoder
    geometry/                the report of `bertflow inspect`, before and after
    fix.json   fix.md        the verdict and every number behind it
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from typing_extensions import Unpack

from bertflow.errors import MOST_RESAMPLES, UsageError, require_between, require_seed
from bertflow.files import atomic_folder, require_files, require_place, write_json, write_text
from bertflow.opening import LoadOptions, require_openable
from bertflow.registry import lookup
from bertflow.results import AbstractResult
from bertflow.tables import Section, Table
from bertflow.training.purpose import Purpose

if TYPE_CHECKING:
    from bertflow.advise.likely import Geometry, Shape
    from bertflow.advise.reading import SplitText
    from bertflow.advise.verdict import Judgement
    from bertflow.data.pairs import Pairs
    from bertflow.encoder.abstract import SentenceEncoder
    from bertflow.encoder.cutting import Cut
    from bertflow.scoring.domain import DomainCheck
    from bertflow.scoring.scores import ScoreCalibrator

logger = logging.getLogger("bertflow")

FEWEST_RESAMPLES = 100
"""Fewest resamples: with fewer, the ends of a 95 % interval are single draws."""
EXPORTED = "sentence-transformers"
"""The folder for other tools, and what ``bertflow export`` calls it."""
VECTORS_ALONE = "vectors without their text make no pairs."
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
        standing: Whether the change is proven on the text or likely (``bertflow.advise.verdict``); empty for none.
        reasons: Plain sentences with the numbers behind the verdict.
        shape: What the geometry of the plain mean of the layers says of the encoder.
        cut: How many sentences are longer than the encoder reads; None for one that reads them whole.
        geometry: "fitted_raw": of raw embeddings of the text that was fitted on; "reference_raw" and
            "reference_advised": of other text.
        evidence: What each kind of evidence measured; the first one decided.
        scores: What a cosine of the advised encoder means.
        domain: What ordinary text is for the encoder without its calibrator; None where there is too little text.
        notes: Thresholds, and what else there is to say.
        text: The text that was fitted on, and the text that was not.
        systems: All encoders that were compared, by name: "raw", then the candidates by their spelling.
        not_tried: Spelling of a candidate -> why it was not tried.
        encoder: The encoder to use: calibrated if that is advised.
        seed: Random seed for the samples and fits.
        folder: Where the advice was saved; None if it was not.
        exported: How other tools open the encoder in that folder, in one line.
    """

    of: str
    verdict: str
    system: str
    standing: str
    reasons: tuple[str, ...]
    shape: "Shape"
    cut: "Cut | None"
    geometry: "Mapping[str, Geometry]"
    evidence: "tuple[Judgement, ...]"
    scores: "ScoreCalibrator"
    domain: "DomainCheck | None"
    notes: tuple[str, ...]
    text: "SplitText"
    systems: "Mapping[str, SentenceEncoder]"
    not_tried: Mapping[str, str]
    encoder: "SentenceEncoder"
    seed: int
    folder: Path | None = None
    exported: tuple[str, ...] = ()

    format: ClassVar[int] = 1
    not_in_json: ClassVar[tuple[str, ...]] = ("scores", "domain", "notes", "systems", "encoder", "folder", "exported")

    def parts(self) -> Iterator[Table | Section | str]:
        """What to do; why; the geometry before and after and the evidence as tables; what else there is to say."""
        yield f"VERDICT: {self.verdict}" + (f" ({self.system})" if self.system != "raw" else "")
        if self.standing:
            yield f"STANDING: {self.standing}"
        if self.folder:
            yield f"written   {self.folder / self._place}, {self.folder / 'fix.md'}"
        yield from self.exported
        yield from self.reasons
        rows = {"raw": self.geometry["reference_raw"], self.system: self.geometry["reference_advised"]}
        lines = [
            (name, *(format(getattr(row, field), form) for field, form in SHOWN.values())) for name, row in rows.items()
        ]
        of = f"Of {rows['raw'].n:,} sentences that nothing was fitted on, one a document."
        yield Section("Geometry", Table(("system", *SHOWN), tuple(lines)), (of,))
        yield from (one.section() for one in self.evidence)
        yield f"Fitted on {len(self.text.fitted):,} sentences without labels, seed {self.seed}."
        yield from (f"Not tried: {name} ({why})." for name, why in self.not_tried.items())
        yield from self.notes

    def headline(self) -> str:
        """The verdict in one line."""
        return f"{self.of}: {self.verdict}" + (f" ({self.system})" if self.system != "raw" else "")

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

    def saved(self, folder: str | Path) -> "Advice":
        """Write the folder as ``save`` does; returns the advice that knows where it is."""
        from bertflow.geometry.inspecting import write_report

        folder = Path(folder)
        require_new(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with atomic_folder(folder) as aside:
            place = aside / self._place
            kept: Any = self.encoder if place.name == "encoder" else self.encoder.calibrator
            if kept is None:
                place.mkdir()
            else:
                kept.save(place)
            self.scores.save(place)
            if self.domain:
                self.domain.save(place)
            advice = replace(self, folder=folder, exported=self._export(aside, folder))
            pairs = [one.evidence.judging for one in self.evidence[:1] if one.evidence.judging.kind != "binary"]
            systems = {name: self.systems[name] for name in ("raw", self.system)}
            title = f"Geometry of {self.of}"
            write_report(aside / "geometry", title, systems, self.text.reference, pairs[0] if pairs else None)
            write_json(aside / "fix.json", advice.as_dict())
            write_text(aside / "fix.md", advice.to_markdown())
        return advice

    @property
    def _place(self) -> str:
        """The folder that the scores belong to: of the encoder or, without one that can be saved, its calibrator."""
        from bertflow.encoder.transformer import TransformerEncoder

        if isinstance(self.encoder.raw, TransformerEncoder):
            return "encoder"
        return "scores" if self.system == "raw" else "calibrator"

    def _export(self, aside: Path, folder: Path) -> tuple[str, ...]:
        """Write the folder for other tools, if the encoder was changed; returns how to open it."""
        from bertflow.calibrated import CalibratedEncoder
        from bertflow.export.targets import write_export

        if self._place != "encoder" or self.system == "raw":
            return ()
        name, notes = f"{self.of}, calibrated", [f"`bertflow fix`: {self.verdict}.", *self.reasons]
        encoder = CalibratedEncoder.load(aside / "encoder")
        written = write_export(encoder, aside / EXPORTED, EXPORTED, name=name, notes=notes)
        flag = f", with trust_remote_code=True for {', '.join(written.ours)}" if written.ours else ""
        return (f"others    SentenceTransformer({str(folder / EXPORTED)!r}){flag}",)


def require_new(folder: Path) -> None:
    """Refuse a folder that holds something.

    Raises:
        UsageError: If it does.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UsageError(f"The folder {folder} must be new or empty, but something is there. Choose another output.")


def fix(
    encoder: "str | SentenceEncoder | None" = None,
    text: str | Path | Sequence[str] | None = None,
    labels: "str | Path | Pairs | None" = None,
    *,
    purpose: Purpose = "similarity",
    vectors: str | Path | None = None,
    output: str | Path | None = None,
    candidates: str | None = None,
    max_sentences: int = 8000,
    max_pairs: int = 1000,
    resamples: int = 1000,
    seed: int = 0,
    without_text_hashes: bool = False,
    progress: bool | None = None,
    say: Callable[[str], None] | None = None,
    **options: Unpack[LoadOptions],
) -> Advice:
    """Measure the geometry of an encoder on your text, try what could help, and say what to do.

    The verdict is one of: leave it, rescale the scores, whiten, use the flow, or you need labels. A change is proven if
    it is better than the raw encoder on held-out pairs by more than chance: pairs of ``labels``, or pairs that are
    mined from the structure of the text, as paragraphs and documents (blank lines between them), or columns such as
    question and answer. Where nothing is proven, and the geometry is that of raw encoders, a change is likely to help:
    it is written as well, and says what would prove it.

    Args:
        encoder: Encoder to judge: a hub id or a folder. With ``vectors`` leave it out.
        text: Your text: txt, tsv, csv, jsonl, parquet, or hub:owner/name. With ``vectors``: their text, one line a
            vector, if there is one.
        labels: File of labelled pairs: sentence1, sentence2, score; or a, b, label (0 or 1); or query, text.
        purpose: What the encoder is used for: similarity, search, or both. For search, pairs of a query and its
            text decide, labelled or mined, before other labels.
        vectors: File of embeddings (n, dim), .npy or .parquet, instead of an encoder.
        output: Folder to write, new or empty (default on the command line: fixed).
        candidates: What to try, as whitening,sif+whitening(128),flow; everything by default. Without any pairs, the
            first of them is what is used where the geometry is that of raw encoders.
        max_sentences: Largest number of sentences to fit on; a random sample of the text.
        max_pairs: Largest number of mined pairs to judge by, and as many to choose by.
        resamples: Number of resamples of the paired bootstrap.
        seed: Random seed for the samples, the flow and the bootstrap.
        without_text_hashes: Leave out the hashes by which an evaluation knows which sentences were seen.
        progress: Show a bar while sentences are encoded; by default in a terminal or a notebook.
        say: Called with lines that are worth reading before the result is there.
        options: ``LoadOptions``.

    Returns:
        The verdict, the numbers behind it, and the encoder to use.

    Raises:
        UsageError: If an option cannot be used, or options contradict each other.
        DataError: If a file is missing or damaged, or there is too little text.
    """
    from bertflow.advise import candidates as trying
    from bertflow.advise.likely import Geometry, Shape, layers_are_open, plain_pooling, recipes
    from bertflow.advise.reading import read_all, split_text
    from bertflow.advise.verdict import MINED, Evidence, announced, decide, load_evidence
    from bertflow.calibrated import CalibratedEncoder
    from bertflow.encoder.cutting import measure_cut
    from bertflow.evaluation.systems import SharedPass

    say, rows = say or logger.info, trying.parse_candidates(candidates)
    require_between(FEWEST_RESAMPLES, MOST_RESAMPLES, resamples=resamples)
    require_between(1, max_sentences=max_sentences, max_pairs=max_pairs)
    require_seed(seed)
    lookup("purpose", dict.fromkeys(get_args(Purpose)), purpose)
    require_files(text, labels, vectors)
    require_place(output, folder=True)
    if output is not None:
        require_new(Path(output))
    if encoder is not None:
        require_openable(encoder, **options)
    labelled = [] if labels is None else [load_evidence(labels, seed)]
    name, opened, text_name, documents = read_all(encoder, text, vectors, options)
    if labelled and not text_name:
        raise UsageError("labels are about sentences, and vectors alone have none. Give the text of the vectors.")
    known = [sentence for one in labelled for sentence in one.sentences]
    split = split_text(documents, text_name or name, known, max_sentences, max_pairs, seed)
    mined = [Evidence(MINED, split.choosing, split.judging)] if split.choosing and split.judging else []
    # The first evidence decides: for search, pairs of a query and its text come before other labels.
    evidence = sorted([*labelled, *mined], key=lambda one: purpose == "search" and one.choosing.kind != "retrieval")
    source = SharedPass(opened)
    own = source.pooled(source.own_pooling)
    # Without pairs nothing can be chosen, so only what is likely is fitted.
    n, missing = len(split.fitted), split.without_pairs if text_name else VECTORS_ALONE
    tried, not_tried = trying.select_candidates(rows if evidence or candidates else [], source, own.dim, n)
    free = isinstance(encoder, str | Path) and layers_are_open(source, options.get("pooling"))
    ladders = recipes(purpose, own.dim, free) if candidates is None else dict.fromkeys((True, False), rows)
    likely = trying.add_likely(tried, source, own.dim, n, ladders)
    say(f"encoder   {name}, {opened.describe().get('pooling', 'as given')}, width {own.dim}")
    say(f"text      {n:,} sentences to fit on; put aside: {len(split.reference):,} for random pairs")
    say(f"evidence  {announced(evidence, missing)}")
    for row_pooling in (plain_pooling(source), *tried.values()):  # all poolings share one pass if known before it
        source.pooled(row_pooling, split.fitted)
    everything = list(dict.fromkeys([*split.fitted, *split.reference, *(s for one in evidence for s in one.sentences)]))
    if cut := measure_cut(opened, everything, seed):
        say(f"cut       {cut}")
    flows = {row_pooling for row, row_pooling in tried.items() if row.calibrator == "flow"}
    say(f"time      {trying.estimate_time(own, everything, n, len(flows))}")
    raw = Geometry.of(own.encode(everything, progress=progress)[:n], seed)
    say(f"geometry  {raw}")
    shape = Shape.of(source, split.fitted)
    systems = trying.fit_candidates(source, tried, split.fitted, seed)
    judged = tuple(one.judge(systems, resamples, seed) for one in evidence)
    verdict, system, standing, reasons = decide(raw, judged, missing, purpose, shape, likely.get(shape.steep, ""))
    advised = systems[system]
    scores, thresholds = trying.fit_scores(advised, split.reference, labelled, seed)
    domain, note = trying.fit_domain(advised.raw, split)
    geometry = {
        "fitted_raw": raw,
        "reference_raw": Geometry.of(own.encode(split.reference), seed),
        "reference_advised": Geometry.of(advised.encode(split.reference), seed),
    }
    best = source.encoders[{row.spelling: pooling for row, pooling in tried.items()}.get(system, source.own_pooling)]
    if advised.calibrator is not None:
        best = CalibratedEncoder(best, advised.calibrator)
    if without_text_hashes:
        best.forget_text()
    advice = Advice(
        of=name,
        verdict=verdict,
        system=system,
        standing=standing,
        reasons=reasons,
        shape=shape,
        cut=cut,
        geometry=geometry,
        evidence=judged,
        scores=scores,
        domain=domain,
        notes=(*thresholds, *note),
        text=split,
        systems=systems,
        not_tried=not_tried,
        encoder=best,
        seed=seed,
    )
    return advice if output is None else advice.saved(output)

"""``bertflow.demo``: calibrate the built-in encoder on built-in text, and show what changes.

    docstrings -> sentences to fit on, and pairs that nothing is fitted on (summary line -> the paragraph after it)
    inner layers as a raw BERT:  raw | SIF | whitening | SIF + whitening | flow;   the tuned last layer beside them

Half of the pairs choose which system is saved; the other half are shown.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bertflow.calibrated import CalibratedEncoder, encode_systems
from bertflow.calibration.spelling import parse_calibrator
from bertflow.data.docstrings import docstring_corpus
from bertflow.data.pairs import Pairs
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.embedded import embedded_encoder
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.evaluation.evaluating import evaluate_retrieval
from bertflow.evaluation.report import Report
from bertflow.evaluation.systems import SharedPass
from bertflow.files import write_text
from bertflow.geometry.inspecting import write_report
from bertflow.geometry.report import show_page
from bertflow.next_steps import next_command
from bertflow.progress import bar, working
from bertflow.results import AbstractResult
from bertflow.scoring.random_pairs import FEWEST
from bertflow.scoring.scores import ScoreCalibrator
from bertflow.similarity import COSINE
from bertflow.tables import Section, Strong, Table, shortened, write_rows

Say = Callable[[str], None]
RAW, SIF, LAST = "mean(1,2)", "sif(1,2)", "mean"
"""Poolings."""
SYSTEMS: Mapping[str, tuple[str, str]] = {
    "raw": (RAW, ""),
    "SIF": (SIF, ""),
    "whitening": (RAW, "whitening"),
    "SIF + whitening": (SIF, "whitening"),
    "flow": (RAW, "flow(all)"),  # fewer directions cost search
    "last layer": (LAST, ""),
    "last layer + whitening": (LAST, "whitening"),
}
"""The systems that are compared: a pooling and a calibrator each."""
MAX_LENGTH = 256
"""Tokens: some paragraphs are long."""
LOOKED_AT = ("raw", "whitening", "flow")
"""Systems whose geometry is shown."""
SHOWN = 3
"""Queries that are shown with their nearest text."""
EVERYDAY = (
    ("How do I reset my password?", "I forgot my login and cannot get in."),
    ("The train was late again this morning.", "My train did not arrive on time today."),
    ("The soup needs a little more salt.", "He plays the guitar in a band."),
    ("The shop closes at eight.", "Our neighbors have a new dog."),
)
"""Pairs that are shown beside the docstrings: two that belong together, then two that do not."""


@dataclass(frozen=True, repr=False)
class Demo(AbstractResult):
    """Retrieval of docstrings by every system.

    Attributes:
        folder: What was written: the best system in encoder/, report.md, results.json, and the geometry in pictures.
        report: The figures, on pairs that chose nothing.
        chosen: The system that was saved.
        cosines: Cosines of the everyday pairs, by the raw system and by the chosen one.
        neighbors: Some queries with the nearest text of two systems.
        seconds: Duration.
    """

    folder: Path
    report: Report
    chosen: str
    cosines: Mapping[str, Sequence[float]]
    neighbors: str
    seconds: float

    @property
    def everyday(self) -> Path:
        """The file of everyday pairs."""
        return self.folder / "everyday.tsv"

    def _of_all(self, metric: str, scale: float = 1) -> dict[str, float]:
        """A figure of each system."""
        return {name: scale * self.report.value(name, "docstrings", metric=metric) for name in SYSTEMS}

    def answer(self) -> Iterator[Table | str]:
        """The result at a glance, and everyday sentences."""
        hits, cosine = self._of_all("hit@1", 100), self._of_all("random_median_cosine")
        yield Strong(
            f"Two texts that have nothing to do with each other had a cosine of {cosine['raw']:.2f}, now "
            f"{cosine[self.chosen]:.2f}; a summary finds its paragraph {hits[self.chosen]:.0f} times in a hundred, not "
            f"{hits['raw']:.0f} times ({self.chosen})."
        )
        pairs = zip(EVERYDAY, *self.cosines.values(), strict=True)
        everyday = tuple((" / ".join(pair), f"{before:.2f}", f"{after:.2f}") for pair, before, after in pairs)
        yield Table(("cosines of everyday sentences", "before", "after"), everyday)
        yield f"details   {self.folder / 'report.md'}, {self.folder / 'geometry' / 'report.html'}, or --details"
        yield "your own  bertflow fix YOUR_MODEL YOUR_TEXT.txt"

    def parts(self) -> Iterator[Table | Section | str]:
        """The answer, all figures and what they say, examples, and what was written."""
        yield from self.answer()
        hits, cosine = self._of_all("hit@1", 100), self._of_all("random_median_cosine")
        whitened = hits["last layer + whitening"]
        yield (
            f"\nInner layers of a tuned MiniLM, {RAW}, stand in for a raw BERT. Does a docstring's summary line "
            "find the paragraph that follows it?"
        )
        yield self.report.table()
        yield (
            f"Two random texts have a median cosine of {cosine['raw']:.2f} raw, {cosine['whitening']:.2f} whitened, "
            f"{cosine['flow']:.2f} after the flow; hit@1 goes from {hits['raw']:.1f} to {hits['whitening']:.1f} and "
            f"{hits['flow']:.1f}."
        )
        yield (
            f"The last layer was tuned for sentences and is calibrated already: raw {hits['last layer']:.1f}, whitened "
            f"{whitened:.1f} ({whitened - hits['last layer']:+.1f})."
        )
        yield "This is one encoder and one kind of text; on STS tasks the order of the calibrators can be another one."
        yield self.neighbors
        yield (
            f"\nSaved: {self.folder / 'encoder'} ({self.chosen}, best hit@1 on the pairs to choose by) and "
            f"{self.folder / 'report.md'}, after {self.seconds:.0f} s."
        )

    def as_dict(self) -> dict[str, Any]:
        """The report, and which system was saved."""
        return {"chosen": self.chosen, "seconds": round(self.seconds, 1), **self.report.as_dict()}

    def headline(self) -> str:
        """Which system was saved, and where."""
        return f"{self.chosen} in {self.folder / 'encoder'}"


def show(
    sentences: int, pairs: int, seed: int, folder: Path, open_report: bool, progress: bool | None, say: Say | None
) -> Demo:
    """Fit and score all systems, save the best one, and draw the report."""
    say = say or (lambda line: None)
    say(
        f"Reads {sentences + 4 * pairs:,} texts, embeds them, fits and scores {len(SYSTEMS)} systems, draws a report: "
        "a few minutes on two cores, less with smaller --sentences and --pairs."
    )
    begin, model = time.perf_counter(), embedded_encoder()
    text, found = docstring_corpus(2 * pairs, sentences, seed)
    choosing, reported = (found.taken(range(start, len(found), 2)) for start in (0, 1))
    say(
        f"Text: {len(text):,} sentences to fit on, {len(reported):,} pairs to score and as many to choose by, from the "
        f"{found.source}. Nothing that is scored is in the text to fit on."
    )
    open_pooled = partial(TransformerEncoder, model, max_length=MAX_LENGTH)
    shared = SharedPass(open_pooled(pooling=SYSTEMS["raw"][0]))  # each text goes through the transformer once
    encoders = {pooling: shared.pooled(pooling, text) for pooling, _ in SYSTEMS.values()}
    encoders[RAW].encode([*text, *found.sentences], progress=progress)
    systems: dict[str, SentenceEncoder] = {}
    with bar(len(SYSTEMS), "fitting", progress, "systems") as advance:
        for name, (pooling, spelled) in SYSTEMS.items():
            raw = encoders[pooling]
            with working(f"fitting {name}"):
                systems[name] = CalibratedEncoder.fit(raw, parse_calibrator(spelled), text) if spelled else raw
            advance(1)
    with bar(2, "scoring", progress, "sets of pairs") as advance:
        report = evaluate_retrieval(systems, reported)
        advance(1)
        judged = evaluate_retrieval(systems, choosing)
        advance(1)
    candidates = [name for name, (pooling, spelled) in SYSTEMS.items() if spelled and pooling != LAST]
    chosen = max(candidates, key=lambda name: judged.value(name, "docstrings", metric="hit@1"))
    calibrator = systems[chosen].calibrator
    assert calibrator is not None, "only calibrated systems are chosen from"
    saved = CalibratedEncoder(open_pooled(pooling=SYSTEMS[chosen][0]).count_tokens(text), calibrator)
    saved.save(folder / "encoder")
    if len(found.sentences) >= FEWEST:
        scores = ScoreCalibrator(random_state=seed).fit(systems[chosen].encode(found.sentences))  # embedded already
        scores.made_by_ = saved.identity
        scores.save(folder / "encoder")
    write_text(folder / "report.md", report.to_markdown())
    write_text(folder / "results.json", report.to_json())
    shown = {name: systems[name] for name in LOOKED_AT}
    then = next_command(folder / "encoder")
    title, facts = "Geometry report: demo", {"model": model}
    page = write_report(folder / "geometry", title, shown, text, choosing, facts, then=then)
    if open_report:
        show_page(page)
    compared = {name: systems[name] for name in ("raw", chosen)}
    first, second = zip(*EVERYDAY, strict=True)
    cosines = {name: COSINE.paired(one.encode(first), one.encode(second)).tolist() for name, one in compared.items()}
    neighbors = nearest_texts(compared, reported)
    made = Demo(folder, report, chosen, cosines, neighbors, time.perf_counter() - begin)
    write_rows(made.everyday, ("sentence1", "sentence2"), EVERYDAY)
    return made


def nearest_texts(systems: Mapping[str, SentenceEncoder], pairs: Pairs) -> str:
    """The first queries, each with the text that is nearest to it in each system."""
    queries, lines = pairs.first[:SHOWN], []
    embedded = encode_systems(systems, [*queries, *pairs.second])
    cosines = {name: COSINE.matrix(x[:SHOWN], x[SHOWN:]) for name, x in embedded.items()}
    for row, query in enumerate(queries):
        lines += ["", shortened(query, 90)]
        for name, matrix in cosines.items():
            best = int(matrix[row].argmax())
            mark = "right" if best == row else "wrong"
            lines.append(f"  {name:<16} {mark}  {matrix[row, best]:.2f}  {shortened(pairs.second[best], 90)}")
    return "\n".join(lines)

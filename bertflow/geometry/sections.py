"""The sections of a report, what they are made from, and the card above them.

    systems, sentences, pairs, counts --> material --> SECTIONS --> report

A part of the material is computed when a section first uses it. A section that cannot be made is listed as left out,
with the reason. The card says a verdict, three numbers before and after, and what to do next.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bertflow.array_types import Float64, Floats
from bertflow.calibration.closed_forms import Whitening
from bertflow.calibration.flow import FlowCalibrator
from bertflow.data.pairs import Pairs
from bertflow.errors import DataError
from bertflow.evaluation.sides import Systems
from bertflow.geometry import contexts, fitted, frequency, masked, measures, pairs
from bertflow.geometry.cloud import Cloud, Clouds, Counts, K
from bertflow.geometry.report import SUMMARY, Card, GeometryReport, GeometrySection, listed, rounded
from bertflow.progress import working
from bertflow.tables import Table
from bertflow.text_keys import seen_share
from bertflow.words.encoder import read_static_words

INSIDE = 300
"""Sentences whose tokens are looked at in every layer."""
GAUSSIAN = (Whitening, FlowCalibrator)
"""Calibrators whose output should be standard normal."""
CENTERED = 0.2
"""Median cosine of random pairs up to which a cosine can be read as it is, and there is no cone: 0.08 on docstrings by
the tuned encoder at hand, 0.28 and more by poolings that were not tuned."""
VERDICTS: Mapping[tuple[bool, str], str] = {
    (True, "better"): "A narrow cone, and calibration helps: use {best}.",
    (True, "narrow"): "A narrow cone. {narrow}",
    (True, "worse"): "A narrow cone, but calibration ranks the pairs of {pairs} worse: rescale the scores instead.",
    (True, "level"): "A narrow cone, but no calibration ranks the pairs of {pairs} better than chance can explain.",
    (True, "unknown"): "A narrow cone. Whether calibration ranks better, only pairs can say.",
    (True, "alone"): "A narrow cone.",
    (False, "better"): "No cone, but calibration still helps on the pairs of {pairs}: use {best}.",
    (False, "narrow"): "No cone. {narrow}",
    (False, "worse"): "Leave it: there is no cone, and calibration ranks the pairs of {pairs} worse.",
    (False, "level"): "Leave it: there is no cone, and calibration ranks the pairs of {pairs} no better.",
    (False, "unknown"): "No cone. Whether calibration ranks better, only pairs can say.",
    (False, "alone"): "No cone.",
}
"""The verdict where the caller has none of its own: whether random pairs of the first system have high cosines, and
whether the best of the others ranks pairs better or worse than it by more than chance."""


@dataclass(frozen=True)
class Material:
    """What the sections of a report are made from. A part that is not available raises a ``DataError`` with the reason.

    Attributes:
        systems: Encoders by the name they have in the report, the one "before" first.
        sentences: Distinct sentences.
        embeddings: Rows (n, dim) by system; row i is sentence i.
        counts: How often words occur.
        counted: Where the counts come from, in words.
        given_pairs: Pairs of sentences, if any.
        recipe: Arguments of the ``TransformerEncoder`` behind the systems; None for word vectors.
        run: Folder of a training run, if it is one.
        narrow: What says that the text is narrow; empty if it is not, or not the user's own.
    """

    systems: Systems
    sentences: Sequence[str]
    embeddings: Mapping[str, Floats]
    counts: Counts
    counted: str = "counted in this text"
    given_pairs: Pairs | None = None
    recipe: Mapping[str, Any] | None = None
    run: Path | None = None
    narrow: str = ""

    @cached_property
    def clouds(self) -> dict[str, Cloud]:
        """A cloud for each system."""
        return {name: Cloud(x) for name, x in self.embeddings.items()}

    @cached_property
    def log_frequency(self) -> Float64:
        """Mean log frequency of the words of each sentence (n,)."""
        return frequency.log_frequencies(self.sentences, self.counts)

    @property
    def some_pairs(self) -> Pairs:
        """The pairs, if any."""
        if self.given_pairs is None:
            raise DataError("No pairs were given. Add --pairs stsb-dev --data_dir DIR to bertflow inspect.")
        return self.given_pairs

    @cached_property
    def cosines(self) -> pairs.PairCosines:
        """Cosines of the pairs."""
        return pairs.cosines_of_pairs(self.systems, self.some_pairs)

    @cached_property
    def scores(self) -> pairs.PairScores:
        """How well the systems rank the pairs."""
        return pairs.scores_of_pairs(self.systems, self.some_pairs)

    @property
    def latents(self) -> dict[str, Floats]:
        """Embeddings by the systems that should map to a Gaussian."""
        names = [name for name, system in self.systems.items() if isinstance(system.calibrator, GAUSSIAN)]
        if not names:
            raise DataError("None of the systems maps to a Gaussian. Add --compare raw,whitening.")
        return {name: self.embeddings[name] for name in names}

    @property
    def model(self) -> dict[str, Any]:
        """The name of the transformer behind the systems, if it is one."""
        if self.recipe is None:
            raise DataError("No transformer was given by its name, so layers and vocabulary are not known.")
        return {"model": self.recipe["model"], "revision": self.recipe.get("revision")}

    @property
    def device(self) -> str:
        """Where it runs."""
        return (self.recipe or {}).get("device") or "auto"


SECTIONS: Mapping[str, Callable[[Material], GeometrySection]] = {
    "Cosines": lambda made: pairs.show_cosines(made.clouds, made.cosines if made.given_pairs else None),
    SUMMARY: lambda made: measures.show_measures(made.clouds),
    "Spectrum": lambda made: measures.show_spectrum(made.clouds),
    "Paraphrases": lambda made: pairs.show_paraphrases(made.clouds, made.cosines),
    "Word frequency in the plane": lambda made: frequency.show_plane(made.clouds, made.log_frequency, made.counted),
    "Sentences by word frequency": lambda made: frequency.show_sentences(made.clouds, made.log_frequency),
    "Words by frequency": lambda made: frequency.show_words(*read_static_words(**made.model), made.counts),
    "Layers": lambda made: contexts.show_layers(made.sentences[:INSIDE], **made.model, device=made.device),
    "Hubs": lambda made: measures.show_hubs(made.clouds),
    "Edit distance": lambda made: pairs.show_edit_distances(made.cosines),
    "What a score means": lambda made: pairs.show_score_curve(made.clouds, made.cosines),
    "Scores": lambda made: pairs.show_scores(made.scores),
    "Latent": lambda made: fitted.show_latents(made.latents, tuple(made.systems)),
    "Training": lambda made: fitted.show_training(fitted.read_history(made.run), fitted.read_kept(made.run)),
    "Masked words": lambda made: masked.show_masked_words(made.sentences[:INSIDE], made.counts, **made.model),
}
"""What makes each section, by title, in the order of the report."""


@working("drawing the report")
def make_report(
    heading: str, material: Material, facts: Mapping[str, str] | None = None, verdict: str = "", then: str = ""
) -> GeometryReport:
    """The report on some systems.

    Args:
        heading: Title of the report.
        material: What it is made from.
        facts: What else the reader should know.
        verdict: What to do, if that was decided already.
        then: A command that can be typed next.
    """
    sections, left_out = dict[str, GeometrySection](), dict[str, str]()
    for title, make in SECTIONS.items():
        try:
            sections[title] = make(material)
        except DataError as error:
            left_out[title] = str(error)
    card = None
    try:
        scores = material.scores if "Scores" in sections else None
        card = card_of(material.clouds, scores, verdict, then, material.narrow)
    except DataError as error:
        left_out["The card"] = str(error)
    made = {"sentences": f"{len(material.sentences):,}", "word frequencies": material.counted, **(facts or {})}
    for name, system in material.systems.items():
        told, hashes = system.describe(), system.fitted_hashes()
        fitted_on = f", {told['calibrator']} on {told['fitted_rows']:,} rows" if "calibrator" in told else ""
        seen = "an unknown share" if hashes is None else f"{100 * seen_share(material.sentences, hashes):.0f} %"
        made[name] = f"{told['encoder']}, {told['pooling']}{fitted_on}; {seen} of these sentences in the fitting text"
    return GeometryReport(heading, made, sections, left_out, card)


def verdict_of(cosines: Mapping[str, float], scores: pairs.PairScores | None, narrow: str = "") -> str:
    """What to make of median cosines of random pairs and of scores, each by system, the one "before" first.

    Of a text that is ``narrow``, in words, the scores of other pairs recommend no map.
    """
    before, *others = cosines
    best, of, change = "", "", "unknown" if others else "alone"
    if others and scores:
        of = scores.title.partition(" on ")[2]
        best = max(others, key=lambda name: scores.values[name][0])
        better = scores.values[best][0] > scores.values[before][0]
        change = ("better" if better else "worse") if scores.separable.get(best) else "level"
    change = "narrow" if narrow and change == "better" else change
    return VERDICTS[cosines[before] > CENTERED, change].format(best=best, narrow=narrow, pairs=of)


def card_of(
    clouds: Clouds, scores: pairs.PairScores | None, verdict: str = "", then: str = "", narrow: str = ""
) -> Card:
    """The card of some systems.

    Args:
        clouds: Clouds by system, the one "before" first.
        scores: How well each ranks pairs; None where there are none.
        verdict: What to do, if that was decided already.
        then: A command that can be typed next.
        narrow: What says that the text is narrow; empty if it is not, or not the user's own.

    Raises:
        DataError: If the clouds cannot be measured.
    """
    cosines = {name: float(np.median(cloud.random_cosines)) for name, cloud in clouds.items()}
    rows = [
        ("cosine of two unrelated sentences", *(rounded(value) for value in cosines.values()), "near 0"),
        ("directions in use", *(f"{measures.participation(one):.0f} of {one.dim}" for one in clouds.values()), "many"),
    ]
    says = f"Two unrelated sentences have a cosine of {listed(cosines)} (median)"
    if scores is not None:
        values = {name: 100 * value for name, (value, _, _) in scores.values.items()}
        rows.append((f"{scores.title}, x 100", *(rounded(values[name], 1) for name in clouds), "high"))
        says += f"; {scores.title} x 100 is {listed(values, 1)}"
    else:
        lost = {name: 100 * measures.orphans(cloud) for name, cloud in clouds.items()}
        rows.append((f"sentences among the {K} nearest of none", *(f"{lost[name]:.1f} %" for name in clouds), "few"))
    return Card(
        verdict or verdict_of(cosines, scores, narrow), f"{says}.", Table(("", *clouds, "wanted"), tuple(rows)), then
    )

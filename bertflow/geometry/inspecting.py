"""How a report on the geometry is made: by ``bertflow inspect``, and at the end of other commands.

    systems, sentences, pairs, counts --> material --> SECTIONS --> report

``bertflow inspect`` draws the text apart: some sentences are looked at, calibrators are fitted on others. A part of the
material is computed when a section first uses it. A section that cannot be made is listed as left out, with the reason.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertflow.calibrated import CalibratedEncoder, encode_systems
from bertflow.calibration.closed_forms import Whitening
from bertflow.calibration.flow import FlowCalibrator
from bertflow.calibration.spelling import parse_systems
from bertflow.data.corpus import count_words, load_sentences, read_frequencies
from bertflow.data.docstrings import docstring_corpus
from bertflow.data.pairs import Pairs
from bertflow.data.sts import require_tasks
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.embedded import RAW_POOLING, embedded_encoder
from bertflow.errors import DataError, UsageError
from bertflow.evaluation.systems import SharedPass, build_systems, open_system
from bertflow.geometry import DOCSTRINGS, FEWEST, NONE, contexts, frequency, history, measures, pairs, run_folder
from bertflow.geometry.card import card_of
from bertflow.geometry.cloud import Cloud
from bertflow.geometry.report import REPORT, SUMMARY, GeometryReport, GeometrySection
from bertflow.moments import Float64
from bertflow.next_steps import next_command, option_words
from bertflow.opening import require_openable
from bertflow.progress import working
from bertflow.text_keys import seen_share
from bertflow.training.rows import Embeddings, seeded_order, take
from bertflow.words.encoder import read_static_words

INSIDE = 300
"""Sentences whose tokens are looked at in every layer."""
LOOKED_AT = 2000
"""Largest sample of sentences for the report of another command."""
FITTED = 6000
"""Largest sample of sentences that calibrators are fitted on."""
DOCSTRING_PAIRS = 500
"""Pairs of docstrings, where no others are given."""
GAUSSIAN = (Whitening, FlowCalibrator)
"""Calibrators whose output should be standard normal."""


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
    """

    systems: Mapping[str, SentenceEncoder]
    sentences: Sequence[str]
    embeddings: Mapping[str, NDArray[np.floating]]
    counts: Mapping[str, int]
    counted: str = "counted in this text"
    given_pairs: Pairs | None = None
    recipe: Mapping[str, Any] | None = None
    run: Path | None = None

    @cached_property
    def clouds(self) -> dict[str, Cloud]:
        """A cloud for each system."""
        return {name: Cloud(x) for name, x in self.embeddings.items()}

    @cached_property
    def log_frequency(self) -> Float64:
        """Mean log frequency of the words of each sentence (n,)."""
        return frequency.log_frequencies(self.sentences, self.counts)

    @cached_property
    def pair_cosines(self) -> pairs.PairCosines:
        """Cosines of the pairs."""
        return pairs.cosines_of_pairs(self.systems, self.some_pairs)

    @cached_property
    def scores(self) -> pairs.PairScores:
        """How well the systems rank the pairs."""
        return pairs.scores_of_pairs(self.systems, self.some_pairs)

    @property
    def latents(self) -> dict[str, NDArray[np.floating]]:
        """Embeddings by the systems that should map to a Gaussian."""
        names = [name for name, system in self.systems.items() if isinstance(system.calibrator, GAUSSIAN)]
        if not names:
            raise DataError("None of the systems maps to a Gaussian. Add --compare raw,whitening.")
        return {name: self.embeddings[name] for name in names}

    @property
    def some_pairs(self) -> Pairs:
        """The pairs, if any."""
        if self.given_pairs is None:
            raise DataError("No pairs were given. Add --pairs stsb-dev --data_dir DIR to bertflow inspect.")
        return self.given_pairs

    def transformer(self, *arguments: str) -> dict[str, Any]:
        """Some arguments of the ``TransformerEncoder`` behind the systems, if it is one."""
        if self.recipe is None:
            raise DataError("No transformer was given by its name, so layers and vocabulary are not known.")
        return {name: self.recipe[name] for name in arguments if name in self.recipe}


SECTIONS: Mapping[str, Callable[[Material], GeometrySection]] = {
    SUMMARY: lambda made: measures.show_measures(made.clouds),
    "Spectrum": lambda made: measures.show_spectrum(made.clouds),
    "Cosines": lambda made: pairs.show_cosines(made.clouds, made.pair_cosines if made.given_pairs else None),
    "Paraphrases": lambda made: pairs.show_paraphrases(made.clouds, made.pair_cosines),
    "Word frequency in the plane": lambda made: frequency.show_frequency_plane(
        made.clouds, made.log_frequency, made.counted
    ),
    "Sentences by word frequency": lambda made: frequency.show_sentences_by_frequency(made.clouds, made.log_frequency),
    "Words by frequency": lambda made: frequency.show_words_by_frequency(
        *read_static_words(**made.transformer("model", "revision")), made.counts
    ),
    "Layers": lambda made: contexts.show_layers(
        contexts.contextuality(
            *contexts.read_token_states(
                sentences=made.sentences[:INSIDE], **made.transformer("model", "revision", "device")
            )
        )
    ),
    "Hubs": lambda made: measures.show_hubs(made.clouds),
    "Edit distance": lambda made: pairs.show_edit_distances(made.pair_cosines),
    "What a score means": lambda made: pairs.show_score_curve(made.clouds, made.pair_cosines),
    "Scores": lambda made: pairs.show_scores(made.scores),
    "Latent": lambda made: measures.show_latents(made.latents, tuple(made.systems)),
    "Training": lambda made: history.show_training(history.read_history(made.run), history.read_kept(made.run)),
    "Masked words": lambda made: contexts.show_masked_words(
        contexts.dot_product_parts(
            contexts.read_masked_words(sentences=made.sentences[:INSIDE], **made.transformer("model", "revision")),
            made.counts,
        )
    ),
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
    described = {name: _described(system, material.sentences) for name, system in material.systems.items()}
    given = {"sentences": f"{len(material.sentences):,}", "word frequencies": material.counted, **(facts or {})}
    card = None
    try:
        card = card_of(material.clouds, material.scores if "Scores" in sections else None, verdict, then)
    except DataError as error:
        left_out["The card"] = str(error)
    return GeometryReport(heading, {**given, **described}, sections, left_out, card)


def write_report(
    folder: Path,
    heading: str,
    systems: Mapping[str, SentenceEncoder],
    sentences: Sequence[str],
    pairs: Pairs | None = None,
    recipe: Mapping[str, Any] | None = None,
    run: Path | None = None,
    x: Embeddings | None = None,
    facts: Mapping[str, str] | None = None,
    verdict: str = "",
    then: str = "",
) -> Path:
    """Write the report of another command, on a sample of its sentences; returns the path of report.html.

    Args:
        folder: Where to write.
        heading: Title of the report.
        systems: By the name they have in it, the one "before" first. Whitening is added where there is none, and a
            calibrator holds the moments to fit it from.
        sentences: All sentences; at most ``LOOKED_AT`` of them are looked at.
        pairs: Scored pairs, or queries with their texts.
        recipe: Arguments of the ``TransformerEncoder`` behind the systems.
        run: Folder of a training run.
        x: Raw embeddings (n, dim) of the sentences, so that nothing is embedded again; all systems have this encoder.
        facts: What else the reader should know.
        verdict: What to do, if that was decided already.
        then: A command that can be typed next; that of the run, if it is one.

    Raises:
        DataError: If there are too few sentences.
    """
    systems = with_whitening(systems)
    rows = np.array(sorted({sentence: row for row, sentence in reversed([*enumerate(sentences)])}.values()))
    index = np.sort(rows[seeded_order(len(rows), 0)[:LOOKED_AT]])
    chosen = [sentences[row] for row in index]
    require_sentences(chosen, FEWEST)
    if x is None:
        embeddings = encode_systems(systems, chosen)
    else:
        raw = np.asarray(take(x, index), dtype=np.float32)
        embeddings = {name: system.calibrate(raw) for name, system in systems.items()}
    material = Material(systems, chosen, embeddings, count_words(sentences), given_pairs=pairs, recipe=recipe, run=run)
    if run is not None:
        then = next_command(run)
    return make_report(heading, material, facts, verdict, then).save(folder) / REPORT


def with_whitening(systems: Mapping[str, SentenceEncoder]) -> Mapping[str, SentenceEncoder]:
    """The systems with whitening after the first, if none of them is, and a calibrator of that encoder has moments."""
    first, *others = systems.items()
    alike = [system.calibrator for _, system in others if system.raw.identity.key == first[1].raw.identity.key]
    fitted = next((one for one in alike if one is not None), None)
    if fitted is None or "whitening" in systems or any(isinstance(one.calibrator, Whitening) for _, one in others):
        return systems
    whitening = Whitening().fit_moments(fitted.moments_, fitted.provenance)
    return dict([first, ("whitening", CalibratedEncoder(first[1].raw, whitening, force=True)), *others])


def require_sentences(sentences: Sequence[str], fewest: int) -> None:
    """Refuse too little text.

    Raises:
        DataError: If there are fewer than ``fewest`` sentences.
    """
    if len(sentences) < fewest:
        raise DataError(f"A report needs at least {fewest} different sentences, got {len(sentences)}. Give more text.")


def _described(system: SentenceEncoder, sentences: Sequence[str]) -> str:
    facts, hashes = system.describe(), system.fitted_hashes()
    calibrator = f", {facts['calibrator']} on {facts['fitted_rows']:,} rows" if "calibrator" in facts else ""
    seen = "unknown" if hashes is None else f"{seen_share(sentences, hashes):.2f}"
    return f"{facts['encoder']}, {facts['pooling']}{calibrator}; seen {seen}"


def open_encoder(model: str | Path | SentenceEncoder | None, device: str, **options: Any) -> SharedPass:
    """The encoder that the user named or gave; ``options`` of ``TransformerEncoder`` that are None were not given."""
    options = {name: value for name, value in options.items() if value is not None}
    if model is None:
        return open_system(embedded_encoder(), device=device, **{"pooling": RAW_POOLING, **options})
    opened = open_system(model, device=device, **options)
    if options and (opened.calibrator or opened.recipe is None):
        raise UsageError(
            f"{next(iter(options))} cannot be used with {model}: a calibrated encoder keeps what it was fitted with, "
            "and word vectors have none. Leave it out."
        )
    return opened


def draw_text(
    text: str | Path | Sequence[str] | None, given: str | Path | Pairs, data_dir: str, n: int, seed: int
) -> tuple[list[str], list[str], str, Pairs | None]:
    """Sentences to look at, others to fit on, their source, and the pairs."""
    found = given if isinstance(given, Pairs) else None
    if isinstance(given, str | Path) and given not in (NONE, DOCSTRINGS):
        found = pairs.load_scored_pairs(str(given), data_dir)
    if given == DOCSTRINGS or text is None:
        sentences, natural = docstring_corpus(DOCSTRING_PAIRS, seed=seed)
        source, found = natural.source, natural if given == DOCSTRINGS else found
    if isinstance(text, str | Path):
        sentences, source = load_sentences(text), Path(text).name
    elif text is not None:
        sentences, source = list(dict.fromkeys(text)), "sentences that were given"
    require_sentences(sentences, 2 * FEWEST)  # half of them are looked at
    order = seeded_order(len(sentences), seed)
    n = min(n, len(sentences) // 2)
    looked_at, fitted_on = ([sentences[row] for row in np.sort(rows)] for rows in (order[:n], order[n : n + FITTED]))
    return looked_at, fitted_on, source, found


def inspect_model(
    model: str | Path | SentenceEncoder | None,
    text: str | Path | Sequence[str] | None,
    compare: str | None,
    n: int,
    given: str | Path | Pairs,
    data_dir: str,
    frequencies: str | Path | None,
    options: Mapping[str, Any],
    device: str,
    seed: int,
    progress: bool | None,
) -> GeometryReport:
    """The report on what a user names, and its baselines."""
    parse_systems(compare or "")
    if isinstance(given, str | Path) and given not in (NONE, DOCSTRINGS):
        require_tasks(str(given), data_dir)
    require_openable(model, **options, device=device)
    opened = open_encoder(model, device, **options)
    looked_at, fitted_on, source, known = draw_text(text, given, data_dir, n, seed)
    if compare is None:
        flow = isinstance(opened.calibrator, FlowCalibrator)
        compare = "raw,whitening,flow" if opened.calibrator is None else "raw,whitening" if flow else "raw"
    baselines = parse_systems(compare)
    refitted = opened.calibrator is not None and all(one.refittable for one in baselines)
    systems = build_systems([opened], baselines, None if refitted else fitted_on, progress)
    material = Material(
        systems,
        looked_at,
        encode_systems(systems, looked_at, progress=progress),
        read_frequencies(frequencies) if frequencies else count_words([*looked_at, *fitted_on]),
        f"counts of {Path(frequencies).name}" if frequencies else "counted in this text",
        known,
        opened.recipe,
        run_folder(model),
    )
    apart = f"{len(fitted_on):,} other sentences of this text"
    facts = {"text": source, "fitted on": f"what {opened.name} was fitted on" if refitted else apart}
    then = next_command(model, calibrated=opened.calibrator is not None, text=text, options=option_words(**options))
    return make_report(f"Geometry of {opened.name}", material, facts, then=then)

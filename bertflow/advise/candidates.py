"""What is fitted: what could improve the encoder, and what a cosine of the encoder that is advised means.

A candidate is spelled as a baseline of ``bertflow evaluate``. "flow" keeps all directions and "flow(128)" the first 128
of the same flow, so both cost one fit. A few sentences and a few steps of the flow are timed before the work starts.
"""

import copy
import time
from collections.abc import Mapping, Sequence

import numpy as np

from bertflow.advise.bare_vectors import VectorEncoder
from bertflow.advise.evidence import Evidence, reads_docstrings
from bertflow.advise.split import SplitText
from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.background import WIDEST
from bertflow.calibration.base import AbstractCalibrator
from bertflow.calibration.flow import FlowCalibrator
from bertflow.calibration.spelling import RAW, STATIC, SystemSpec, parse_systems
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.pooling import COUNTED, parse_pooling
from bertflow.errors import DataError, UsageError, without_null_warnings
from bertflow.evaluation.sides import pair_cosines
from bertflow.evaluation.systems import SharedPass
from bertflow.flow.glow import FlowMap
from bertflow.maps import fitted_map
from bertflow.progress import unsaid, working
from bertflow.scoring.domain import FEWEST_HELD_OUT, ROWS_A_DIRECTION, DomainCheck
from bertflow.scoring.random_pairs import FEWEST
from bertflow.scoring.scores import ScoreCalibrator
from bertflow.similarity import COSINE
from bertflow.training import Purpose
from bertflow.training.recipe import resolve

DEFAULT = "center,abtt(1),whitening,whitening(128),sif+whitening,sif+whitening(128),flow,flow(128)"
"""The best for similarity and for search in ``benchmarks/EXPLORED.md``; simple ones first."""
SAMPLE = 32
"""Number of sentences that are timed."""
STEPS = (2, 10)
"""Numbers of steps of the flow that are timed: the difference leaves out the time to start."""
OTHER = 20.0
"""Seconds for everything else: reading, closed forms, ranking, resampling, writing."""
STRONG = 16
"""A ridge so large that few sentences are enough: directions of small variance are hardly lifted."""
HARDLY = 0.1
"""Share of the pairs of one row that pass a threshold, below which it finds hardly any."""
RATES = (0.01, 0.001)
"""False-match rates whose thresholds the report gives."""


def parse_candidates(spelling: str | None) -> list[SystemSpec]:
    """Read a list of candidates, separated by commas.

    Raises:
        UsageError: If one is misspelled, or neither calibrates nor weights tokens.
    """
    rows = parse_systems(DEFAULT if spelling is None else spelling)
    for row in rows:
        if (row.calibrator is None and row.pooling not in COUNTED) or row.pooling in STATIC:
            raise UsageError(
                f"A candidate is a calibrator, as whitening(64), a pooling that weights tokens, as sif, or both, as "
                f"sif+whitening; got {row.spelling!r}."
            )
    if not rows:
        raise UsageError("There is nothing to try. Leave candidates out, or name some.")
    return rows


def select_candidates(
    rows: Sequence[SystemSpec], source: SharedPass, n: int
) -> tuple[dict[SystemSpec, str], dict[str, str]]:
    """Candidates that n sentences can be fitted on.

    Returns:
        Candidate -> its pooling; and for the others, spelling -> why it is left out.
    """
    kept, left_out, dim = {}, {}, source.own.dim
    own = parse_pooling(source.own_pooling) if source.recipe is not None else None
    counts = own is not None and own.tokens != "pooler" and not own.counted
    for row in rows:
        shrunk = row.calibrator == "ridge" and isinstance(row.value, float) and row.value >= STRONG
        directions = 0 if shrunk or row.calibrator in (None, "center", "background") else row.number or dim
        if row.pooling is not None and not counts:
            left_out[row.spelling] = "its pooling needs the tokens"
        elif (row.crops or row.calibrator == "background") and isinstance(source.own, VectorEncoder):
            left_out[row.spelling] = f"its {'crops need' if row.crops else 'general text needs'} an encoder"
        elif row.calibrator == "background" and not (dim <= WIDEST and reads_docstrings(source.own)):
            left_out[row.spelling] = f"its general text is English, and enough for {WIDEST:,} dimensions"
        elif row.number is not None and row.number >= dim:
            left_out[row.spelling] = f"the embeddings have {dim} dimensions"
        elif n < ROWS_A_DIRECTION * (dim if row.calibrator == "flow" else directions):
            left_out[row.spelling] = f"{n:,} sentences are too few for {directions} directions"
        else:
            kept[row] = source.own_pooling if row.pooling is None else row.pooling_for(source.own_pooling)
    return kept, left_out


def add_likely(
    tried: dict[SystemSpec, str], source: SharedPass, n: int, keep: bool, ladder: Sequence[SystemSpec]
) -> list[str]:
    """Add the recipes that are used without proof.

    Args:
        tried: Candidate -> its pooling; grows.
        source: The encoder.
        n: Number of sentences.
        keep: Whether to add what is likely best for the encoder's own pooling, too.
        ladder: Recipes, of which the first that can be fitted is used.

    Returns:
        The candidates, the first one by default; none where nothing can be fitted.
    """
    usable = select_candidates(ladder, source, n)[0]
    own = (row for row in usable if row.pooling is None)
    first = [next(iter(usable), None), next(own, None) if keep else None]
    tried.update((row, usable[row]) for row in first if row and row not in tried)
    return list(dict.fromkeys(row.spelling for row in first if row))


@working("fitting the candidates")
def fit_candidates(
    source: SharedPass,
    rows: Mapping[SystemSpec, str],
    sentences: list[str],
    seed: int,
    purpose: Purpose = "similarity",
    lines: list[str] | None = None,
) -> dict[str, SentenceEncoder]:
    """Raw, and all candidates fitted to the sentences, which are embedded already; by name.

    What narrow text borrows from general text is fitted to whole lines, since its mean is that of what is used.

    A candidate that keeps more directions than the sentences span is left out. "flow(auto)" is the preset
    of the purpose; the other flows are of one fit, and keep this many of its directions.
    """
    systems: dict[str, SentenceEncoder] = {RAW: source.pooled(source.own_pooling)}
    flows: dict[tuple[str, bool], FlowCalibrator] = {}
    with without_null_warnings():  # the report says how many directions are left
        for row, pooling in rows.items():
            text = sentences if lines is None or row.calibrator != "background" else lines
            encoder, asked = source.pooled(pooling, sentences), row.queries(text)
            fitted: AbstractCalibrator | None = None
            if row.calibrator == "flow" and row.value == "auto":
                # The encoder itself, which gives the plain mean that the preset looks at as well.
                preset = FlowCalibrator(random_state=seed, purpose=purpose)
                fitted = preset.fit_sentences(source.encoders[pooling], sentences, queries=asked)
            elif row.calibrator == "flow":
                if (kind := (pooling, row.crops)) not in flows:
                    flow = FlowCalibrator(n_components="all", random_state=seed)
                    flows[kind] = flow.fit_sentences(encoder, sentences, queries=asked)
                fitted = flows[kind] if row.number is None else _first(flows[kind], row.number)
            elif row.calibrator:
                try:
                    fitted = row.make().fit_sentences(encoder, text, queries=asked)
                except DataError:
                    if row.number is None:
                        raise
                    continue
            systems[row.spelling] = CalibratedEncoder(encoder, fitted) if fitted else encoder
    return systems


def _first(flow: FlowCalibrator, k: int) -> FlowCalibrator:
    """A copy of the flow; its embedding keeps the first k of its coordinates."""
    module = fitted_map(flow.map)
    assert isinstance(module, FlowMap), "embeddings of one dimension have no candidates"
    reduced = copy.copy(flow)
    k = min(k, module.glow.dim)
    reduced.n_components = k
    reduced.map_ = flow.with_gap(FlowMap(module.affine, module.glow, k), flow.moments_.gap)
    reduced.facts_ = {**flow.facts_, "dim_out": k}
    return reduced


def estimate_time(encoder: SentenceEncoder, sentences: Sequence[str], n: int, rows: Mapping[SystemSpec, str]) -> str:
    """How long the work will take, from a sample of it.

    Args:
        encoder: One that remembers what it embedded, so that the sample is not lost.
        sentences: All sentences that will be encoded.
        n: Number of sentences that a flow is fitted on.
        rows: Candidate -> its pooling; flows of one pooling are one fit.

    Returns:
        One line.
    """
    spread = [sentences[row] for row in np.linspace(0, len(sentences) - 1, 2 * SAMPLE).astype(int)]
    encoder.encode(spread[::2])  # the first pass also loads what is needed
    begin = time.perf_counter()
    encoder.encode(spread[1::2])
    encoding = (time.perf_counter() - begin) / SAMPLE * len(sentences)
    flows = len({pooling for row, pooling in rows.items() if row.calibrator == "flow"})
    parts = {"encoding": encoding} | ({"fitting flows": flows * _flow_seconds(n, encoder.dim)} if flows else {})
    times = {"about": sum(parts.values()) + OTHER} | parts
    total, *of = (f"{name} {s:.0f} s" if s < 90 else f"{name} {s / 60:.0f} min" for name, s in times.items())
    return f"{total} ({', '.join(of)})"


def _flow_seconds(rows: int, dim: int) -> float:
    recipe = resolve("default")
    noise = np.random.default_rng(0).normal(size=(min(rows, 4 * recipe.batch_size), dim)).astype(np.float32)

    def timed(steps: int) -> float:
        begin = time.perf_counter()
        FlowCalibrator(n_components="all", trainer={"max_steps": steps, "limit_val_batches": 0}).fit(noise)
        return time.perf_counter() - begin

    with unsaid():  # messages about noise are of no interest
        timed(1)  # the first fit also loads what is needed
        few, more = map(timed, STEPS)
    a_step = max(more - few, 0.0) / (STEPS[1] - STEPS[0])
    return few + a_step * min(recipe.steps, recipe.epochs * max(1, rows // recipe.batch_size))


def fit_scores(
    system: SentenceEncoder, whole: list[str], queries: list[str], labeled: list[Evidence], seed: int
) -> tuple[ScoreCalibrator, list[str]]:
    """What a cosine means (of a query and a text, if there are enough queries), and its thresholds as lines."""
    asked = queries if len(queries) >= FEWEST else None
    scores, lines = ScoreCalibrator(random_state=seed).fit_sentences(system, whole, asked), []
    for pairs in (one.choosing for one in labeled if one.choosing.kind == "binary"):  # nothing was judged by this half
        try:
            scores.fit_labels(pair_cosines(system, pairs), pairs.target)
        except DataError as error:
            lines.append(f"labels    give no probabilities: {error}")
    for rate in RATES:
        try:
            lines.append(f"threshold {scores.threshold(rate)}")
        except UsageError as error:
            lines.append(f"threshold {error}")
    return scores, lines


def threshold_between(system: SentenceEncoder, text: SplitText, seed: int) -> str:
    """The threshold of a text of one column and one of the other, and how many rows pass it; empty if it is unknown.

    Random pairs are of other rows than those whose share is counted, so none of them belongs together.
    """
    if not (text.columns and text.columns.paired and text.judging and text.choosing):
        return ""
    others, queries = (system.encode_query(list(pairs.first)) for pairs in (text.choosing, text.judging))
    x = system.encode_document(list(text.judging.second))
    try:
        at = ScoreCalibrator(random_state=seed).fit(x, queries=others).strict_threshold()
    except (DataError, UsageError):
        return ""
    passed = int((COSINE.paired(queries, x) >= at.value).sum())
    hardly = "; so cosines hardly tell which belong together" * (passed < HARDLY * len(x))
    return (
        f"threshold of {' with '.join(text.columns.names)}: cosine >= {at.value:.2f}; 1 of {1 / at.rate:,.0f} random "
        f"pairs passes, and {passed} of {len(x)} pairs of one row{hardly}"
    )


def fit_domain(raw: SentenceEncoder, text: SplitText) -> tuple[DomainCheck | None, list[str]]:
    """What ordinary text is, or why that is unknown."""
    least = ROWS_A_DIRECTION * raw.dim, FEWEST_HELD_OUT
    if len(text.fitted) < least[0] or len(text.whole) < least[1]:
        needs = f"needs {least[0]:,} sentences to fit on and {least[1]} others"
        return None, [f"domain    no check: it {needs}, got {len(text.fitted):,} and {len(text.whole):,}"]
    return DomainCheck().fit_sentences(raw, text.fitted, text.whole), []

"""What could help: whitening of all directions or of the first ones, also of frequency-weighted pooling, and the flow.

A candidate is spelled as a baseline of ``bertflow evaluate``. "flow" keeps all directions and "flow(128)" the first 128
of the same flow, so both cost one fit.
"""

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bertflow.advise.source import Source
from bertflow.advise.verdict import ADVICE
from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.flow import FlowCalibrator
from bertflow.calibration.spelling import SystemSpec, parse_systems
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.pooling import COUNTED
from bertflow.errors import NullDirectionWarning, UsageError
from bertflow.flow.map import FlowMap
from bertflow.registry import lookup

DEFAULT = "whitening,whitening(128),sif+whitening,sif+whitening(128),flow,flow(128)"
"""Chosen from what ``benchmarks/EXPLORED.md`` found best for similarity and for search; simple ones first."""
ROWS_A_DIRECTION = 2
"""Sentences for each direction that is kept, at least: fewer make a covariance of noise."""


@dataclass(frozen=True)
class Candidates:
    """Fitted candidates.

    Attributes:
        raw: The encoder as it came.
        systems: Calibrated encoders, by their spelling.
        advice: The verdict that each stands for.
        poolings: The pooling of each.
        left_out: Spelling -> why it was not tried.
    """

    raw: SentenceEncoder
    systems: Mapping[str, CalibratedEncoder]
    advice: Mapping[str, str]
    poolings: Mapping[str, str]
    left_out: Mapping[str, str]

    @property
    def all(self) -> dict[str, SentenceEncoder]:
        """Raw and all candidates, by name."""
        return {"raw": self.raw, **self.systems}


def parse_candidates(spelling: str | None) -> list[SystemSpec]:
    """Candidates of a list with commas.

    Raises:
        UsageError: If one is no whitening and no flow.
    """
    rows = parse_systems(DEFAULT if spelling is None else spelling)
    for row in rows:
        if row.calibrator is None or (row.pooling is not None and row.pooling not in COUNTED):
            raise UsageError(
                f"A candidate is whitening or flow, as whitening(64) or sif+whitening; got {row.spelling!r}."
            )
        lookup("candidate", ADVICE, row.calibrator)
    if not rows:
        raise UsageError("There is nothing to try. Leave --candidates out, or name some.")
    return rows


def possible(rows: Sequence[SystemSpec], source: Source, dim: int, n: int) -> tuple[list[SystemSpec], dict[str, str]]:
    """Those that n sentences of ``dim`` dimensions can be fitted on, and why the others are left out."""
    kept, left_out = [], {}
    for row in rows:
        directions = row.number or dim
        if row.pooling is not None and not source.counts():
            left_out[row.spelling] = "its pooling needs the tokens"
        elif row.number is not None and row.number >= dim:
            left_out[row.spelling] = f"the embeddings have {dim} dimensions"
        elif n < ROWS_A_DIRECTION * (dim if row.calibrator == "flow" else directions):
            left_out[row.spelling] = f"{n:,} sentences are too few for {directions} directions"
        else:
            kept.append(row)
    return kept, left_out


def pooling_of(row: SystemSpec, source: Source) -> str:
    """The spelling of a candidate's pooling."""
    return source.own_pooling if row.pooling is None else row.pooling_for(source.own_pooling)


def fit_candidates(
    source: Source, rows: Sequence[SystemSpec], left_out: Mapping[str, str], sentences: list[str], seed: int
) -> Candidates:
    """Fit all candidates to the sentences, which are embedded already."""
    systems: dict[str, CalibratedEncoder] = {}
    flows: dict[str, FlowCalibrator] = {}
    poolings = {row.spelling: pooling_of(row, source) for row in rows}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NullDirectionWarning)  # the report says how many directions are left
        for row in rows:
            pooling = poolings[row.spelling]
            encoder = source.pooled(pooling, sentences)
            if row.calibrator == "flow":
                if pooling not in flows:
                    flow = FlowCalibrator(n_components="all", random_state=seed)
                    flows[pooling] = flow.fit_sentences(encoder, sentences)
                calibrator = flows[pooling] if row.number is None else _first(flows[pooling], row.number)
                systems[row.spelling] = CalibratedEncoder(encoder, calibrator)
            else:
                systems[row.spelling] = CalibratedEncoder(encoder, row.fitted(encoder, sentences))
    return Candidates(
        raw=source.pooled(source.own_pooling),
        systems=systems,
        advice={row.spelling: ADVICE[row.calibrator or ""] for row in rows},
        poolings={"raw": source.own_pooling, **poolings},
        left_out=dict(left_out),
    )


def _first(flow: FlowCalibrator, k: int) -> FlowCalibrator:
    """The same flow, of whose coordinates the embedding keeps the first k."""
    assert isinstance(flow.map, FlowMap), "embeddings of one dimension have no candidates"
    reduced = copy.copy(flow)
    k = min(k, flow.map.glow.dim)
    reduced.n_components, reduced.map_ = k, FlowMap(flow.map.affine, flow.map.glow, k).eval()
    reduced.facts_ = {**flow.facts_, "dim_out": k}
    return reduced

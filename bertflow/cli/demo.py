"""``bertflow demo``: calibrate the embedded encoder on the embedded text, and show what it bought.

    docstrings -> sentences to fit on, and pairs nobody fits on (summary line -> the paragraph after it)
    inner layers as a raw BERT:  raw | SIF | whitening | SIF + whitening | flow;   the tuned last layer beside them

Half of the pairs choose which system is saved; the other half are what is printed.
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from bertflow.calibrated import CalibratedEncoder, encode_systems
from bertflow.calibration.base import AbstractCalibrator
from bertflow.calibration.flow import FlowCalibrator
from bertflow.calibration.linear import Whitening
from bertflow.cli.arguments import Parser
from bertflow.cli.printing import print_table
from bertflow.data.docstrings import docstring_corpus
from bertflow.data.pairs import Pairs
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.embedded import RAW_POOLING, embedded_encoder
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.evaluation.report import Report
from bertflow.evaluation.shared_pass import SharedPass
from bertflow.evaluation.tasks import evaluate_retrieval
from bertflow.files import write_text
from bertflow.geometry.inspecting import write_report
from bertflow.similarity import SIMILARITIES

SIF_POOLING = RAW_POOLING.replace("mean", "sif")
SYSTEMS: Mapping[str, tuple[str, Callable[[], AbstractCalibrator] | None]] = {
    "raw": (RAW_POOLING, None),
    "SIF": (SIF_POOLING, None),
    "whitening": (RAW_POOLING, Whitening),
    "SIF + whitening": (SIF_POOLING, Whitening),
    "flow": (RAW_POOLING, partial(FlowCalibrator, n_components="all")),  # fewer directions cost search
    "last layer": ("mean", None),
    "last layer + whitening": ("mean", Whitening),
}
"""What is compared: a pooling and a calibrator each."""
MAX_LENGTH = 256
"""Tokens: some paragraphs are long."""
LOOKED_AT = ("raw", "whitening", "flow")
"""Systems whose geometry is shown."""
SHOWN = 3
"""Queries that are shown with their nearest text."""


def main(argv: Sequence[str]) -> int:
    """Run the demo; returns the exit code."""
    options = _parser().parse_args(argv)
    out, begin = Console(highlight=False, soft_wrap=True), time.perf_counter()
    sentences, pairs = docstring_corpus(2 * options.pairs, options.sentences, options.seed)
    choosing, reported = _part(pairs, 0), _part(pairs, 1)
    out.print(
        f"Text: {len(sentences):,} sentences to fit on, {len(reported):,} pairs to score and as many to choose by, "
        f"from the {pairs.source}. Nothing that is scored stands in the fitting text.",
    )
    model = embedded_encoder()
    systems = _fitted(model, sentences)
    report = evaluate_retrieval(systems, reported)
    out.print(
        f"\nInner layers of a tuned MiniLM, {RAW_POOLING}, stand in for a raw BERT. Does a docstring's summary line "
        "find the paragraph that follows it?"
    )
    print_table(out, report.table())
    for line in _verdict(report):
        out.print(line)
    chosen = _choose(evaluate_retrieval(systems, choosing))
    _show_neighbors(out, systems, chosen, reported)
    _save(model, chosen, systems[chosen], sentences, options.output)
    write_text(options.output / "report.md", report.to_markdown())
    write_text(options.output / "results.json", report.to_json())
    shown = {name: systems[name] for name in LOOKED_AT}
    geometry = write_report(
        options.output / "geometry", "Geometry of the demo", shown, sentences, choosing, {"model": model}
    )
    out.print(
        f"\nSaved: {options.output / 'encoder'} ({chosen}, best hit@1 on the pairs to choose by) and "
        f"{options.output / 'report.md'}, after {time.perf_counter() - begin:.0f} s. Your own encoder and text:\n\n"
        "  bertflow fix YOUR_MODEL YOUR_TEXT.txt\n\n"
        f"Geometry before and after, in pictures: {geometry}",
    )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="bertflow demo", description="Calibrate the embedded encoder, show what it bought.")
    parser.add_argument("--sentences", type=int, default=6000, help="sentences to fit on (default: 6000)")
    parser.add_argument(
        "--pairs", type=int, default=2000, help="pairs to score, and as many to choose by (default: 2000)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the sample (default: 0)")
    parser.add_argument("--output", type=Path, default=Path("runs/demo"), help="folder to write (default: runs/demo)")
    return parser


def _part(pairs: Pairs, start: int) -> Pairs:
    """Every second pair."""
    return pairs.taken(range(start, len(pairs), 2))


def _opened(folder: str, pooling: str | None) -> TransformerEncoder:
    return TransformerEncoder(folder, pooling=pooling, max_length=MAX_LENGTH)


def _fitted(model: str, sentences: list[str]) -> dict[str, SentenceEncoder]:
    # Each sentence goes through the transformer once, for all poolings and all systems.
    shared = SharedPass(partial(_opened, model))
    encoders = {pooling: shared.pooled(pooling, sentences) for pooling, _ in SYSTEMS.values()}
    return {
        name: CalibratedEncoder.fit(encoders[pooling], calibrator(), sentences) if calibrator else encoders[pooling]
        for name, (pooling, calibrator) in SYSTEMS.items()
    }


def _verdict(report: Report) -> list[str]:
    hits = {name: 100 * report.value(name, "docstrings", metric="hit@1") for name in SYSTEMS}
    cosine = {name: report.value(name, "docstrings", metric="random_median_cosine") for name in SYSTEMS}
    gain = hits["last layer + whitening"] - hits["last layer"]
    return [
        f"Two random texts have a median cosine of {cosine['raw']:.2f} raw, {cosine['whitening']:.2f} whitened, "
        f"{cosine['flow']:.2f} after the flow; hit@1 goes from {hits['raw']:.1f} to {hits['whitening']:.1f} and "
        f"{hits['flow']:.1f}.",
        f"The last layer was tuned for sentences and is calibrated already: raw {hits['last layer']:.1f}, whitened "
        f"{hits['last layer + whitening']:.1f} ({gain:+.1f}).",
        "This is one encoder and one kind of text; on STS tasks the order of the calibrators can be another one.",
    ]


def _choose(report: Report) -> str:
    """The best calibrated system on inner layers."""
    candidates = [name for name, (pooling, calibrator) in SYSTEMS.items() if calibrator and pooling != "mean"]
    return max(candidates, key=lambda name: report.value(name, "docstrings", metric="hit@1"))


def _show_neighbors(out: Console, systems: Mapping[str, SentenceEncoder], chosen: str, pairs: Pairs) -> None:
    queries = pairs.first[:SHOWN]
    compared = {name: systems[name] for name in ("raw", chosen)}
    found = {
        name: SIMILARITIES["cosine"].matrix(x[:SHOWN], x[SHOWN:])
        for name, x in encode_systems(compared, [*queries, *pairs.second]).items()
    }
    for row, query in enumerate(queries):
        out.print(f"\n{_shortened(query)}", style="bold", markup=False)
        for name, cosines in found.items():
            best = int(cosines[row].argmax())
            mark = "right" if best == row else "wrong"
            text = _shortened(pairs.second[best])
            out.print(f"  {name:<16} {mark}  {cosines[row, best]:.2f}  {text}", markup=False)


def _shortened(text: str, width: int = 90) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."


def _save(model: str, chosen: str, system: SentenceEncoder, sentences: list[str], folder: Path) -> None:
    assert isinstance(system, CalibratedEncoder), "only calibrated systems are chosen from"
    encoder = _opened(model, SYSTEMS[chosen][0]).count_tokens(sentences)
    CalibratedEncoder(encoder, system.calibrator).save(folder / "encoder")

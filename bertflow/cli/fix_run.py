"""What ``bertflow fix`` does: read, say how long it takes, encode, measure, try, judge, write.

    text --> documents --> fitted | put aside (reference, mined pairs)
    encoder or vectors --> raw + candidates, fitted --> judged by labels, by mined pairs --> verdict --> folder

Nothing is written before the end, so what is interrupted leaves nothing behind.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from bertflow.advise.candidates import Candidates, fit_candidates, parse_candidates, pooling_of, possible
from bertflow.advise.estimate import estimate
from bertflow.advise.evidence import BINARY, MINED, Evidence, Judged, load_evidence, measure_geometry
from bertflow.advise.source import ModelSource, Source, VectorSource, resolve_prompt
from bertflow.advise.text import Document, SplitText, read_documents, split_text
from bertflow.advise.verdict import Geometry, Verdict, decide
from bertflow.advise.write import Outcome, result_table, write
from bertflow.cli.printing import print_lines, print_table
from bertflow.errors import UsageError

OF_ENCODERS = ("pooling", "max_length", "dtype", "revision", "prompt")
"""Options that say how an encoder is used."""
FEWEST_RESAMPLES = 100
"""Of the bootstrap: with fewer, the ends of a 95 % interval are single draws."""


@dataclass(frozen=True)
class Inputs:
    """What was given: a source of embeddings, documents, and labelled pairs if there are some."""

    name: str
    source: Source
    documents: list[Document]
    labels: Evidence | None
    notes: list[str]

    @classmethod
    def read(cls, options: argparse.Namespace) -> "Inputs":
        """Read and open everything, before anything is computed."""
        given = {name: value for name in OF_ENCODERS if (value := getattr(options, name)) is not None}
        labels = load_evidence(options.labels, options.seed) if options.labels else None
        if options.vectors:
            return cls._of_vectors(options, given, labels)
        if len(options.inputs) != 2:
            raise UsageError(
                f"An encoder and a text are wanted, as `bertflow fix MODEL TEXT`, got {len(options.inputs)} names. "
                "Give both, or --vectors FILE."
            )
        model, text = options.inputs
        documents = read_documents(text)
        given["prompt"], note = resolve_prompt(model, options.revision, options.prompt)
        known = {name: value for name, value in given.items() if value is not None}
        source = ModelSource.of(model, {**known, "device": options.device})
        name = Path(model).resolve().name if Path(model).exists() else model
        return cls(name, source, documents, labels, [note] if note else [])

    @classmethod
    def _of_vectors(cls, options: argparse.Namespace, given: dict[str, str], labels: Evidence | None) -> "Inputs":
        if given or len(options.inputs) > 1:
            wrong = f"--{next(iter(given))}" if given else f"a second name ({options.inputs[1]!r})"
            raise UsageError(f"--vectors takes at most the text of the vectors, got {wrong}. Leave it out.")
        if labels and not options.inputs:
            raise UsageError("--labels are about sentences, and vectors alone have none. Give the text of the vectors.")
        documents = read_documents(options.inputs[0], whole_lines=True) if options.inputs else None
        lines = None if documents is None else [line for document in documents for line in document.sentences]
        source = VectorSource(options.vectors, lines)
        alone = [Document((sentence,)) for sentence in source.sentences]
        return cls(str(options.vectors), source, documents or alone, labels, [])


def fix(options: argparse.Namespace) -> int:
    """Carry out what the command line asks for; returns the exit code."""
    out, progress = Console(), sys.stderr.isatty()
    rows = parse_candidates(options.candidates)
    _check(options)
    inputs = Inputs.read(options)
    labelled = inputs.labels.sentences if inputs.labels else []
    name = Path(options.inputs[-1]).name if options.inputs else inputs.name
    text = split_text(inputs.documents, name, labelled, options.max_sentences, options.max_pairs, options.seed)
    own = inputs.source.pooled(inputs.source.own_pooling)
    evidence = _evidence(inputs.labels, text)
    # Without pairs nothing could be chosen, so nothing is tried.
    tried, left_out = possible(rows, inputs.source, own.dim, len(text.fitted)) if evidence else ([], {})
    everything = list(dict.fromkeys([*text.fitted, *text.reference, *(s for one in evidence for s in one.sentences)]))
    print_lines(out, [*_told(inputs, text, own.dim), *inputs.notes])
    for row in tried:
        inputs.source.pooled(pooling_of(row, inputs.source), text.fitted)
    flows = {pooling_of(row, inputs.source) for row in tried if row.calibrator == "flow"}
    print_lines(out, [f"time      {estimate(own, everything, len(text.fitted), len(flows))}"])
    x = own.encode(everything, progress=progress)
    raw = measure_geometry(x[: len(text.fitted)], options.seed)
    print_lines(out, [f"geometry  {raw}"])
    candidates = fit_candidates(inputs.source, tried, left_out, text.fitted, options.seed)
    judged = [one.judge(candidates.all, candidates.advice, options.resamples, options.seed) for one in evidence]
    verdict = decide(raw, [one.figures for one in judged], candidates.advice, _missing(inputs, text))
    outcome = _outcome(inputs, text, candidates, raw, judged, verdict, options)
    _print(out, outcome)
    for line in write(outcome, options.output):
        print_lines(out, [line])
    return 0


def _check(options: argparse.Namespace) -> None:
    if options.resamples < FEWEST_RESAMPLES:
        raise UsageError(
            f"A verdict rests on an interval, which needs --resamples of {FEWEST_RESAMPLES} or more, got "
            f"{options.resamples}. Leave it out for 1000."
        )
    folder: Path = options.output
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UsageError(
            f"The folder {folder} should be new or empty, but something is there. Choose another --output."
        )


def _evidence(labels: Evidence | None, text: SplitText) -> list[Evidence]:
    """Labels first, then mined pairs: the first decides."""
    mined = [Evidence(MINED, text.choosing, text.judging)] if text.choosing and text.judging else []
    return ([labels] if labels else []) + mined


def _told(inputs: Inputs, text: SplitText, dim: int) -> list[str]:
    pairs = f"{len(text.choosing) + len(text.judging):,}" if text.choosing and text.judging else "no"
    return [
        f"encoder   {inputs.name}, {inputs.source.own_pooling}, width {dim}",
        f"text      {len(text.fitted):,} sentences to fit on; put aside: {len(text.reference):,} for random pairs, "
        f"{pairs} mined pairs",
    ]


def _missing(inputs: Inputs, text: SplitText) -> str:
    """Why there are no mined pairs."""
    if isinstance(inputs.source, VectorSource) and not inputs.source.named:
        return "vectors without their text make no pairs."
    if not text.mined:
        return "the text has no structure to mine pairs from (paragraphs, blank lines, or question and answer columns)."
    return f"the text's own structure gives only {text.mined:,} pairs, some 300 are wanted."


def _outcome(
    inputs: Inputs,
    text: SplitText,
    candidates: Candidates,
    raw: Geometry,
    judged: Sequence[Judged],
    verdict: Verdict,
    options: argparse.Namespace,
) -> Outcome:
    system = candidates.all[verdict.system]
    labels = inputs.labels
    binary = None
    if labels is not None and labels.kind is BINARY:
        binary = labels.choosing
    return Outcome(
        name=inputs.name,
        source=inputs.source,
        text=text,
        candidates=candidates,
        raw=raw,
        after=measure_geometry(system.encode(text.reference), options.seed),
        before=measure_geometry(candidates.raw.encode(text.reference), options.seed),
        judged=tuple(judged),
        verdict=verdict,
        binary=binary,
        seed=options.seed,
    )


def _print(out: Console, outcome: Outcome) -> None:
    for one in outcome.judged:
        print_lines(out, ["", f"{len(one.evidence.judging):,} {one.evidence.kind.title}, held out, x 100:"])
        print_table(out, result_table(one))
    left_out = [f"not tried: {name} ({why})" for name, why in outcome.candidates.left_out.items()]
    changed = outcome.verdict.system != "raw"
    shapes = [f"before    {outcome.before}", f"after     {outcome.after}"] if changed else []
    print_lines(out, ["", f"VERDICT: {outcome.verdict.word}", *outcome.verdict.reasons, *left_out, *shapes])

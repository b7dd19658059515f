"""``bertflow.fix``: all cosines are 0.9, what can be done? Read, measure, try, judge, decide.

text --> documents --> fitted | put aside (reference, mined pairs)
encoder or vectors --> raw + candidates, fitted --> judged by labels, by mined pairs --> verdict --> Advice
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from bertflow.errors import DataError, UsageError
from bertflow.registry import lookup

if TYPE_CHECKING:
    from bertflow.advise.advice import Advice
    from bertflow.advise.candidates import Source
    from bertflow.advise.evidence import Evidence
    from bertflow.advise.text import Document, SplitText
    from bertflow.data.pairs import Pairs
    from bertflow.encoder.abstract import SentenceEncoder
    from bertflow.scoring.domain import DomainCheck
    from bertflow.scoring.scores import ScoreCalibrator

logger = logging.getLogger("bertflow")

Purpose = Literal["similarity", "search"]
FEWEST_RESAMPLES = 100
"""Fewest resamples: with fewer, the ends of a 95 % interval are single draws."""
RATES = (0.01, 0.001)
"""False-match rates whose thresholds the report gives."""


def fix(
    encoder: "str | SentenceEncoder | None" = None,
    text: str | Path | Sequence[str] | None = None,
    labels: "str | Path | Pairs | None" = None,
    *,
    purpose: Purpose = "similarity",
    vectors: str | Path | None = None,
    output: str | Path | None = None,
    candidates: str | None = None,
    pooling: str | None = None,
    max_length: int | None = None,
    prompt: str | None = None,
    revision: str | None = None,
    dtype: str | None = None,
    device: str = "auto",
    max_sentences: int = 8000,
    max_pairs: int = 1000,
    resamples: int = 1000,
    seed: int = 0,
    progress: bool | None = None,
    say: Callable[[str], None] | None = None,
) -> "Advice":
    """Measure the geometry of an encoder on your text, try what could help, and say what to do.

    The verdict is one of: leave it, rescale the scores, whiten, use the flow, or you need labels. A change is advised
    only if it is better than the raw encoder on held-out pairs by more than chance. Pairs are those of ``labels``, or
    they are mined from the structure of the text: paragraphs and documents (blank lines between them), or columns such
    as question and answer.

    Args:
        encoder: Encoder to judge: a hub id or a folder. With ``vectors`` leave it out.
        text: Your text: txt, tsv, csv, jsonl, parquet, or hub:owner/name. With ``vectors``: their text, one line a
            vector, if there is one.
        labels: File of labelled pairs: sentence1, sentence2, score; or a, b, label (0 or 1); or query, text.
        purpose: What the encoder is used for. search: pairs of a query and its text decide, labelled or mined, before
            other labels.
        vectors: File of embeddings (n, dim), .npy or .parquet, instead of an encoder.
        output: Folder to write, new or empty (default on the command line: fixed).
        candidates: What to try, as whitening,sif+whitening(128),flow; everything by default.
        pooling: A named pooling, or one written out as 'mean(1,2)'; the encoder's own by default, else mean.
        max_length: Tokens after which a sentence is truncated; the encoder's own by default, else 128.
        prompt: Text in front of every sentence, or the name of one of the encoder's prompts; its default prompt by
            default.
        revision: Branch, tag or commit of a hub id.
        dtype: float32, float16 or bfloat16; the encoder's own by default, else float32.
        device: cpu, cuda, ...; auto chooses the fastest one.
        max_sentences: Largest number of sentences to fit on; a random sample of the text.
        max_pairs: Largest number of mined pairs to judge by, and as many to choose by.
        resamples: Number of resamples of the paired bootstrap.
        seed: Random seed of the samples, the flow and the bootstrap.
        progress: Show a bar while sentences are encoded; by default in a terminal or a notebook.
        say: Called with lines that are worth reading before the result is there.

    Returns:
        The verdict, the numbers behind it, and the encoder to use.

    Raises:
        UsageError: If an option cannot be used, or options contradict each other.
        DataError: If a file is missing or damaged, or there is too little text.
    """
    from bertflow.advise.advice import Advice, require_new
    from bertflow.advise.candidates import estimate_time, fit_candidates, parse_candidates, select_candidates
    from bertflow.advise.evidence import MINED, Evidence, load_evidence, measure_geometry
    from bertflow.advise.text import split_text
    from bertflow.advise.verdict import decide

    say, rows = say or logger.info, parse_candidates(candidates)
    if resamples < FEWEST_RESAMPLES:
        raise UsageError(
            f"A verdict is based on an interval, which needs resamples of {FEWEST_RESAMPLES} or more, got {resamples}. "
            "Leave it out for 1000."
        )
    lookup("purpose", dict.fromkeys(get_args(Purpose)), purpose)
    if output is not None:
        require_new(Path(output))
    how = {"pooling": pooling, "max_length": max_length, "prompt": prompt, "revision": revision, "dtype": dtype}
    given = {name: value for name, value in how.items() if value is not None}
    labelled = [] if labels is None else [load_evidence(labels, seed)]
    name, source, documents, text_name = _read(encoder, text, vectors, given, device)
    if labelled and not text_name:
        raise UsageError("labels are about sentences, and vectors alone have none. Give the text of the vectors.")
    known = [sentence for one in labelled for sentence in one.sentences]
    split = split_text(documents, text_name or name, known, max_sentences, max_pairs, seed)
    mined = [Evidence(MINED, split.choosing, split.judging)] if split.choosing and split.judging else []
    # The first evidence decides: for search, pairs of a query and its text come before other labels.
    evidence = sorted([*labelled, *mined], key=lambda one: purpose == "search" and one.choosing.kind != "retrieval")
    own = source.pooled(source.own_pooling)
    # Without pairs nothing could be chosen, so nothing is tried.
    tried, left_out = select_candidates(rows, source, own.dim, len(split.fitted)) if evidence else ({}, {})
    n_mined = f"{sum(map(len, mined)):,}" if mined else "no"
    say(f"encoder   {name}, {source.own_pooling}, width {own.dim}")
    say(
        f"text      {len(split.fitted):,} sentences to fit on; put aside: {len(split.reference):,} for random pairs, "
        f"{n_mined} mined pairs"
    )
    for row_pooling in tried.values():  # all poolings share one pass if they are known before it
        source.pooled(row_pooling, split.fitted)
    everything = list(dict.fromkeys([*split.fitted, *split.reference, *(s for one in evidence for s in one.sentences)]))
    flows = {row_pooling for row, row_pooling in tried.items() if row.calibrator == "flow"}
    say(f"time      {estimate_time(own, everything, len(split.fitted), len(flows))}")
    raw = measure_geometry(own.encode(everything, progress=progress)[: len(split.fitted)], seed)
    say(f"geometry  {raw}")
    fitted = fit_candidates(source, tried, left_out, split.fitted, seed)
    judged = [one.judge(fitted.systems, fitted.advice, resamples, seed) for one in evidence]
    decided = decide(raw, [one.figures for one in judged], fitted.advice, _missing(text_name, split), purpose)
    advised = fitted.systems[decided.system]
    scores, thresholds = _fit_scores(advised, split.reference, labelled, seed)
    domain, note = _fit_domain(source.pooled(fitted.poolings[decided.system]), split)
    geometry = {
        "fitted_raw": raw,
        "reference_raw": measure_geometry(own.encode(split.reference), seed),
        "reference_advised": measure_geometry(advised.encode(split.reference), seed),
    }
    advice = Advice(
        of=name,
        **vars(decided),
        geometry=geometry,
        evidence=tuple(judged),
        scores=scores,
        domain=domain,
        notes=(*thresholds, *note),
        text=split,
        candidates=fitted,
        source=source,
        seed=seed,
    )
    return advice if output is None else advice.saved(output)


def _read(
    encoder: Any, text: Any, vectors: Any, given: dict[str, Any], device: str
) -> "tuple[str, Source, list[Document], str]":
    """Open and read everything before anything is computed.

    Returns:
        Name of the encoder, the encoder, the text in its order, and its name (empty where vectors have no text).
    """
    from bertflow.advise.candidates import Source, VectorEncoder
    from bertflow.advise.text import Document, read_documents
    from bertflow.opening import load

    if vectors is not None and text is None:
        encoder, text = None, encoder  # `bertflow fix --vectors FILE TEXT`
    if vectors is not None and (wrong := [*given, *(["an encoder"] if encoder is not None else [])]):
        raise UsageError(f"vectors take at most the text of the vectors, got {wrong[0]}. Leave it out.")
    if vectors is None and (encoder is None or text is None):
        raise UsageError("An encoder and a text are needed, as `bertflow fix MODEL TEXT`. Give both, or vectors.")
    documents = [] if text is None else read_documents(text, whole_lines=vectors is not None)
    opened: SentenceEncoder
    if vectors is not None:
        lines = None if text is None else [line for document in documents for line in document.sentences]
        name, opened = str(vectors), (rows := VectorEncoder(Path(vectors), lines))
        documents = documents or [Document((sentence,)) for sentence in rows.sentences]
    elif isinstance(encoder, str | Path):
        name = Path(encoder).resolve().name if Path(encoder).exists() else str(encoder)
        opened = load(encoder, device=device, **given)
    else:
        name, opened = str(encoder.describe()["encoder"]), encoder
    if opened.calibrator is not None:
        calibrator = opened.describe()["calibrator"]
        raise UsageError(f"{name} is already calibrated by {calibrator}. Give the encoder without its calibrator.")
    text_name = "" if text is None else Path(text).name if isinstance(text, str | Path) else "text"
    return name, Source(opened), documents, text_name


def _missing(text_name: str, text: "SplitText") -> str:
    """Why there are no mined pairs."""
    if not text_name:
        return "vectors without their text make no pairs."
    if not text.mined:
        return "the text has no structure to mine pairs from (paragraphs, blank lines, or question and answer columns)."
    return f"the structure of the text gives only {text.mined:,} pairs, some 300 are needed."


def _fit_scores(
    system: "SentenceEncoder", reference: list[str], labelled: "list[Evidence]", seed: int
) -> "tuple[ScoreCalibrator, list[str]]":
    """What a cosine means, and its thresholds as lines."""
    from bertflow.evaluation.encoding import pair_cosines
    from bertflow.scoring.scores import ScoreCalibrator

    scores, lines = ScoreCalibrator(random_state=seed).fit_sentences(system, reference), []
    for pairs in (one.choosing for one in labelled if one.choosing.kind == "binary"):  # nothing was judged by this half
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


def _fit_domain(raw: "SentenceEncoder", text: "SplitText") -> "tuple[DomainCheck | None, list[str]]":
    """What ordinary text is, or why that is unknown."""
    from bertflow.scoring.domain import FEWEST_HELD_OUT, ROWS_A_DIRECTION, DomainCheck

    if len(text.reference) < FEWEST_HELD_OUT or len(text.fitted) < ROWS_A_DIRECTION * raw.dim:
        few = f"{len(text.fitted):,} sentences are too few for a Gaussian of {raw.dim} dimensions"
        return None, [f"domain    not written: {few}"]
    return DomainCheck().fit_sentences(raw, text.fitted, text.reference), []

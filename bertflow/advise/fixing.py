"""``bertflow.fix``: all cosines are 0.9, what can be done? Read, measure, try, judge, decide.

text --> documents --> fitted | put aside (reference, mined pairs)
encoder or vectors --> raw + candidates, fitted --> judged by labels, by mined pairs --> verdict --> Advice
"""

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from typing_extensions import Unpack

from bertflow.advise.advice import Advice, require_new
from bertflow.errors import MOST_RESAMPLES, UsageError, require_between, require_seed
from bertflow.files import require_files, require_place
from bertflow.opening import LoadOptions, require_openable
from bertflow.registry import lookup
from bertflow.training.purpose import Purpose

if TYPE_CHECKING:
    from bertflow.data.pairs import Pairs
    from bertflow.encoder.abstract import SentenceEncoder

logger = logging.getLogger("bertflow")

FEWEST_RESAMPLES = 100
"""Fewest resamples: with fewer, the ends of a 95 % interval are single draws."""
VECTORS_ALONE = "no pairs can be made of vectors without their text."


def fix(
    encoder: "str | SentenceEncoder | None" = None,
    text: str | Path | Sequence[str] | None = None,
    labels: "str | Path | Pairs | None" = None,
    *,
    purpose: Purpose = "similarity",
    vectors: str | Path | None = None,
    keep_vectors: bool = False,
    ask: int | None = None,
    output: str | Path | None = None,
    open_report: bool = False,
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
    it is better than the raw encoder on held-out pairs by more than chance. These pairs are labelled, or they are found
    in the structure of the text: in paragraphs and documents (blank lines between them), or in columns such as question
    and answer. If nothing is proven, but the geometry is that of raw encoders, a change is likely to help. It is then
    written all the same, and the report says what would prove it.

    Args:
        encoder: Encoder to judge: a hub id or a folder. With ``vectors`` leave it out.
        text: Your text: txt, tsv, csv, jsonl, parquet, or hub:owner/name. With ``vectors`` it is their text, a
            line for each vector, and may be left out.
        labels: File of labelled pairs, with the columns sentence1, sentence2, score, or a, b, label (0 or 1), or query,
            text; or the file that ``ask`` wrote, filled in.
        purpose: What the encoder is used for: similarity, search, or both. For search, pairs of a query and its
            text decide, labelled or mined, before other labels.
        vectors: Embeddings (n, dim) instead of an encoder: .npy, .parquet, or the folder of a store.
        keep_vectors: Advise only a map of the encoder's own embeddings, so that vectors that exist can be kept. The
            best candidate of all, which may need to encode again, is named beside it. Both are shown with gain and
            cost.
        ask: Number of pairs to write into ask.csv for you to judge, for example 100: those whose judgement tells the
            candidates apart best. Fill in the column score, in all rows or some, and give the file as ``labels``.
        output: Folder to write, new or empty (default on the command line: fixed).
        open_report: Open the report, geometry/report.html, in the browser.
        candidates: What to try, such as whitening,sif+whitening(128),flow; everything by default. If there are no pairs
            and the geometry is that of raw encoders, the first of them is used.
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
    from bertflow.advise.asking import FEWEST_ASKED, MOST_ASKED, choose_pairs
    from bertflow.advise.evidence import MINED, Evidence, announced, docstring_evidence, load_evidence
    from bertflow.advise.keeping import AGAIN, KEEP, choose
    from bertflow.advise.likely import Geometry, Shape, layers_are_open, plain_pooling, recipes
    from bertflow.advise.reading import read_all, split_text
    from bertflow.advise.verdict import decide, looks_raw
    from bertflow.calibrated import CalibratedEncoder
    from bertflow.calibration.spelling import RAW
    from bertflow.encoder.cutting import measure_cut
    from bertflow.evaluation.systems import SharedPass
    from bertflow.geometry.report import REPORT, require_page, show_page

    say, rows = say or logger.info, trying.parse_candidates(candidates)
    require_between(FEWEST_RESAMPLES, MOST_RESAMPLES, resamples=resamples)
    require_between(1, max_sentences=max_sentences, max_pairs=max_pairs)
    require_between(FEWEST_ASKED, MOST_ASKED, ask=ask)
    require_seed(seed)
    lookup("purpose", dict.fromkeys(get_args(Purpose)), purpose)
    require_files(text, labels, None if vectors is not None and Path(vectors).is_dir() else vectors)
    require_page(output, open_report)
    require_place(output, folder=True)
    if output is not None:
        require_new(Path(output))
    if encoder is not None:
        require_openable(encoder, **options)
    labelled = [] if labels is None else [load_evidence(labels, seed)]
    name, opened, text_name, documents = read_all(
        encoder, text, vectors, options, max_sentences + 2 * max_pairs + 1, seed
    )
    if (labelled or ask) and not text_name:
        given = "labels are" if labelled else "ask is"
        raise UsageError(f"{given} about sentences, and vectors alone have none. Give the text of the vectors.")
    known = [sentence for one in labelled for sentence in one.sentences]
    split = split_text(documents, text_name or name, known, max_sentences, max_pairs, seed)
    mined = [Evidence(MINED, split.choosing, split.judging)] if split.choosing and split.judging else []
    # The first evidence decides: for search, pairs of a query and its text come before other labels.
    evidence = sorted([*labelled, *mined], key=lambda one: purpose == "search" and one.choosing.kind != "retrieval")
    source = SharedPass(opened)
    own = source.pooled(source.own_pooling)
    # Without pairs nothing can be chosen, so only what is likely is fitted.
    n, missing = len(split.fitted), split.without_pairs if text_name else VECTORS_ALONE
    tried, not_tried = trying.select_candidates(rows if evidence or candidates or ask else [], source, own.dim, n)
    free = isinstance(encoder, str | Path) and layers_are_open(source, options.get("pooling"))
    ladders = (
        recipes(purpose, own.dim, free)
        if candidates is None
        else {key: [[row] for row in rows] for key in (True, False)}
    )
    keep = keep_vectors or vectors is not None
    likely = trying.add_likely(tried, source, own.dim, n, ladders, keep)
    say(f"encoder   {name}, {opened.describe().get('pooling', 'as given')}, width {own.dim}")
    say(f"text      {n:,} sentences to fit on; put aside: {len(split.reference):,} for random pairs")
    say(f"evidence  {announced(evidence, missing, bare=vectors is not None)}")
    for row_pooling in (plain_pooling(source), *tried.values()):  # all poolings share one pass if known before it
        source.pooled(row_pooling, split.fitted)
    everything = list(dict.fromkeys([*split.fitted, *split.reference, *(s for one in evidence for s in one.sentences)]))
    if cut := measure_cut(opened, everything, seed):
        say(f"cut       {cut}")
    flows = {row_pooling for row, row_pooling in tried.items() if row.calibrator == "flow"}
    say(f"time      {trying.estimate_time(own, everything, n, len(flows))}")
    begin = time.perf_counter()
    raw = Geometry.of(own.encode(everything, progress=progress)[:n], seed)
    encoding = (time.perf_counter() - begin) / len(everything) * 1000
    say(f"geometry  {raw}")
    shape = Shape.of(source, split.fitted)
    systems = trying.fit_candidates(source, tried, split.fitted, seed, purpose)
    judged = tuple(one.judge(systems, resamples, seed) for one in evidence)
    kept = {row.spelling for row in tried if not (keep and row.pooling)}
    alike = likely.get(shape.steep, []) if looks_raw(raw, shape) else []
    unproven = not any(one.limited(kept).proves for one in judged[:1])
    stand_in = docstring_evidence(opened) if alike and unproven and not shape.bare else None
    if stand_in:
        say("evidence  the geometry is that of raw encoders, so pairs of docstrings are asked what they say against it")
    likely_systems = {name: systems[name] for name in (RAW, *alike)}
    weak = stand_in.judge(likely_systems, resamples, seed) if stand_in else None
    decided = partial(decide, raw, judged, missing, purpose, shape, alike, weak)
    decision = decided(kept)
    system = decision.system
    choices = [choose(KEEP, decision, systems[system], split.fitted, None)] if keep else []
    if keep_vectors and (overall := decided({*systems})).system not in (*kept, RAW):
        choices.append(choose(AGAIN, overall, systems[overall.system], split.fitted, encoding))
    asked = choose_pairs(systems, [*split.reference, *split.fitted], ask, seed) if ask else None
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
        verdict=decision.verdict,
        system=system,
        standing=decision.standing,
        reasons=decision.reasons,
        shape=shape,
        cut=cut,
        geometry=geometry,
        evidence=tuple(one.limited(kept) for one in judged),
        stand_in=weak,
        choices=tuple(choices),
        asked=asked,
        scores=scores,
        domain=domain,
        notes=(*thresholds, *note),
        text=split,
        systems=systems,
        not_tried=not_tried,
        encoder=best,
        seed=seed,
    )
    if output is None:
        return advice
    advice = advice.saved(output)
    if open_report:
        show_page(Path(output) / "geometry" / REPORT)
    return advice

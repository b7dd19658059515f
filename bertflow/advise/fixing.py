"""``bertflow.fix``: all cosines are 0.9, what can be done? Read, measure, try, judge, decide.

text --> documents --> fitted | put aside (reference, mined pairs)
encoder or vectors --> raw + candidates, fitted --> judged by labels, by mined pairs --> verdict --> Advice
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import Unpack

from bertflow.advise.advice import Advice, require_new
from bertflow.files import require_files, require_place
from bertflow.opening import LoadOptions, require_openable
from bertflow.training.purpose import Use

if TYPE_CHECKING:
    from bertflow.data.pairs import Pairs
    from bertflow.encoder.abstract import SentenceEncoder

logger = logging.getLogger("bertflow")


def fix(
    encoder: "str | SentenceEncoder | None" = None,
    text: str | Path | Sequence[str] | None = None,
    labels: "str | Path | Pairs | None" = None,
    *,
    columns: str | None = None,
    queries: str | Path | Sequence[str] | None = None,
    purpose: Use = "all",
    vectors: str | Path | None = None,
    query_vectors: str | Path | None = None,
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
    written all the same, and the report says what would prove it. If something speaks against it, such as a text of one
    narrow kind, the encoder is written as it is, and the change beside it.

    Args:
        encoder: Encoder to judge: a hub id or a folder. With ``vectors`` leave it out.
        text: Your text: txt, tsv, csv, jsonl, parquet, or hub:owner/name. With ``vectors`` it is their text, a
            line for each vector, and may be left out.
        labels: File of labelled pairs, with the columns sentence1, sentence2, score, or a, b, label (0 or 1), or query,
            text; or the file that ``ask`` wrote, filled in.
        columns: Columns of a table that hold the text: one, or two as a,b, of which the first should find the second.
            Found by their names, or else by what they hold, by default.
        queries: File of real queries without labels, at least 20; txt, or a table with the column query, question, text
            or sentence. The report shows what the encoder finds for them before and after, and whether they are like
            your text. They choose nothing.
        purpose: What the encoder is used for: similarity (pairs that mean the same), search (the one right text for a
            query), topic (neighbors of one kind), or all of them. A change for one may harm another. For search, pairs
            of a query and its text decide, labelled or mined, before other labels.
        vectors: Embeddings (n, dim) instead of an encoder: .npy, .parquet, or the folder of a store.
        query_vectors: Embeddings of real queries (m, dim), beside ``vectors``; as ``queries`` is beside an encoder.
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
    # What needs no library is refused before they are loaded.
    require_files(
        text, labels, queries, query_vectors, None if vectors is not None and Path(vectors).is_dir() else vectors
    )
    require_place(output, folder=True)
    if output is not None:
        require_new(Path(output))
    from bertflow.advise.case import Request
    from bertflow.advise.trial import advise
    from bertflow.geometry.report import REPORT, require_page, show_page

    request = Request(
        encoder=encoder,
        text=text,
        columns=columns,
        labels=labels,
        queries=queries,
        purpose=purpose,
        vectors=vectors,
        query_vectors=query_vectors,
        keep_vectors=keep_vectors,
        ask=ask,
        candidates=candidates,
        max_sentences=max_sentences,
        max_pairs=max_pairs,
        resamples=resamples,
        seed=seed,
        without_text_hashes=without_text_hashes,
        progress=progress,
        say=say or logger.info,
        options=options,
    )
    request.require_usable()
    require_page(output, open_report)
    if encoder is not None:
        require_openable(encoder, **options)
    advice = advise(request)
    if output is None:
        return advice
    advice = advice.saved(output)
    if open_report:
        show_page(Path(output) / "geometry" / REPORT)
    return advice

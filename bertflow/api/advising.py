"""Advising: ``fix`` says what to do with an encoder, ``score`` what a cosine means, ``compare`` shows two encoders."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from typing_extensions import Unpack

from bertflow import kinds
from bertflow.data.columns import split_columns
from bertflow.data.corpus import TextSource, drawn_rows
from bertflow.encoder.options import EncoderOptions
from bertflow.errors import UsageError, logger, require_between, require_seed
from bertflow.geometry import require_page
from bertflow.places import require_files, require_place
from bertflow.tables import require_writable, write_rows
from bertflow.training import Use


def fix(
    encoder: "str | kinds.SentenceEncoder | None" = None,
    text: str | Path | Sequence[str] | None = None,
    labels: "str | Path | kinds.Pairs | None" = None,
    *,
    columns: str | None = None,
    queries: str | Path | Sequence[str] | None = None,
    purpose: Use = "all",
    vectors: str | Path | None = None,
    column: str | None = None,
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
    **options: Unpack[EncoderOptions],
) -> "kinds.Advice":
    """Measure the geometry of an encoder on your text, try what could help, and say what to do.

    The verdict is one of: leave it, rescale the scores, whiten, use the flow, or you need labels. A change is proven if
    it is significantly better than the raw encoder on held-out pairs. These pairs are labeled, or they are found
    in the structure of the text: in paragraphs and documents (empty lines between them), or in columns such as question
    and answer. If nothing is proven, but the geometry is that of raw encoders, a change is likely to help. It is then
    written all the same, and the report says what would prove it. If something speaks against it, such as a text of one
    narrow kind, a gentler change or none is used, and the change may be written beside it.

    Args:
        encoder: Encoder to judge: a hub id or a folder. With ``vectors`` leave it out.
        text: Your text: txt, a table, or hub:owner/name. With ``vectors`` it is their text, a
            line for each vector, and may be left out.
        labels: File of labeled pairs, with the columns sentence1, sentence2, score, or a, b, label (0 or 1), or query,
            text; or the file that ``ask`` wrote, filled in.
        columns: Columns of a table that hold the text: one, or two as a,b, of which the first should find the second.
            Found by their names, or else by what they hold, by default.
        queries: File of real queries without labels, at least 20; txt, or a table with the column query, question, text
            or sentence. The report shows what the encoder finds for them before and after, and whether they are like
            your text. They choose nothing.
        purpose: What the encoder is used for: similarity (pairs that mean the same), search (the one right text for a
            query), topic (texts of the same kind), or all of them. A change for one may harm another. For search,
            pairs of a query and its text decide, labeled or mined, before other labels.
        vectors: Embeddings (n, dim) instead of an encoder: .npy, .parquet, or the folder of a store.
        column: Column of a parquet file that holds the vectors; the only column of lists by default.
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
        options: ``EncoderOptions``.

    Returns:
        The verdict, the numbers behind it, and the encoder to use.

    Raises:
        UsageError: If an option cannot be used, or options contradict each other.
        DataError: If a file is missing or damaged, or there is too little text.

    Examples:
        ```bash
        bertflow fix bert-base-uncased my_text.txt --output fixed
        bertflow fix intfloat/e5-base my_text.txt --prompt "query: " --labels judged.tsv
        bertflow fix --vectors embeddings.npy
        bertflow fix --vectors embeddings.npy my_text.txt --labels judged.tsv
        ```
    """
    require_files(
        text, labels, queries, query_vectors, None if vectors is not None and Path(vectors).is_dir() else vectors
    )
    require_place(output, folder=True, new=True)
    require_page(output, open_report)
    if vectors is None and (encoder is None or text is None):
        raise UsageError("An encoder and a text are needed, as `bertflow fix MODEL TEXT`. Give both, or --vectors.")
    if vectors is None and isinstance(text, str | Path):
        TextSource([text], split_columns(columns))
    from bertflow.advise.case import Request
    from bertflow.advise.trial import advise

    rows = (vectors, column, query_vectors, keep_vectors)
    given = (encoder, text, columns, labels, queries, purpose, *rows, ask, candidates)
    numbers = (max_sentences, max_pairs, resamples, seed)
    advice = advise(Request(*given, *numbers, without_text_hashes, progress, say or logger.info, options))
    return advice if output is None else advice.saved(output, open_report)


def score(
    encoder: "str | Path | kinds.SentenceEncoder",
    pairs: "str | Path | Sequence[tuple[str, str]] | None" = None,
    *,
    columns: str | None = None,
    output: str | Path | None = None,
    false_match_rate: float | None = None,
    precision: float | None = None,
    recall: float | None = None,
    domain: "str | Path | Sequence[str] | None" = None,
    fail_on_drift: bool = False,
    fit_on: "str | Path | Sequence[str] | None" = None,
    queries: "str | Path | Sequence[str] | None" = None,
    labels: str | Path | None = None,
    method: str = "auto",
    density: str | None = None,
    save: str | Path | None = None,
    max_sentences: int = 5000,
    seed: int = 0,
    without_text_hashes: bool = False,
    progress: bool | None = None,
    **options: Unpack[EncoderOptions],
) -> "kinds.ScoredPairs":
    """Score pairs of sentences, or say how ordinary the sentences of a text are.

    A score is the cosine, its percentile among random pairs of your text, the probability of a match if labels were
    given, and yes or no at a false-match rate, precision or recall that you choose. An encoder that has no scores.json
    yet needs fit_on.

    Args:
        encoder: An encoder with its scores; or any encoder (hub id or folder), with fit_on.
        pairs: A table with two columns of text.
        columns: The two columns of the pairs, as a,b (numbers from 1 if the file has no header).
        output: File to write the result to: .tsv, .csv or .jsonl.
        false_match_rate: Share of random pairs that may pass as matches (default: 0.001, or 0.01 if the text of the
            percentiles is too small for that).
        precision: With labels, instead of a rate: of the labeled pairs that pass, the share that should be matches.
        recall: With labels, instead of a rate: of the labeled matches, the share that should pass.
        domain: Text to compare with the fitting text: how ordinary each sentence is, and whether the whole has drifted,
            so that you should refit.
        fail_on_drift: With domain: end with exit code 4 if you should refit (docs/fix.md says when).
        fit_on: Text to fit the scores to; other text than the calibrator was fitted on.
        queries: With fit_on: queries, if the pairs are of a query and a text; the random pairs are then of one of these
            queries and a text of fit_on.
        labels: With fit_on: a table a, b, label (0 or 1) to learn probabilities from.
        method: How probabilities are fitted: isotonic, logistic or auto.
        density: With fit_on and domain: gaussian (default) or flow.
        save: With fit_on: folder to write the encoder to, with its scores (scores.json) and, if there is enough
            text, a domain check (domain/).
        max_sentences: Size of the random sample of fit_on.
        seed: Random seed for the sample and the random pairs.
        without_text_hashes: With save: leave out the hashes by which an evaluation knows which sentences were seen.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
        options: ``EncoderOptions``.

    Raises:
        UsageError: If options contradict each other, the text is too small for the false-match rate, or no cosine has
            the precision.
        DataError: If a file cannot be used, or the scores belong to another encoder.

    Examples:
        ```bash
        bertflow score fixed/encoder pairs.tsv --output scored.tsv --false_match_rate 0.01
        bertflow score intfloat/e5-base pairs.csv --fit_on text.txt --labels labels.tsv --save scored-e5
        bertflow score scored-e5 pairs.csv --precision 0.9
        bertflow score fixed/encoder --domain this_week.txt --fail_on_drift
        ```
    """
    if output:
        require_writable(output)
    require_place(output, new=True)
    require_between(1e-9, 1 - 1e-9, false_match_rate=false_match_rate)
    require_between(2, max_sentences=max_sentences)
    require_seed(seed)
    for name, value in {"queries": queries, "labels": labels, "save": save, "density": density}.items():
        if value is not None and fit_on is None:
            raise UsageError(f"--{name} needs --fit_on TEXT. Add it, or leave --{name} out.")
    if fail_on_drift and not domain:
        raise UsageError("--fail_on_drift needs the text to look at. Give it with --domain TEXT.")
    if pairs and domain and output:
        raise UsageError("--output holds one table, but both PAIRS and --domain were given. Call the command twice.")
    chosen = {"false_match_rate": false_match_rate, "precision": precision, "recall": recall}
    wanted = {name: value for name, value in chosen.items() if value is not None}
    if len(wanted) > 1:
        raise UsageError(f"There is one threshold, but {' and '.join(wanted)} were given. Give one of them.")
    if not (pairs or domain or save):
        raise UsageError("There is nothing to score. Give a table of PAIRS, or a text with --domain.")
    require_files(pairs, domain, fit_on, queries, labels)
    from bertflow.scoring.scored import score_pairs

    name, target = next(iter(wanted.items()), ("false_match_rate", None))
    given, kept = (pairs, columns, domain, fit_on, queries, labels), (max_sentences, seed, without_text_hashes)
    found = score_pairs(encoder, options, *given, name, target, method, density, save, *kept, progress)
    if output:
        table = found if found.domain is None else found.domain
        write_rows(output, table.header, table.rows())
    return replace(found, output=output, fail_on_drift=fail_on_drift)


def compare(
    first: "str | Path | kinds.SentenceEncoder",
    second: "str | Path | kinds.SentenceEncoder",
    queries: str | Path | Sequence[str],
    text: str | Path | Sequence[str],
    *,
    columns: str | None = None,
    max_sentences: int = 8000,
    seed: int = 0,
    progress: bool | None = None,
    **options: Unpack[EncoderOptions],
) -> "kinds.Comparison":
    """Show what two encoders find for the same queries, side by side.

    No labels are needed: read the nearest texts of twenty queries before and after, and see which ones you would want.

    Args:
        first: Encoder, such as your own: a hub id, a folder, or whatever else ``bertflow.load`` opens.
        second: Encoder to compare with it, such as fixed/encoder.
        queries: File of queries, at least 20: txt, or a table with the column query, question, text or sentence.
        text: The texts that are searched: txt, a table, or hub:owner/name.
        columns: Columns of a table that hold the text, as a,b. Found by their names by default.
        max_sentences: Largest number of texts that are searched; a random sample.
        seed: Random seed for that sample, and for the queries that are shown.
        progress: Show a bar while sentences are encoded; by default in a terminal or a notebook.
        options: ``EncoderOptions``, for raw encoders; folders that bertflow wrote keep their own beside one.

    Returns:
        The queries with their nearest texts, and how many of these changed.

    Raises:
        UsageError: If an option or an encoder cannot be used.
        DataError: If a file is missing or damaged, or there are too few queries.

    Examples:
        ```bash
        bertflow compare bert-base-uncased fixed/encoder --queries queries.txt products.csv
        bertflow compare fixed/encoder other/encoder --queries log.csv products.csv --columns description
        ```
    """
    require_files(queries)
    require_between(10, max_sentences=max_sentences)  # this many nearest texts are compared
    require_seed(seed)
    named = split_columns(columns)
    if isinstance(text, str | Path):
        TextSource([text], named)
    from bertflow.retrieval.comparing import compare_systems, load_queries, load_texts, open_named

    systems, asked = open_named((first, second), options), load_queries(queries, seed)
    found = load_texts(text, named)
    texts = [found[row] for row in drawn_rows(len(found), max_sentences, seed)]
    return compare_systems(systems, asked, texts, seed, progress)

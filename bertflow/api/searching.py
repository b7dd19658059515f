"""Searching: known answers for a question, and collections of databases that are calibrated.

A change opens the index with the encoder that it was built with, which the file remembers; from Python an open
``AnswerIndex`` can be given as well.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import Unpack

from bertflow.errors import MOST_RESAMPLES, UsageError, require_between, require_seed
from bertflow.files import require_files, require_place
from bertflow.opening import LoadOptions
from bertflow.retrieval import Answers, Index, IndexOptions, Place
from bertflow.training.purpose import Purpose

if TYPE_CHECKING:
    from bertflow.data.pairs import Pairs
    from bertflow.databases.reindexing import Reindexed
    from bertflow.encoder.abstract import SentenceEncoder
    from bertflow.retrieval.origin import CollectionInfo
    from bertflow.retrieval.places import IndexInfo
    from bertflow.retrieval.searching import Hits, SearchScores


def build_index(
    index: str | Path,
    answers: Answers,
    model: str | Path,
    *,
    calibrate: str | None = None,
    progress: bool | None = None,
    **options: Unpack[LoadOptions],
) -> "IndexInfo":
    """Embed answers into a new index.

    Args:
        index: File to write.
        answers: A table (tsv, csv, jsonl, parquet) with id, text and, if there are past questions, questions.
        model: An encoder (hub id or folder), raw or calibrated.
        calibrate: For a raw encoder: fit this calibrator, such as whitening, on all texts that are indexed. The index
            keeps it for questions and later answers.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
        options: ``LoadOptions``. With ``chunks`` each chunk of an answer is kept, not pooled: a hit says which it is.

    Raises:
        UsageError: If there is a file at ``index``, or the encoder cannot split text so, or is calibrated already.
        DataError: If the answers cannot be used, or are too few to calibrate on.
    """
    require_files(answers)
    from bertflow.retrieval.places import require_new_file

    require_new_file(index)
    from bertflow.retrieval.building import build

    return build(index, answers, model, calibrate, progress, options)


def add_answers(
    index: Index, answers: Answers, *, progress: bool | None = None, **options: Unpack[IndexOptions]
) -> "IndexInfo":
    """Add answers under new ids; all of them or none.

    Args:
        index: File that `search build` wrote.
        answers: A table (tsv, csv, jsonl, parquet) with id, text and, if there are past questions, questions.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
        options: ``IndexOptions``.

    Raises:
        DataError: If an id is there already, or the answers or the index cannot be used.
    """
    require_files(answers)
    from bertflow.retrieval.places import put_answers

    return put_answers("add", index, answers, options, progress)


def update_answers(
    index: Index, answers: Answers, *, progress: bool | None = None, **options: Unpack[IndexOptions]
) -> "IndexInfo":
    """Replace answers by id; all of them or none.

    Args:
        index: File that `search build` wrote.
        answers: A table (tsv, csv, jsonl, parquet) with id, text and, if there are past questions, questions.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
        options: ``IndexOptions``.

    Raises:
        DataError: If an id is unknown, or the answers or the index cannot be used.
    """
    require_files(answers)
    from bertflow.retrieval.places import put_answers

    return put_answers("update", index, answers, options, progress)


def remove_answers(index: Index, ids: Sequence[str], **options: Unpack[IndexOptions]) -> "IndexInfo":
    """Remove answers by id; all of them or none.

    Args:
        index: File that `search build` wrote.
        ids: Ids of the answers.
        options: ``IndexOptions``.

    Raises:
        DataError: If an id is unknown, or the index cannot be used.
    """
    from bertflow.retrieval.places import take_out

    return take_out(index, ids, options)


def recalibrate_index(
    index: str | Path, model: str | Path | None = None, *, calibrate: str | None = None, device: str = "auto"
) -> "IndexInfo":
    """Send the raw embeddings through another calibrator; nothing is encoded again.

    Args:
        index: File that `search build` wrote.
        model: The same encoder with another calibrator, or with none.
        calibrate: Instead of model: fit this calibrator, such as whitening, on all texts that are in the index now.
        device: cpu, cuda, ... or auto.

    Raises:
        UsageError: If not one of model and calibrate is given.
        DataError: If the raw encoder is another one, the index cannot be used, or holds too few texts.
    """
    if (model is None) == (calibrate is None):
        raise UsageError(f"One of model and calibrate is wanted, got {'both' if model else 'neither'}. Give one.")
    from bertflow.retrieval.places import require_file

    require_file(index, "recalibrate")
    require_place(index)
    from bertflow.retrieval.building import recalibrate

    return recalibrate(Path(index), model, calibrate, device)


def describe_index(index: Place) -> "IndexInfo | CollectionInfo":
    """Say what is in an index or a collection; needs no encoder.

    Args:
        index: File that `search build` wrote, folder that `reindex` wrote, or address of a collection.

    Raises:
        DataError: If there is no such thing, or it is damaged.
    """
    from bertflow.retrieval.places import kind_of

    place = str(index if isinstance(index, str | Path) else index.path)
    return kind_of(place).describe(place)


def search(
    index: Place,
    question: str,
    k: int = 5,
    *,
    engine: str | None = None,
    text: str | None = None,
    **options: Unpack[IndexOptions],
) -> "Hits":
    """Rank the answers for a question.

    Args:
        index: File that `search build` wrote, folder that `reindex` wrote, or address of a collection in a database.
        question: The question.
        k: How many answers.
        engine: exact, or usearch for very many phrases (default: exact; of a collection its database's own search).
        text: Column of a collection that holds the text (default: found by its name).
        options: ``IndexOptions``.

    Raises:
        UsageError: If ``k`` is below 1, or the question is empty.
        DataError: If the index cannot be used.
    """
    require_between(1, k=k)
    from bertflow.retrieval.places import require_question

    require_question(question, index, options, engine, text)
    from bertflow.retrieval.searching import ask

    return ask(index, question, k, engine, text, options)


def evaluate_search(
    index: Place,
    labels: "str | Path | Mapping[str, frozenset[str]] | None" = None,
    *,
    candidate_lists: "Pairs | str | Path | None" = None,
    k: int = 5,
    resamples: int = 1000,
    seed: int = 0,
    text: str | None = None,
    progress: bool | None = None,
    **options: Unpack[IndexOptions],
) -> "SearchScores":
    """Compute hit@k, MRR and MAP on questions whose answers are known.

    Instead of all answers of the index, each question's own candidates can be ranked by the encoder of the index, as in
    TREC-QA: MAP and MRR over questions that have a right and a wrong candidate.

    Args:
        index: File that `search build` wrote, folder that `reindex` wrote, or address of a collection in a database.
        labels: A table with question and id.
        candidate_lists: A table with query, text and label (1 or 0), instead of labels.
        k: For hit@k, beside hit@1.
        resamples: Bootstrap resamples of the questions; 0 for none.
        seed: Random seed for the bootstrap.
        text: Column of a collection that holds the text (default: found by its name).
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
        options: ``IndexOptions``.

    Raises:
        UsageError: If not one of both tables is given.
        DataError: If a right answer is not in the index, or the index cannot be used.
    """
    if (labels is None) == (candidate_lists is None):
        raise UsageError("One of labels and candidate_lists is wanted. Give a table of one of them.")
    require_between(0, MOST_RESAMPLES, resamples=resamples)
    require_between(1, k=k)
    require_seed(seed)
    require_files(labels, candidate_lists)
    from bertflow.retrieval.places import require_index

    require_index(index, options, text=text)
    from bertflow.retrieval.searching import rank_answers, rank_lists

    if labels is not None:
        return rank_answers(index, labels, k, resamples, seed, text, progress, options)
    assert candidate_lists is not None, "one of both is given"
    return rank_lists(index, candidate_lists, resamples, seed, text, progress, options)


def reindex(
    source: str,
    target: str,
    *,
    calibrator: str | Path,
    model: "str | Path | SentenceEncoder | None" = None,
    output: str | Path | None = None,
    fit_rows: int | None = None,
    preset: str | None = None,
    purpose: Purpose | None = None,
    seed: int | None = None,
    part_rows: int | None = None,
    progress: bool | None = None,
    **options: Unpack[LoadOptions],
) -> "Reindexed":
    """Calibrate a collection of a database into a new collection, without its text.

    Ids and payload are kept; the index is built for cosine; the source is only read. The lines that let the new
    collection take its place, and those that go back, are printed for you to run. Call it again after an interruption
    of any kind: what is done is kept. Several processes may run it at the same time, where the database allows that. A
    random sample is read back in the end. Do not change the source while it runs: rows that are added or removed are
    found in the end, and refused.

    Addresses are KIND:PLACE/NAME, where NAME is a table or a collection:
    lancedb:FOLDER/TABLE, qdrant:http://localhost:6333/COLLECTION, pgvector:postgresql://user@host/db/TABLE.
    With several columns to choose from, add ?vector=COLUMN&id=COLUMN.

    Args:
        source: Address of the collection to read.
        target: Address of the new collection, in a database of the same kind; must not exist.
        calibrator: Folder that fit, train or save() wrote; or a calibrator to fit to the source's own rows: center,
            standardize, abtt(K), whitening(N), two-band(C), flow or flow(N).
        model: Encoder that made the vectors: anything that bertflow.load opens, raw. With it, the query encoder is
            written, too.
        output: Folder of the job (default: reindex-NAME for the target's NAME).
        fit_rows: Fit to a random sample of so many rows (default: all for a closed form, 50,000 for a flow).
        preset: Preset of a flow: default, paper-tf, ...
        purpose: What the embeddings of a flow are for, instead of a preset: similarity (default), search or all.
        seed: Random seed for a flow and for the sample; 0 by default.
        part_rows: Rows that are moved at a time (default: 32 MiB of vectors).
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
        options: ``LoadOptions``.

    Returns:
        What was made, and the lines that switch and that go back.

    Raises:
        UsageError: If an address or an option cannot be used, or the target is the source.
        DataError: If the source cannot be read or was changed, a row or the calibrator does not fit, the target exists
            and is not of this job, or it does not hold what it should.
    """
    require_between(2, fit_rows=fit_rows)
    require_between(1, part_rows=part_rows)
    require_seed(seed)
    if model is None and (given := [name for name, value in options.items() if value is not None]):
        raise UsageError(f"{given[0]} is an option of the encoder, but none is named. Add --model, or leave it out.")
    from bertflow.databases.calibrated_rows import Asked
    from bertflow.databases.reindexing import calibrate_collection

    asked = Asked(str(calibrator), preset, purpose, seed, fit_rows)
    return calibrate_collection(source, target, asked, model, options, output, part_rows, progress)

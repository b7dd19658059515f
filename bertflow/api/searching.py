"""Keep answers, with the questions they answered before, in one file; rank them for a new question.

Raw embeddings are kept beside the calibrated ones, so that another calibrator needs no second pass of the encoder. A
change opens the index with the encoder that it was built with, which the file remembers.

`ask`, `evaluate` and `info` also take a collection of a database, by the folder that `bertflow reindex` wrote or by its
address, as lancedb:FOLDER/TABLE.

Examples:
    ```bash
    bertflow search example faq
    bertflow search build faq.index --answers faq/answers.jsonl --model runs/mine
    bertflow search ask faq.index "How do I stop it?" -k 5
    bertflow search evaluate faq.index --labels faq/labels.jsonl
    bertflow search recalibrate faq.index --model runs/better
    ```
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from typing_extensions import Unpack

from bertflow import kinds
from bertflow.encoder.options import EncoderOptions
from bertflow.errors import MOST_RESAMPLES, require_between, require_one, require_seed
from bertflow.places import require_files, require_place
from bertflow.retrieval import Answers, Index, IndexOptions, Place


def build_index(
    index: str | Path,
    answers: Answers,
    model: str | Path,
    *,
    columns: str | None = None,
    calibrate: str | None = None,
    progress: bool | None = None,
    **options: Unpack[EncoderOptions],
) -> "kinds.IndexInfo":
    """Embed answers into a new index.

    Args:
        index: File to write.
        answers: A table with text (or answer), and perhaps questions and id; or a .txt of one answer per line. Without
            id they are numbered from 1.
        columns: Columns of the table: text; id and text; or id, text and questions, as a,b,c. Found by their names by
            default.
        model: An encoder (hub id or folder), raw or calibrated.
        calibrate: Calibrator to fit on all indexed texts, such as whitening, if the encoder is raw. The index
            keeps it for questions and later answers.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
        options: ``EncoderOptions``. With ``chunks`` each chunk of an answer is kept, not pooled; a hit says which.

    Raises:
        UsageError: If there is a file at ``index``, or the encoder cannot split text so, or is calibrated already.
        DataError: If the answers cannot be used, or are too few to calibrate on.
    """
    require_files(answers)
    from bertflow.retrieval.indexing import build

    return build(index, answers, columns, model, calibrate, progress, options)


def add_answers(
    index: Index,
    answers: Answers,
    *,
    columns: str | None = None,
    progress: bool | None = None,
    **options: Unpack[IndexOptions],
) -> "kinds.IndexInfo":
    """Add answers under new ids; all of them or none.

    Args:
        index: File that `search build` wrote.
        answers: A table with id, text and, if there are any, questions (past ones) or title.
        columns: Columns of the table that hold them, as a,b or a,b,c. Found by their names by default.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
        options: ``IndexOptions``.

    Raises:
        DataError: If an id is there already, or the answers or the index cannot be used.
    """
    require_files(answers)
    from bertflow.retrieval.indexing import put_answers

    return put_answers("add", index, answers, columns, options, progress)


def update_answers(
    index: Index,
    answers: Answers,
    *,
    columns: str | None = None,
    progress: bool | None = None,
    **options: Unpack[IndexOptions],
) -> "kinds.IndexInfo":
    """Replace answers by id; all of them or none.

    Args:
        index: File that `search build` wrote.
        answers: A table with id, text and, if there are any, questions (past ones) or title.
        columns: Columns of the table that hold them, as a,b or a,b,c. Found by their names by default.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
        options: ``IndexOptions``.

    Raises:
        DataError: If an id is unknown, or the answers or the index cannot be used.
    """
    require_files(answers)
    from bertflow.retrieval.indexing import put_answers

    return put_answers("update", index, answers, columns, options, progress)


def remove_answers(index: Index, ids: Sequence[str], **options: Unpack[IndexOptions]) -> "kinds.IndexInfo":
    """Remove answers by id; all of them or none.

    Args:
        index: File that `search build` wrote.
        ids: Ids of the answers.
        options: ``IndexOptions``.

    Raises:
        DataError: If an id is unknown, or the index cannot be used.
    """
    from bertflow.retrieval.indexing import take_out

    return take_out(index, ids, options)


def recalibrate_index(
    index: str | Path, model: str | Path | None = None, *, calibrate: str | None = None, device: str = "auto"
) -> "kinds.IndexInfo":
    """Send the raw embeddings through another calibrator.

    Nothing is encoded again.

    Args:
        index: File that `search build` wrote.
        model: The same encoder with another calibrator, or with none.
        calibrate: Instead of model: fit this calibrator, such as whitening, on all texts that are in the index now.
        device: cpu, cuda, ... or auto.

    Raises:
        UsageError: If not one of model and calibrate is given.
        DataError: If the raw encoder is another one, the index cannot be used, or holds too few texts.
    """
    require_one(model=model, calibrate=calibrate)
    from bertflow.retrieval.indexing import recalibrate

    return recalibrate(index, model, calibrate, device)


def describe_index(index: Place) -> "kinds.IndexInfo | kinds.CollectionInfo":
    """Say what is in an index or a collection; needs no encoder.

    Args:
        index: File that `search build` wrote, folder that `reindex` wrote, or address of a collection.

    Raises:
        DataError: If there is no such thing, or it is damaged.
    """
    from bertflow.retrieval.indexing import IndexInfo
    from bertflow.retrieval.origin import CollectionInfo, is_collection

    place = index if isinstance(index, str | Path) else index.path
    return CollectionInfo.of(place) if is_collection(place) else IndexInfo.of(Path(place))


def search(
    index: Place,
    question: str,
    k: int = 5,
    *,
    engine: str | None = None,
    text: str | None = None,
    **options: Unpack[IndexOptions],
) -> "kinds.Hits":
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
    from bertflow.retrieval.indexing import opener
    from bertflow.retrieval.ranking import require_questions
    from bertflow.retrieval.searching import ask

    require_questions([question], k)
    return ask(opener(index, options, engine, text), question, k)


def evaluate_search(
    index: Place,
    labels: "str | Path | Mapping[str, frozenset[str]] | None" = None,
    *,
    candidate_lists: "kinds.Pairs | str | Path | None" = None,
    k: int = 5,
    resamples: int = 1000,
    seed: int = 0,
    text: str | None = None,
    progress: bool | None = None,
    **options: Unpack[IndexOptions],
) -> "kinds.SearchScores":
    """Compute hit@k, MRR and MAP on questions whose answers are known.

    Instead of all answers of the index, each question's own candidates can be ranked by the encoder of the index, as in
    TREC-QA: MAP and MRR over questions that have a right and a wrong candidate.

    Args:
        index: File that `search build` wrote, folder that `reindex` wrote, or address of a collection in a database.
        labels: A table with question and id.
        candidate_lists: A table with query, text and label (1 or 0), instead of labels.
        k: Number of answers for hit@k; hit@1 is always shown.
        resamples: Bootstrap resamples of the questions; 0 for none.
        seed: Random seed for the bootstrap.
        text: Column of a collection that holds the text (default: found by its name).
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
        options: ``IndexOptions``.

    Raises:
        UsageError: If not one of both tables is given.
        DataError: If a right answer is not in the index, or the index cannot be used.
    """
    require_one(labels=labels, candidate_lists=candidate_lists)
    require_between(0, MOST_RESAMPLES, resamples=resamples)
    require_between(1, k=k)
    require_seed(seed)
    require_files(labels, candidate_lists)
    from bertflow.retrieval.indexing import opener
    from bertflow.retrieval.searching import rank_answers, rank_lists

    opening = opener(index, options, text=text)
    if labels is not None:
        return rank_answers(opening, labels, k, resamples, seed, progress)
    assert candidate_lists is not None, "one of both is given"
    return rank_lists(opening, candidate_lists, resamples, seed, progress)


def write_search_example(
    folder: str | Path, *, answers: int = 1000, sentences: int = 6000, seed: int = 0
) -> "kinds.SearchExample":
    """Write answers, labels and text to try a search on.

    They are docstrings of installed packages: the first line should find the paragraph after it.

    Args:
        folder: Where to write answers.jsonl, labels.jsonl and text.txt.
        answers: How many answers.
        sentences: How many sentences of other text.
        seed: Random seed for the sample.
    """
    require_between(1, answers=answers, sentences=sentences)
    require_seed(seed)
    require_place(folder, folder=True)
    from bertflow.retrieval.searching import write_example

    return write_example(Path(folder), answers, sentences, seed)

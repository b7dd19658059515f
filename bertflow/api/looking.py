"""Looking: a demonstration, how text becomes tokens, what their embeddings are made of, their geometry, words."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from bertflow import kinds
from bertflow.data import DOCSTRINGS
from bertflow.encoder.embedded import embedded_encoder
from bertflow.errors import UsageError, require_between, require_one, require_seed
from bertflow.geometry import FEWEST, require_page, run_folder
from bertflow.next_steps import new_place
from bertflow.places import require_files, require_place
from bertflow.registry import lookup, several


def demo(
    sentences: int = 6000,
    pairs: int = 2000,
    seed: int = 0,
    output: str | Path = "runs/demo",
    open_report: bool = False,
    progress: bool | None = None,
    say: Callable[[str], None] | None = None,
) -> "kinds.Demo":
    """Calibrate the built-in encoder on docstrings, and show what changes. Needs no data and no hub.

    Args:
        sentences: Number of sentences to fit on.
        pairs: Number of pairs to score, and of pairs to choose the saved system by.
        seed: Random seed for the sample of docstrings.
        output: Folder to write.
        open_report: Open the report, geometry/report.html, in the browser.
        progress: Whether to show progress bars (default: in a terminal or a notebook).
        say: Called with each line that is worth reading before the results are there.
    """
    require_between(2, sentences=sentences)
    require_between(3, pairs=pairs)  # this many are shown
    require_seed(seed)
    require_place(output, folder=True)
    from bertflow.runs.demonstration import show

    return show(sentences, pairs, seed, Path(output), open_report, progress, say)


def inspect_tokens(
    texts: Sequence[str] | None = None,
    *,
    pair: tuple[str, str] | None = None,
    vocabulary: bool = False,
    segment: int | None = None,
    model: str | Path | None = None,
    revision: str | None = None,
) -> "kinds.InputRows | kinds.Vocabulary":
    """Show how text becomes tokens, and what their input embeddings are made of.

    For every piece: id, segment, position, attention mask, the shape of the hidden states; and the input embedding,
    taken apart into word + position + segment. Pieces that are in two texts are compared.

    Args:
        texts: One or several texts; the first is compared with the others.
        pair: Two texts as one input, as for next-sentence prediction.
        vocabulary: Show what is in the vocabulary instead.
        segment: Segment of every token (default: as the model's tokenizer does it).
        model: Hub id or folder (default: the built-in MiniLM).
        revision: Branch, tag or commit, for a hub id.

    Returns:
        The texts taken apart, or the vocabulary.

    Raises:
        UsageError: If not exactly one of texts, pair and vocabulary is given, or the model makes its input embeddings
            in a way that is not known.
        DataError: If the folder is missing, incomplete or damaged.

    Examples:
        ```bash
        bertflow tokens "I found a rock." "I only listen to rock."
        bertflow tokens --pair "I found a rock." "I only listen to rock."
        bertflow tokens --vocabulary --model bert-base-uncased
        ```
    """
    require_one(texts=texts, pair=pair, vocabulary=vocabulary)
    if vocabulary and segment is not None:
        raise UsageError("segment is for texts, not for the vocabulary. Leave one out.")
    from bertflow.studies.tokens import read_vocabulary, take_apart
    from bertflow.words.encoder import WordEncoder

    encoder = WordEncoder(model or embedded_encoder(), revision)
    if vocabulary:
        return read_vocabulary(encoder.tokenizer, encoder)
    inputs = [(text, None) for text in several(texts)] if pair is None else [pair]
    return take_apart(encoder, [encoder.tokenize(text, second, segment) for text, second in inputs])


def inspect_geometry(
    model: "str | Path | kinds.SentenceEncoder | None" = None,
    text: "str | Path | Sequence[str] | None" = None,
    *,
    compare: str | None = None,
    sentences: int = 2000,
    pairs: "str | Path | kinds.Pairs" = DOCSTRINGS,
    data_dir: str = "hub",
    frequencies: str | Path | None = None,
    columns: str | None = None,
    pooling: str | None = None,
    max_length: int | None = None,
    device: str = "auto",
    seed: int = 0,
    output: str | Path | None = None,
    figures: str | Path | None = None,
    format: str | None = None,  # noqa: A002 - the command's word
    open_report: bool = False,
    progress: bool | None = None,
) -> "kinds.GeometryReport":
    """Report on the geometry of an encoder, before and after calibration.

    The report is one HTML file (no network, no script) and a JSON file with every number. Pictures need matplotlib:
    pip install 'bertflow[plots]'.

    Args:
        model: A hub id, the folder of an encoder, a folder that CalibratedEncoder.save wrote, the folder of a train.py
            run, or a file of word vectors; in Python also an encoder (default: inner layers of the built-in encoder).
        text: Sentences: some are looked at, the others are fitted on (default: docstrings).
        compare: Systems beside the model, as "raw,abtt(7),whitening" (default: raw,whitening,flow; for a calibrated
            model raw, and whitening if its calibrator is a flow). A flow has to be trained, so raw,whitening is faster.
        sentences: Number of sentences to look at, at most half of the text.
        pairs: An STS task, a table of scored pairs or of queries and texts, docstrings, or none.
        data_dir: Folder of the STS data; "hub" reads them from the hub, at pinned revisions.
        frequencies: Lines of a word and its count (default: counted in the text).
        columns: Columns of a table that hold the text, as a,b. Found by their names by default.
        pooling: Pooling of an encoder that is not calibrated: a name, or a row such as "mean(1,2)".
        max_length: Longest sentence of such an encoder, in tokens (default: its own, else 128).
        device: Where the encoder runs: cpu, cuda, ...
        seed: Random seed for the samples.
        output: New folder for report.html and report.json (on the command line by default: report, or RUN/report; where
            that is there, report-2).
        figures: Folder to write each picture to, as a file of its own; needs matplotlib.
        format: Formats of these files: pdf, svg, png, or several, as pdf,png (default: pdf).
        open_report: Open report.html in the browser.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).

    Raises:
        UsageError: If an option cannot be used.
        DataError: If there are too few sentences, or data is missing or damaged.

    Examples:
        ```bash
        bertflow inspect
        bertflow inspect bert-base-uncased --pooling first-last-avg
        bertflow inspect runs/mine --pairs stsb-dev --data_dir data/sts
        bertflow inspect bert-base-uncased --text mine.txt --figures pictures --format pdf,png
        bertflow inspect my_encoder --text mine.txt --pairs none --compare "raw,abtt(7),whitening"
        ```
    """
    require_between(FEWEST, sentences=sentences)
    require_seed(seed)
    require_page(output, open_report)
    require_place(output, folder=True, new=True)
    require_files(text, frequencies)
    if columns and not isinstance(text, str | Path):
        raise UsageError("columns are those of a table of text. Give the table as text, or leave columns out.")
    if format and figures is None:
        raise UsageError("format is for the files of pictures in the folder figures. Give both or neither.")
    require_place(figures, folder=True, new=True, by="figures")
    kinds = (format or "pdf").split(",")
    if figures is not None:
        from bertflow import plots  # refuses before the work is done, not after

        for kind in kinds:
            lookup("format of a picture", plots.UNDATED, kind)
    from bertflow.geometry.inspecting import inspect_model

    given, options = (compare, sentences, pairs, data_dir, frequencies), {"pooling": pooling, "max_length": max_length}
    report = inspect_model(model, text, columns, *given, options, device, seed, progress)
    report = report if figures is None else report.draw(Path(figures), kinds, plots)
    return report if output is None else report.written(Path(output), open_report)


def report_place(parsed: Any) -> Mapping[str, Any]:
    """Where the command writes its report, in a new folder: beside a training run, or here."""
    return {"output": str(new_place((run_folder(parsed.model) or Path()) / "report"))}


def compare_words(
    words: Sequence[str] | None = None,
    sentences: Sequence[str] | None = None,
    *,
    study: str | Path | None = None,
    pooling: Sequence[str] | None = None,
    segment: int | None = None,
    model: str | Path | None = None,
    revision: str | None = None,
    output: str | Path | None = None,
    format: Literal["png", "svg"] | None = None,  # noqa: A002 - the command's word
) -> "kinds.StudyResult":
    """Compare static and contextual vectors of words.

    How alike are words by their static vectors (the embedding matrix), and in their contexts, layer by layer? Cosine
    and Euclidean distance, and whether offsets such as king - man and queen - woman agree, as vectors and in length.

    Args:
        words: Whole words; bank#2 is the second bank of a sentence. One word in several sentences is compared with
            itself. If not every sentence has all words, each word is taken from the sentences that have it.
        sentences: The contexts.
        study: A study instead of words and sentences: king-queen, bank (three banks in one sentence), bank-separate (in
            three), or a JSON file.
        pooling: Poolings of the pieces of a word, as mean(3) or mean(1,2) (default: the mean at every layer).
        segment: Segment of every token (default: 0).
        model: Hub id or folder (default: the built-in MiniLM).
        revision: Branch, tag or commit, for a hub id.
        output: Folder to write words.json and heatmaps to; needs matplotlib.
        format: File format of the heatmaps: png or svg (default: png).

    Raises:
        UsageError: If options do not go together, or the model has no such pooling or segment.
        DataError: If a word is not in its sentence, or a study is not complete.

    Examples:
        ```bash
        bertflow words --study king-queen --output words
        bertflow words bank --in "He sat on the bank of the river." --in "The bank lends money."
        bertflow words bank#1 bank#2 --in "The bank by the river is no bank for money."
        bertflow words king queen --in "The king met the queen." --in "The king likes Queen." --pooling "mean(1,2)"
        ```

        A FILE of a study is JSON:

        ```json
        {"mentions": [{"context": "court", "word": "king", "sentence": "..."}, ...],
         "pairs": [["king", "queen"]],
         "closer": [["king", "queen", "apple"]],
         "offsets": [["king", "man", "queen", "woman"]]}
        ```

        A mention may also have label, occurrence and segment. The pairs are
        followed from layer to layer (default: all). Closer asks: is king nearer
        to queen than to apple? Offsets: is king - man the same as queen - woman?
    """
    from bertflow.opening import load_transformer
    from bertflow.words.encoder import WordEncoder
    from bertflow.words.panels import run_study
    from bertflow.words.study import load_study, word_study

    by_hand = bool(words or sentences)
    if by_hand == (study is not None):
        got = "both" if by_hand else "neither"
        raise UsageError(f"Words with sentences (--in), or a study, are wanted; got {got}. Give one of them.")
    if by_hand and not (words and sentences):
        missing = "the words to look for are" if not words else "a sentence (--in) is"
        raise UsageError(f"Both words and sentences are needed, but {missing} missing. Give both.")
    if format and output is None:
        raise UsageError("format is for the pictures in the folder output. Give both or neither.")
    require_place(output, folder=True, new=True)
    chosen = word_study(words or (), sentences or (), segment) if study is None else load_study(study, segment)
    if output is not None:
        import bertflow.plots  # noqa: F401 - refuses before the work is done, not after
    for one in pooling or (None,):
        load_transformer(model, revision=revision, pooling=one, device="cpu")
    result = run_study(WordEncoder(model or embedded_encoder(), revision), chosen, pooling or ())
    if output is None:
        return result
    record = result.save(output, format or "png") / "words.json"
    return replace(result, written=f"Written: {record} and {len(result.panels) + 2} pictures beside it.")

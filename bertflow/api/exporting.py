"""Exporting: ``export_encoder`` writes an encoder for other tools, ``diagnose`` says why a server answers otherwise.

``adapt`` writes a query encoder for an index that stays as it is.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from typing_extensions import Unpack

from bertflow import kinds
from bertflow.encoder.options import EncoderOptions
from bertflow.errors import UsageError, require_between, require_one
from bertflow.places import require_files, require_place


def adapt(
    model: "str | Path | kinds.SentenceEncoder",
    text: Sequence[str] = (),
    *,
    output: str | Path,
    index: str | Path | None = None,
    queries: str | Path | None = None,
    columns: str | None = None,
    progress: bool | None = None,
    **options: Unpack[EncoderOptions],
) -> "kinds.Adapted":
    """Write a query encoder for an index that stays as it is: documents are embedded as before, queries are moved.

    Queries are short and documents long, so they lie in different places. Random spans of the documents (crops) are
    used as queries, and queries are moved by half of the difference of the two means. To undo it, use the old encoder.

    Args:
        model: Encoder of the index, raw or calibrated: anything that bertflow.load opens.
        text: Documents of the index: txt, tsv, csv, jsonl or parquet files, or hub:owner/name.
        output: Folder for the query encoder; must not exist or be empty.
        index: Read the documents from there instead: file that `search build` wrote, folder that `reindex` wrote, or
            address of a collection with a column of text.
        queries: File of real queries, one per line; they refine the crops.
        columns: Columns of tables that hold text, as a,b; of a collection its column (default: found by their names).
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
        options: ``EncoderOptions``.

    Returns:
        What it was fitted on, and how far queries are moved.

    Raises:
        UsageError: If not one of text and index is given, or the encoder moves queries already.
        DataError: If the text or the index cannot be used.

    Examples:
        ```bash
        bertflow adapt sentence-transformers/all-MiniLM-L6-v2 documents.txt --output query-encoder
        bertflow adapt MODEL --index faq.index --queries queries.txt --output query-encoder
        bertflow search ask faq.index "How do I stop it?" --model query-encoder
        ```
    """
    require_one(text=text, index=index)
    require_place(output, folder=True, new=True)
    from bertflow.retrieval.adapting import adapt_encoder

    return adapt_encoder(model, text, columns, index, queries, Path(output), progress, options)


def export_encoder(
    model: "str | Path | kinds.SentenceEncoder",
    output: str | Path,
    target: Literal["sentence-transformers", "onnx", "safetensors"],
    *,
    layout: str = "legacy",
    linearize: bool = False,
    text: str | Path | None = None,
    int8: bool = False,
    tasks: str | None = None,
    data_dir: str | Path | None = None,
    results: str | Path | None = None,
    name: str | None = None,
    license: str | None = None,  # noqa: A002 - the hub's word
    push: str | None = None,
    private: bool = False,
    without_text_hashes: bool = False,
    progress: bool | None = None,
    **options: Unpack[EncoderOptions],
) -> "kinds.Exported":
    """Write an encoder, calibrated or raw, for other tools.

    Every export holds a model card, and golden vectors that `bertflow doctor` compares a server with.

    Args:
        model: What to export: a run folder, a saved encoder, or any encoder (hub id or folder).
        output: Folder to write: new, empty, or an earlier export, which is replaced.
        target: sentence-transformers, onnx or safetensors.
        layout: Class paths of a sentence-transformers folder: legacy, which servers know, or modern.
        linearize: Replace a flow by the best affine map.
        text: Text to fit that map on (default: docstrings of installed packages).
        int8: With the target onnx: also write an approximate int8 graph, and its loss.
        tasks: STS tasks on which the map and the int8 graph are scored (default with data_dir: tuning).
        data_dir: Folder of the STS data (hub: download it).
        results: results.json of `bertflow evaluate`, for the model card.
        name: Name in the model card (default: the folder's name).
        license: License for the model card, as the hub spells it (default: that of the encoder's own README.md).
        push: Repository OWNER/NAME on the hub to upload to afterwards.
        private: With push: make a new repository private.
        without_text_hashes: Leave out the hashes by which an evaluation knows which sentences were seen.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
        options: ``EncoderOptions``.

    Raises:
        UnknownNameError: For an unknown target or layout.
        UsageError: If options contradict each other, the folder holds something else, the target cannot do what the
            encoder does, or the hub refuses.
        DataError: If what was written does not compute what the encoder computes.
        MissingExtraError: If the target needs a package that is not installed.

    Examples:
        ```bash
        bertflow export runs/mine --target sentence-transformers --output exported
        bertflow export runs/mine --target sentence-transformers --linearize --data_dir data/sts --output dense
        bertflow export runs/mine --target onnx --int8 --output onnx
        bertflow export runs/mine --target onnx --results scores/results.json --output mine --push me/mine
        ```
    """
    scored = bool(tasks or data_dir)
    for option, asked, only in (
        ("int8", int8, ("onnx",)),
        ("linearize", linearize, ("sentence-transformers", "onnx")),
        ("layout", layout != "legacy", ("sentence-transformers",)),
    ):
        if asked and target not in only:
            raise UsageError(f"--{option} is for the target {' or '.join(only)}, got {target}. Leave it out.")
    if text and not linearize:
        raise UsageError("--text is for --linearize. Add --linearize, or leave --text out.")
    if scored and not (int8 or linearize):
        raise UsageError("--tasks and --data_dir are for --linearize and --int8. For scores use `bertflow evaluate`.")
    if private and not push:
        raise UsageError("--private is for --push. Add --push OWNER/NAME, or leave it out.")
    require_files(text, results)
    from bertflow.export.targets import export

    suite = (tasks or "tuning", str(data_dir or "hub")) if scored else None
    kept = (results, name, license, push, private, without_text_hashes, progress)
    return export(model, options, Path(output), target, layout, linearize, text, int8, suite, *kept)


def diagnose(
    golden: str | Path,
    url: str | None = None,
    model: str | Path | None = None,
    model_name: str | None = None,
    key: str | None = None,
    normalized: bool = False,
    batch: int = 8,
) -> "kinds.Diagnosis":
    """Check the embeddings that a server, or a folder on this machine, makes of 32 golden sentences.

    It names what is wrong: the calibrator or the prompt is left out, or pooling, precision, length of the vectors or
    max_length differ. The exit code is 0 if everything is right, and 4 if something differs. Long sentences that a
    server refuses are left out, and a line says so.

    Args:
        golden: An exported folder, or its golden.json.
        url: Address of a server with an OpenAI-compatible /v1/embeddings.
        model: Instead of a server: an exported or saved folder, to be run here.
        model_name: Name of the model on the server; by default the one that it lists.
        key: Environment variable that holds the server's key.
        normalized: Whether vectors of unit length are expected.
        batch: Number of sentences in a request.

    Raises:
        UsageError: If not exactly one of ``url`` and ``model`` is given, or it cannot be asked.
        DataError: If there are no golden vectors, or the server answers with something else.

    Examples:
        ```bash
        bertflow doctor --golden exported --url http://localhost:8080
        bertflow doctor --golden golden.json --url https://embeddings.example.com/v1 --model_name mine --normalized
        bertflow doctor --golden exported --model exported
        ```
    """
    require_between(1, batch=batch)
    require_one(url=url, model=model)
    secret = os.environ.get(key) if key else None
    if key and not secret:
        raise UsageError(f"key names the environment variable {key}, which is not set. Set it.")
    from bertflow.export.golden import compare_folder, compare_server

    if model:
        return compare_folder(golden, Path(model), normalized)
    return compare_server(golden, str(url), model_name, secret, normalized, batch)

"""An export on the hub: its model card (what it is, how to load it, what was fitted and measured), and its upload.

The text is the template ``card.md``. Figures come only from a results.json of ``bertflow evaluate``, and only from rows
of the exported system: same weights, pooling, length, prompt and calibrator.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

from huggingface_hub import EvalResult, HfApi, ModelCard, ModelCardData
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

from bertflow.encoder.abstract import SentenceEncoder
from bertflow.errors import DataError, UsageError
from bertflow.export.onnx_encoder import read_export
from bertflow.records import read_record

IDENTITY = ("weights", "pooling", "max_length", "prompt", "query_prompt", "token_counts", "calibrator", "fitted_rows")
"""Keys that two descriptions of one system share."""
UNITS = ("spearman", "pearson", "hit@", "mrr", "roc_auc")
"""Parts of the names of metrics that tables show x 100."""
HTTP_ERRORS = cast(tuple[type[Exception], ...], HfHubHTTPError.__bases__)
"""Errors of the HTTP library that ``huggingface_hub`` uses, which differs between its versions; and OSError."""
REFUSALS: tuple[type[Exception], ...] = (*HTTP_ERRORS, HFValidationError, OfflineModeIsEnabled)


def make_card(
    system: SentenceEncoder,
    name: str,
    target: str,
    results: Sequence[Mapping[str, Any]] = (),
    ours: Sequence[str] = (),
    notes: Sequence[str] = (),
    license: str | None = None,  # noqa: A002 - the hub's word
    int8: str = "",
) -> ModelCard:
    """The card of an export.

    Args:
        system: The encoder that was exported.
        name: Its name.
        target: A row of ``TARGETS``.
        results: Rows of ``read_results``.
        ours: Names of bertflow's own modules in the folder.
        notes: Sentences at the end.
        license: License as the hub spells it; it follows from the encoder's, which bertflow does not know.
        int8: What the int8 graph costs; empty where there is none.
    """
    description = system.describe()
    data = ModelCardData(
        model_name=name,
        license=license,
        library_name="sentence-transformers" if target == "sentence-transformers" else "bertflow",
        pipeline_tag="sentence-similarity",
        tags=["bertflow", "sentence-embeddings", "feature-extraction"],
        base_model=description["encoder"] if str(description["encoder"]).count("/") == 1 else None,
        eval_results=[
            EvalResult(
                task_type="sentence-similarity",
                dataset_type=row["task"],
                dataset_name=f"{row['task']} ({row['aggregation']})",
                dataset_split=row["split"],
                metric_type=row["metric"],
                metric_name=row["metric"],
                metric_value=row["value"],
            )
            for row in results
        ]
        or None,
    )
    return ModelCard.from_template(
        data,
        template_str=(files("bertflow.export") / "card.md").read_text(encoding="utf-8"),
        name=name,
        target=target,
        encoder=description["encoder"],
        pooling=description["pooling"],
        calibrator=description.get("calibrator"),
        ours=" and ".join(ours),
        int8=int8,
        dim=system.dim,
        prompt=description["prompt"],
        query_prompt=description.get("query_prompt"),
        facts={key: f"`{value}`" for key, value in description.items() if value not in ("", None)},
        fitted=_fitted(system),
        rows=[_cells(row) for row in results],
        notes=list(notes),
    )


@dataclass(frozen=True)
class ResultsRecord:
    """What a model card takes from ``results.json``."""

    rows: list[dict[str, Any]]


def read_results(path: Path, description: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a results.json that belong to this system, without sub-sets.

    Raises:
        DataError: If there are none; the message names the systems that were found.
    """
    rows = read_record(path, ResultsRecord, "results.json of `bertflow evaluate`", "Evaluate again.").rows
    found = [row for row in rows if all(row.get(key) == description.get(key) for key in IDENTITY)]
    if not found:
        theirs = sorted({f"{row.get('system')} ({row.get('pooling')}, {row.get('calibrator', 'raw')})" for row in rows})
        raise DataError(
            f"{path} holds no results of this encoder ({description['pooling']}, "
            f"{description.get('calibrator', 'raw')}), but of {', '.join(theirs) or 'none'}. Evaluate what you export."
        )
    return [row for row in found if row.get("aggregation") != "subset"]


def _fitted(system: SentenceEncoder) -> str:
    if system.calibrator is None:
        return "Nothing was fitted."
    provenance, n = system.calibrator.provenance, system.calibrator.moments_.n
    if provenance is None:
        return f"{n:,} embeddings of unknown text."
    labels = f" Labels of {', '.join(provenance.labels)} were used." if provenance.labels else " No labels were used."
    known = "" if provenance.text_hashes is not None else " of unknown text"
    return f"{n:,} distinct sentences{known}.{labels}"


def _cells(row: Mapping[str, Any]) -> list[str]:
    scale = 100 if any(part in row["metric"] for part in UNITS) else 1
    interval = "" if row.get("ci_low") is None else f"{row['ci_low'] * scale:.2f} to {row['ci_high'] * scale:.2f}"
    seen = row["seen"] if isinstance(row["seen"], str) else f"{row['seen']:.0%}"
    value = f"{row['value'] * scale:.2f}"
    return [row["task"], row["split"], row["aggregation"], row["metric"], f"{row['n']:,}", value, interval, seen]


def push_export(folder: Path, repository: str, private: bool = False) -> str:
    """Upload an export as one commit, by ``huggingface_hub``: its tokens, its endpoint, its retries.

    Args:
        folder: A folder that ``bertflow export`` wrote.
        repository: ``owner/name``; made if it does not exist.
        private: Whether a new repository is private.

    Returns:
        The address of the commit.

    Raises:
        UsageError: If the hub refuses or cannot be reached, or the name is not valid.
    """
    require_name(repository)
    description = read_export(folder)["describe"]
    api = HfApi(library_name="bertflow")
    message = f"{description['pooling']} of {description['encoder']}, {description.get('calibrator', 'as it comes')}"
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        commit = api.upload_folder(folder_path=folder, repo_id=repository, commit_message=message)
    except REFUSALS as error:
        reason = " ".join(str(error).split()).split(". ")[0].rstrip(".")
        raise UsageError(
            f"{repository!r} could not be pushed to {api.endpoint}: {reason}. The export is complete in {folder}: "
            "check the name, the network and `hf auth login`, then push it again with `hf upload`."
        ) from error
    return str(commit.commit_url)


def require_name(repository: str) -> None:
    """Check that a repository is named ``owner/name``.

    Raises:
        UsageError: If it is not.
    """
    owner, slash, name = repository.partition("/")
    if not (owner and slash and name) or "/" in name:
        raise UsageError(f"--push wants OWNER/NAME, got {repository!r}.")

"""What is said about an export: to its author, in its model card, and on the hub.

The card's text is the template ``card.md``. Its figures come only from a results.json of ``bertflow evaluate``, and
only from rows of the exported system: same weights, pooling, length, prompt and calibrator.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

from huggingface_hub import EvalResult, HfApi, ModelCard, ModelCardData
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import DataError, UsageError, logger
from bertflow.export.approximation import Int8Loss
from bertflow.export.onnx_encoder import read_export
from bertflow.records import read_record
from bertflow.results import AbstractResult
from bertflow.tables import interval, number

IDENTITY = (
    "weights", "pooling", "max_length", "prompt", "query_prompt", "chunks", "token_counts", "calibrator", "fitted_rows"
)  # fmt: skip
"""Keys that two descriptions of one system share."""
REFUSALS = cast(tuple[type[Exception], ...], (*HfHubHTTPError.__bases__, HFValidationError))
"""Errors of an upload: those of ``huggingface_hub``'s HTTP library, which differs between its versions, and OSError."""


@dataclass(frozen=True, repr=False)
class Exported(AbstractResult):
    """An encoder that was written for other tools.

    Attributes:
        folder: Where it was written.
        target: A row of ``TARGETS``.
        describe: ``describe()`` of the encoder.
        ours: Modules of bertflow in it, for which sentence-transformers asks for a flag.
        facts: What was chosen or measured: layout and modules, or the difference from torch.
        stand_in: What an affine stand-in for a flow costs, in words; empty without one.
        int8: What int8 costs; None without it.
        distance: Distance of what sentence-transformers computes from the golden vectors, as a share of their length;
            None where that was not checked.
        commit: Address of the commit on the hub; empty if it was not pushed.
    """

    folder: Path
    target: str
    describe: Mapping[str, Any]
    ours: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    stand_in: tuple[str, ...] = ()
    int8: Int8Loss | None = None
    distance: float | None = None
    commit: str = ""

    def parts(self) -> Iterator[str]:
        """What a person reads."""
        what, facts = self.describe, self.facts
        names = ", ".join(sorted(path.name for path in self.folder.iterdir()))
        yield from self.stand_in
        yield f"encoder   {what['encoder']}, {what['pooling']}, {what.get('calibrator', 'as it comes')}"
        yield f"written   {self.folder} ({names})"
        if "modules" in facts:
            yield f"modules   {' -> '.join(['Transformer', *facts['modules']])}"
        if "chunks" in facts:
            yield f"chunks    {facts['long_texts']}"
        if self.ours:
            flag = f"trust_remote_code=True, as {' and '.join(self.ours)} is bertflow's"
            call = f"bertflow.load_sentence_transformer({str(self.folder)!r})"
            yield f"load      {call}; SentenceTransformer asks for {flag}"
        if "largest_difference_from_torch" in facts:
            yield f"checked   within {facts['largest_difference_from_torch']:.1e} of torch on unseen shapes"
        if self.int8:
            yield f"int8      {self.int8}"
        if self.distance is not None:
            yield f"checked   sentence-transformers gives the golden vectors within {self.distance:.1e} of their length"
        elif self.target == "sentence-transformers":
            yield "checked   not yet: sentence-transformers is not installed here; run `bertflow doctor` elsewhere"
        if self.commit:
            yield f"pushed    {self.commit}"


def make_card(
    system: SentenceEncoder,
    written: Exported,
    name: str = "",
    results: Sequence[Mapping[str, Any]] = (),
    license: str | None = None,  # noqa: A002 - the hub's word
    notes: Sequence[str] = (),
) -> ModelCard:
    """The card of an export.

    Args:
        system: The encoder that was exported.
        written: The export.
        name: Name in the card; by default the folder's.
        results: Measured rows (``read_results``).
        license: License as the hub spells it; by default what the encoder's own README.md says, if it says one.
        notes: Sentences at the end.
    """
    description, name = written.describe, name or written.folder.resolve().name
    said: dict[str, Any] = system.raw.spec.folder.license if isinstance(system.raw, TransformerEncoder) else {}
    if not (said or license):
        logger.warning("No license was found for %s, so the model card names none.", description["encoder"])
    data = ModelCardData(
        model_name=name,
        **({"license": license} if license else said),
        library_name="sentence-transformers" if written.target == "sentence-transformers" else "bertflow",
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
        target=written.target,
        describe=description,
        roles=system.has_roles,
        queries=system.role == "query",
        ours=" and ".join(written.ours),
        int8=str(written.int8 or ""),
        dim=system.dim,
        long_texts=written.facts.get("long_texts"),
        facts={key: f"`{value}`" for key, value in description.items() if value not in ("", None)},
        fitted=_fitted(system),
        rows=[_cells(row) for row in results],
        notes=list(notes),
        license=license,
        said=" ".join(f"`{value}`" for value in said.values()),
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
    metric, seen = row["metric"], row["seen"] if isinstance(row["seen"], str) else f"{row['seen']:.0%}"
    figures = [f"{row['n']:,}", number(row["value"], metric), interval(row.get("ci_low"), row.get("ci_high"), metric)]
    return [row["task"], row["split"], row["aggregation"], metric, *figures, seen]


def push_export(folder: Path, repository: str, private: bool = False) -> str:
    """Upload an export as one commit, by ``huggingface_hub``: its tokens, its endpoint, its retries.

    Args:
        folder: A folder that ``bertflow export`` wrote.
        repository: ``owner/name``; made if it does not exist.
        private: Whether a new repository is private.

    Returns:
        The address of the commit.

    Raises:
        UsageError: If the hub refuses or cannot be reached.
    """
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

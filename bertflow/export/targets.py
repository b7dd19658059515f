"""The folders that are written: one a target, complete or absent.

    sentence-transformers   a folder that SentenceTransformer loads
    onnx                    one graph and a tokenizer, nothing else needed
    safetensors             a folder that CalibratedEncoder.load reads

Every folder holds a model card, ``golden.json``, and ``bertflow_export.json``, which says what was exported. The card's
text is the template ``card.md``. Its figures come only from a results.json of ``bertflow evaluate``, and only from rows
of the exported system: same weights, pooling, length, prompt and calibrator.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
from huggingface_hub import EvalResult, HfApi, ModelCard, ModelCardData
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from bertflow.affine import AffineMap
from bertflow.calibrated import CalibratedEncoder
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.license import license_of
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import DataError, MissingExtraError, UsageError
from bertflow.evaluation.rows import interval, number
from bertflow.export.approximation import Int8Loss
from bertflow.export.exported import Exported
from bertflow.export.golden import Golden, distances, embed_locally
from bertflow.export.onnx_encoder import read_export, write_onnx
from bertflow.export.parts import Parts, make_golden
from bertflow.export.st_folder import OURS, write_sentence_transformer
from bertflow.files import atomic_folder, require_replaceable
from bertflow.progress import working
from bertflow.records import EXPORT, read_record, write_export_record
from bertflow.registry import lookup

logger = logging.getLogger("bertflow")

IDENTITY = (
    "weights", "pooling", "max_length", "prompt", "query_prompt", "chunks", "token_counts", "calibrator", "fitted_rows"
)  # fmt: skip
"""Keys that two descriptions of one system share."""
POOLED = {"mean": "their mean, each weighed by its number of tokens", "max": "their largest value in each coordinate"}
"""How chunks become one embedding, in words."""
REFUSALS = cast(tuple[type[Exception], ...], (*HfHubHTTPError.__bases__, HFValidationError))
"""With the errors of the HTTP library of ``huggingface_hub``, which differs between its versions; and OSError."""


require_earlier = partial(require_replaceable, sign=EXPORT, what="an earlier export")
"""Refuses a folder that an export would replace, unless it is one."""


@working("writing and checking the export")
def write_export(
    system: SentenceEncoder,
    folder: Path,
    target: str,
    layout: str = "legacy",
    int8: Callable[[Path], Int8Loss] | None = None,
    **card: Any,
) -> Exported:
    """Write an open encoder; ``export_encoder`` is this with everything before and after it.

    Args:
        system: The encoder.
        folder: New, empty, or an earlier export, which is replaced.
        target: A row of ``TARGETS``.
        layout: Layout of a sentence-transformers folder: legacy or modern.
        int8: Writes an int8 graph into the folder and gives its loss.
        card: For ``make_card``.
    """
    write = lookup("target", TARGETS, target)
    require_earlier(folder)
    given, chunks = system, system.describe().get("chunks") if target != "safetensors" else None
    with atomic_folder(folder) as aside, TemporaryDirectory() as scratch, TemporaryDirectory() as whole:
        if chunks:  # other tools embed a chunk, and split nothing
            system.raw.write(Path(whole))
            raw = TransformerEncoder(whole, device="cpu", chunks="")
            system = CalibratedEncoder(raw, system.calibrator, force=True) if system.calibrator else raw
        describe = system.describe()
        parts = Parts(system, Path(scratch), given)
        golden = make_golden(parts)
        facts = write(parts, aside, layout)
        if chunks:
            facts |= {"chunks": chunks, "long_texts": _long_texts(chunks, system, parts.max_length)}
        golden.write(aside)
        versions = {package: version(package) for package in ("bertflow", "torch", "transformers")}
        record = {"format": 1, "target": target, "describe": describe, "dim": system.dim, "facts": facts}
        write_export_record(aside, {**record, "versions": versions})
        ours = tuple(module for module in facts.get("modules", ()) if module in OURS)
        written = Exported(folder, target, describe, ours, facts, int8=int8(aside) if int8 else None)
        make_card(system, written, **card).save(aside / "README.md")
    return written


def _long_texts(chunks: str, system: SentenceEncoder, cut: int) -> str:
    """What who uses an export has to do for long texts, since other tools do not split them."""
    pooled = POOLED[chunks.rpartition(":")[2]]
    equal = "mean" in chunks and (system.calibrator is None or isinstance(system.calibrator.map, AffineMap))
    before = "" if equal else " bertflow itself pools before the calibrator, and so has somewhat other numbers."
    return f"what was written cuts at {cut} tokens: split a text by {chunks}, embed its chunks, take {pooled}.{before}"


def _safetensors(parts: Parts, aside: Path, layout: str) -> dict[str, Any]:
    if parts.system.calibrator is None:
        raise UsageError(
            "The target safetensors is for a calibrated encoder, this one is raw. Save it with encoder.save(folder)."
        )
    CalibratedEncoder(parts.encoder, parts.system.calibrator, force=True).write(aside)
    return {}


TARGETS: Mapping[str, Callable[[Parts, Path, str], dict[str, Any]]] = {
    "sentence-transformers": write_sentence_transformer,
    "onnx": write_onnx,
    "safetensors": _safetensors,
}
"""What can be written: given the encoder's parts, the folder and the layout, it returns the facts for the record."""


def golden_distance(folder: Path) -> float | None:
    """Distance of what sentence-transformers computes from the golden vectors; None if it is not installed."""
    golden = Golden.read(folder)
    try:
        found = embed_locally(folder, golden.sentences)
    except MissingExtraError:
        return None
    return float(distances(found, np.array(golden.vectors, np.float32)).max())


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
    said: dict[str, Any] = license_of(system.raw._folder) if isinstance(system.raw, TransformerEncoder) else {}
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


def require_name(repository: str) -> None:
    """Check that a repository is named ``owner/name``.

    Raises:
        UsageError: If it is not.
    """
    owner, slash, name = repository.partition("/")
    if not (owner and slash and name) or "/" in name:
        raise UsageError(f"--push takes OWNER/NAME, got {repository!r}.")

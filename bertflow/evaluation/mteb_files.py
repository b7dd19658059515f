"""What every system thought of every pair, as files: predictions, and results in the layout of mteb.

    predictions.csv                                   a line a pair, beside what people thought
    results/<org>__<name>/<revision>/<Task>.json      one for each task that mteb has
                                     model_meta.json  what the system is

mteb itself is not needed. It scores a task as one set ("all"), rounds to six decimals, and calls Spearman of the cosine
the main score. Its copies of STS12-16 hold other text (lower-cased, tokenized) than the authors' files, so a file says
which it was made on: ``dataset_revision`` is the pinned one for pairs from the hub, else ``local-<text form>``. SICK-R
there is all 9,927 pairs: our ``sickr`` is another task and has no file.
"""

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from bertflow.data.sts_tasks import STS12_16, TASKS
from bertflow.data.tables import parse_hub_split
from bertflow.evaluation.aggregation import ScoredTask
from bertflow.evaluation.score_table import Row, SystemFacts
from bertflow.files import to_json
from bertflow.tables import to_csv
from bertflow.text_keys import digest

LAYOUT_VERSION = "2.26.24"
"""The mteb whose layout and definitions these files follow; it is what they give as ``mteb_version``."""
DECIMALS = 6
NOT_IN_NAMES = re.compile(r"[^\w.+()-]+")
"""Parts of a system's name that are spelled otherwise in a path."""
PREDICTED_DECIMALS = 8
"""Decimals of a similarity: finer than the float32 it was made from."""
MAIN_SCORE = "cosine_spearman"
UNKNOWN = (
    *("release_date", "languages", "n_parameters", "memory_usage_mb", "license", "open_weights"),
    *("public_training_code", "public_training_data"),
)
"""Fields of mteb's ``ModelMeta`` that bertflow does not know."""
UNMEASURED = {"evaluation_time": None, "kg_co2_emissions": None}
"""Fields of mteb's results that bertflow does not measure."""


MTEB_TASKS: Mapping[str, tuple[str, str]] = {
    **{task: (task.upper(), "test") for task in STS12_16},
    "stsb": ("STSBenchmark", "test"),
    "stsb-dev": ("STSBenchmark", "validation"),
    "stsb-train": ("STSBenchmark", "train"),
    "sickr-all": ("SICK-R", "test"),
}
"""The tasks whose pairs are mteb's -> mteb's name of the task, and of its split."""
PARTS: Mapping[str, tuple[str, ...]] = {
    "sickr": ("SICK-R",),
    "sickr-train": ("SICK-R",),
    "sickr-trial": ("SICK-R",),
    "tuning": ("SICK-R", "STSBenchmark"),
}
"""Tasks that hold a part of the pairs of mteb's."""


def training_datasets(
    seen: Mapping[str, float | None], labels: Collection[str], of_encoder: Collection[str] | None
) -> set[str] | None:
    """What mteb calls ``training_datasets``: the tasks whose sentences a system was fitted on, with labels or not.

    Args:
        seen: Task -> the share of its sentences that were in the fitting text; None where that is unknown.
        labels: Names of labeled data the system was trained on.
        of_encoder: mteb tasks that the encoder's own weights were trained on; None if unknown.

    Returns:
        None where nothing was found and something is unknown: an empty set would claim that nothing was seen.
    """
    contaminated = [*labels, *(task for task, share in seen.items() if share)]
    known = {**PARTS, **{task: (name,) for task, (name, _) in MTEB_TASKS.items()}}
    found = {name for task in contaminated for name in known.get(task, ())} | set(of_encoder or ())
    unknown = of_encoder is None or None in seen.values()
    return None if unknown and not found else found


def revision_of(facts: SystemFacts) -> str:
    """A fingerprint of the description and of the fitting text: equal systems have one, others another."""
    text = "unknown" if facts.hashes is None else digest(facts.hashes)
    return hashlib.sha256((to_json(dict(facts.description)) + text).encode()).hexdigest()[:16]


def model_meta(facts: SystemFacts, name: str, dim: int | None, trained_on: set[str] | None) -> dict[str, Any]:
    """The fields of mteb's ``ModelMeta`` but its loader; what bertflow does not know is None.

    Args:
        facts: What the system says about itself.
        name: "organization/model".
        dim: Width of its embeddings, where that is known.
        trained_on: Result of ``training_datasets``.
    """
    known = facts.description
    own = {"name": name, "revision": revision_of(facts), "max_tokens": known.get("max_length"), "embed_dim": dim}
    fixed = {"framework": ["PyTorch"], "similarity_fn_name": "cosine", "modalities": ["text"]}
    said = {"use_instructions": bool(known.get("prompt")), "training_datasets": trained_on}
    return dict.fromkeys(UNKNOWN) | own | fixed | said


def mteb_files(systems: Sequence[SystemFacts], rows: Sequence[Row]) -> dict[str, str]:
    """The files of all systems and all tasks that mteb has, as text by their relative path.

    Args:
        systems: The systems; one that embeds nothing is not a model, and has no files.
        rows: Scores under the cosine.
    """
    files: dict[str, str] = {}
    for facts in (one for one in systems if one.embeds):
        own = [row for row in rows if row.system == facts.name and row.aggregation == "all" and row.task in TASKS]
        name = f"bertflow/{NOT_IN_NAMES.sub('_', facts.name)}"
        folder = f"results/{name.replace('/', '__')}/{revision_of(facts)}"
        trained = training_datasets({row.task: row.seen for row in own}, facts.labels, None)
        card = model_meta(facts, name, None, trained) | {"loader": None}
        card["training_datasets"] = None if trained is None else sorted(trained)
        files[f"{folder}/model_meta.json"] = to_json(card)
        for mteb_task, result in _results(own).items():
            files[f"{folder}/{mteb_task}.json"] = to_json(result)
    return files


def _results(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """One record a task of mteb; the splits of STS-B share one."""
    results: dict[str, dict[str, Any]] = {}
    for task, (name, split) in MTEB_TASKS.items():
        own = [row for row in rows if row.task == task]
        if not any(row.metric == MAIN_SCORE for row in own):
            continue
        hub = TASKS[task].hub if own[0].source.startswith("hub:") else None
        pinned = parse_hub_split(hub)["revision"] if hub else None
        revision = pinned or f"local-{own[0].text_form}"
        record: dict[str, Any] = {"dataset_revision": revision, "task_name": name, "mteb_version": LAYOUT_VERSION}
        results.setdefault(name, {**record, **UNMEASURED, "scores": {}})["scores"][split] = [_scores(own)]
    return results


def _scores(rows: Sequence[Row]) -> dict[str, Any]:
    found = {row.metric: round(row.value, DECIMALS) for row in rows}
    main = {"spearman": found["cosine_spearman"], "pearson": found["cosine_pearson"], "main_score": found[MAIN_SCORE]}
    return {**found, **main, "hf_subset": "default", "languages": ["eng-Latn"], "mteb_version": LAYOUT_VERSION}


def predictions_csv(systems: Sequence[SystemFacts], tasks: Sequence[ScoredTask]) -> str:
    """One line a pair, one column a system, in the order of the tasks' files."""
    header = ["task", "split", "subset", "sentence1", "sentence2", "gold", *(system.name for system in systems)]
    rows = []
    for task in tasks:
        pairs = task.pairs
        columns = zip(pairs.subsets, pairs.first, pairs.second, pairs.target, task.similarities.T, strict=True)
        for subset, first, second, gold, similarities in columns:
            scores = [f"{similarity:.{PREDICTED_DECIMALS}f}" for similarity in similarities]
            rows.append([pairs.task, pairs.split, subset, first, second, f"{gold:g}", *scores])
    return to_csv(header, rows)

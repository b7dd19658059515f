"""The model card: what this is, how to load it, what it was fitted on, and what was measured. Nothing is invented.

Figures come from a results.json of ``bertflow evaluate`` alone, and only from rows whose system is the exported one:
same weights, pooling, length, prompt and calibrator.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from bertflow.calibrated import CalibratedEncoder
from bertflow.errors import DataError
from bertflow.export.parts import Exportable
from bertflow.files import read_json
from bertflow.registry import lookup

IDENTITY = ("weights", "pooling", "max_length", "prompt", "token_counts", "calibrator", "fitted_rows")
"""What two descriptions share when they are of one system."""
UNITS = ("spearman", "pearson", "hit@", "mrr", "roc_auc")
"""Metrics, by a part of their name, that tables give x 100."""

USAGE: Mapping[str, str] = {
    "sentence-transformers": """\
```python
{% if ours %}import bertflow  # pip install 'bertflow[st]'

model = bertflow.load_sentence_transformer("{{ name }}")
{% else %}from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{{ name }}")
{% endif %}embeddings = model.encode(["A sentence.", "Another one."])
```
{% if ours %}
Its {{ ours }} is a module of bertflow, so `SentenceTransformer("{{ name }}")` asks for `trust_remote_code=True`, which
runs the installed bertflow and no code of this folder. Servers that do not run it (text-embeddings-inference, vLLM)
leave it out without an error: give them the ONNX export, and ask `bertflow doctor`.
{% endif %}""",
    "onnx": """\
```python
import numpy as np
import onnxruntime
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("tokenizer.json")  # cuts and pads by itself
session = onnxruntime.InferenceSession("onnx/model.onnx")
rows = tokenizer.encode_batch([{% if prompt %}{{ prompt | tojson }} + {% endif %}"A sentence."])
embeddings = session.run(["sentence_embedding"], {
    "input_ids": np.array([row.ids for row in rows]),
    "attention_mask": np.array([row.attention_mask for row in rows]),
})[0]
```
{% if int8 %}
`onnx/model_int8.onnx` is approximate: {{ int8 }}
{% endif %}""",
    "safetensors": """\
```python
import bertflow

encoder = bertflow.CalibratedEncoder.load("{{ name }}")
embeddings = encoder.encode(["A sentence.", "Another one."])
```
""",
}
"""For each target, how it is used."""

TEMPLATE = """\
---
{{ card_data }}
---

# {{ name }}

{{ summary }} Embeddings are {{ dim }} wide, and not scaled to unit length.

## Use

{{ usage }}
{% if prompt %}Every sentence was embedded with {{ prompt | tojson }} in front of it.

{% endif %}`golden.json` holds 32 sentences and what must come out of them: `bertflow doctor --golden FOLDER --url URL`
compares a server with it.

## What it is

| | |
| --- | --- |
{% for key, value in facts.items() %}| {{ key }} | {{ value }} |
{% endfor %}
## What it was fitted on

{{ fitted }}

## Measured
{% if rows %}
| task | split | aggregation | metric | n | value | 95 % interval | seen |
| --- | --- | --- | --- | ---: | ---: | --- | --- |
{% for row in rows %}| {{ row | join(' | ') }} |
{% endfor %}
"seen" is the share of the scored sentences that stood in the fitting text.
{% else %}
Nothing was measured for this card.
{% endif %}{% for note in notes %}
{{ note }}
{% endfor %}"""


def make_card(
    system: Exportable,
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
        system: What was exported.
        name: What it is called.
        target: What was written.
        results: Rows of ``read_results``.
        ours: Names of bertflow's own modules in it.
        notes: Sentences to end with.
        license: As the hub spells it; it follows from the encoder's, which bertflow does not know.
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
        eval_results=[_eval_result(row) for row in results] or None,
    )
    return ModelCard.from_template(
        data,
        template_str=TEMPLATE.replace("{{ usage }}", lookup("target", USAGE, target)),
        name=name,
        summary=_summary(system),
        ours=" and ".join(ours),
        int8=int8,
        dim=system.dim,
        prompt=description["prompt"],
        facts={key: f"`{value}`" for key, value in description.items() if value not in ("", None)},
        fitted=_fitted(system),
        rows=[_cells(row) for row in results],
        notes=list(notes),
    )


def read_results(path: Path, description: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a results.json that are of this system, sub-sets left out.

    Raises:
        DataError: If there are none; the message says whose results they are.
    """
    record = read_json(path)
    rows = record.get("rows") if isinstance(record, dict) else None
    if not isinstance(rows, list):
        raise DataError(f"{path} should be a results.json of `bertflow evaluate`, but holds no rows. Evaluate again.")
    found = [row for row in rows if all(row.get(key) == description.get(key) for key in IDENTITY)]
    if not found:
        theirs = sorted({f"{row.get('system')} ({row.get('pooling')}, {row.get('calibrator', 'raw')})" for row in rows})
        raise DataError(
            f"{path} holds no results of this encoder ({description['pooling']}, "
            f"{description.get('calibrator', 'raw')}), but of {', '.join(theirs) or 'none'}. Evaluate what you export."
        )
    return [row for row in found if row.get("aggregation") != "subset"]


def _summary(system: Exportable) -> str:
    description = system.describe()
    base = f"`{description['encoder']}`, pooled by `{description['pooling']}`"
    if not isinstance(system, CalibratedEncoder):
        return f"{base}, as it comes."
    return f"{base}, then calibrated without labels by `{description['calibrator']}`."


def _fitted(system: Exportable) -> str:
    if not isinstance(system, CalibratedEncoder):
        return "Nothing was fitted."
    provenance, n = system.calibrator.provenance, system.calibrator.moments_.n
    if provenance is None:
        return f"{n:,} embeddings whose text is not known."
    labels = f" Labels of {', '.join(provenance.labels)} were used." if provenance.labels else " No labels were used."
    known = "" if provenance.text_hashes is not None else ", whose text is not known"
    return f"{n:,} distinct sentences{known}.{labels}"


def _cells(row: Mapping[str, Any]) -> list[str]:
    scale = 100 if any(part in row["metric"] for part in UNITS) else 1
    interval = "" if row.get("ci_low") is None else f"{row['ci_low'] * scale:.2f} to {row['ci_high'] * scale:.2f}"
    seen = row["seen"] if isinstance(row["seen"], str) else f"{row['seen']:.0%}"
    value = f"{row['value'] * scale:.2f}"
    return [row["task"], row["split"], row["aggregation"], row["metric"], f"{row['n']:,}", value, interval, seen]


def _eval_result(row: Mapping[str, Any]) -> EvalResult:
    return EvalResult(
        task_type="sentence-similarity",
        dataset_type=row["task"],
        dataset_name=f"{row['task']} ({row['aggregation']})",
        dataset_split=row["split"],
        metric_type=row["metric"],
        metric_name=row["metric"],
        metric_value=row["value"],
    )

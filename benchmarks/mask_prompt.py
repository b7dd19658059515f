"""What the mask of a template is worth beside the mean of the tokens, on small plain masked-word models.

    python benchmarks/mask_prompt.py --data_dir DATA --roberta FOLDER

MLM4 (``encoders/mlm-4x256``) and, where its folder is given, the RoBERTa of ``roberta.py``; PromptBERT's template for
BERT, last layer. Each pooling is scored raw, whitened, and through the flow of the preset ``default`` (one seed), all
fitted on the scored sentences without their labels (transductive). Spearman x 100: the mean of the sub-sets of
``tuning``; with --test the mean over sts7 as well. Writes mask_prompt.json and mask_prompt.md beside this file.
"""

import argparse
import json
import logging
import tempfile
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from closed_forms import CLOSED_FORMS, applied
from material import Material, Vectors
from seeds import table

from bertflow.data.sts_tasks import SUITES
from bertflow.encoder.template import DEFAULT
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import NullDirectionWarning
from bertflow.files import write_json, write_text
from bertflow.moments import Moments
from bertflow.training.fitting import fit_flow

HERE = Path(__file__).parent
POOLINGS: Mapping[str, tuple[str, ...]] = {"mean": ("mean", "first-last-avg"), "mask": ("mask", "denoised-mask")}
"""By the pooling with which the encoder is opened: that decides whether there is a template."""
COLUMNS = ("mean cosine", "raw", "whitening", "flow")
NAMES = {"mlm4": "MLM4", "roberta": "RoBERTa"}
logger = logging.getLogger("mask_prompt")


def embeddings(folder: str, sentences: list[str]) -> Iterable[tuple[str, Vectors]]:
    """Each pooling with its embeddings; two come from one pass."""
    for opened, poolings in POOLINGS.items():
        yield from TransformerEncoder(folder, opened, device="cpu").encode_poolings(sentences, poolings).items()


def mean_cosine(x: Vectors) -> float:
    """Of all pairs of different rows."""
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    return float((np.square(unit.sum(0, dtype=np.float64)).sum() - len(x)) / (len(x) * (len(x) - 1)))


def measured(material: Material, x: Vectors, plain: Moments) -> list[float]:
    """One row of the table; ``plain`` are the moments of the plain mean."""
    maps = [CLOSED_FORMS["whitening"](Moments.of(x)), fit_flow(x, random_state=0, plain=plain).map]
    scores = [float(np.mean(material.sts(z))) for z in (x, *(applied(one, x) for one in maps))]
    return [round(value, 2) for value in (mean_cosine(x), *scores)]


def to_markdown(found: Mapping[str, Mapping[str, Mapping[str, list[float]]]]) -> str:
    """A table for each set of tasks and model."""
    fit = "Fitted on the scored sentences, no labels; one seed of the flow."
    parts = [f"One template, not chosen: `{DEFAULT}`. {fit} {ABSENT}"]
    for tasks, models in found.items():
        for name, kept in models.items():
            rows = {pooling: kept[pooling] for poolings in POOLINGS.values() for pooling in poolings if pooling in kept}
            parts += ["", f"## {NAMES[name]}, {tasks}", "", *table("pooling", COLUMNS, rows, "{:.2f}".format)]
    return "\n".join(parts) + "\n"


ABSENT = "BERT-base and RoBERTa-base were not run."


def main() -> None:
    """Embed, fit, score, write what there is after every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True, help="holds sts, text, nli and encoders")
    parser.add_argument("--roberta", type=Path, help="folder that roberta.py wrote; absent: its rows are left out")
    parser.add_argument("--test", action="store_true", help="score sts7 as well")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "bertflow-material")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    warnings.simplefilter("ignore", NullDirectionWarning)
    folders = {"mlm4": options.data_dir / "encoders" / "mlm-4x256", "roberta": options.roberta}
    if options.roberta is None:
        logger.info("The rows of the RoBERTa are left out: --roberta FOLDER.")
    place = HERE / "mask_prompt.json"
    found = json.loads(place.read_text()) if place.exists() else {}
    for tasks in ("tuning", "sts7") if options.test else ("tuning",):
        material = Material(options.data_dir, options.cache, SUITES.get(tasks, [tasks]))
        for name, folder in folders.items():
            plain = None
            for pooling, x in embeddings(str(folder), material.sentences) if folder else ():
                plain = plain or Moments.of(x)  # the first pooling is the mean
                rows = found.setdefault(tasks, {}).setdefault(name, {})
                rows[pooling] = measured(material, x, plain)
                logger.info("%s, %s, %s: %s", tasks, name, pooling, rows[pooling])
                write_json(place, found)
                write_text(HERE / "mask_prompt.md", to_markdown(found))


if __name__ == "__main__":
    main()

"""Is it the recipe, or this code? The stage of configs/nli-siamese.yaml by sentence-transformers' own trainer.

    pip install accelerate                                  # which that trainer needs
    python benchmarks/nli_sbert.py --data_dir DATA --work FOLDER

A plain BERT of 4 blocks (``encoders/mlm-4x256``), mean pooling, learns from the entailed pairs of SNLI dev and test by
in-batch negatives: as many steps, the same learning rate, warm-up, decay and clip norm, float32. Two comparisons:

    same steps   no dropout, the same pairs in the same order: the embeddings should be the same
    seeds        dropout, and each loop's own order: the scores should differ by no more than those of two seeds do

Scored on ``tuning`` alone, raw and whitened, Spearman x 100. What was trained is not trained again. Writes
nli_sbert.json and nli_sbert.md beside this file.
"""

import argparse
import json
import logging
import math
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from nli import Remembering, between, figures
from nli_ablation import snli, whitened

from bertflow.data.pairs import Pairs, unique_sentences
from bertflow.data.sts import load_sts
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.evaluation.evaluating import evaluate_sts
from bertflow.files import write_json, write_text
from bertflow.finetuning import FinetuneRecipe
from bertflow.finetuning.fitting import SiameseFit, fit_siamese

HERE = Path(__file__).parent
CHANGES: Mapping[str, Any] = {"objective": "in-batch-negatives", "learning_rate": 5e-5, "held_out": 0.0}
LOOPS = ("bertflow", "sentence-transformers")
SEEDS = (0, 1)
DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")
logger = logging.getLogger("nli")


def write_start(model: Path, folder: Path, dropout: bool) -> Path:
    """A copy of the model that everybody opens in float32; without dropout if it is not wanted."""
    if not folder.exists():
        shutil.copytree(model, folder, copy_function=shutil.copyfile)
        folder.chmod(0o755)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8")) | {"dtype": "float32"}
        write_json(folder / "config.json", config if dropout else config | dict.fromkeys(DROPOUTS, 0.0))
    return folder


def by_bertflow(start: Path, pairs: Pairs, seed: int, folder: Path) -> None:
    """One epoch by ``fit_siamese``."""
    encoder = TransformerEncoder(start, "mean", max_length=64, device="cpu")
    fit_siamese(encoder, pairs, seed=seed, trainer={"accelerator": "cpu"}, **CHANGES).save(folder)


def by_sentence_transformers(start: Path, pairs: Pairs, seed: int, folder: Path, order: list[list[int]] | None) -> None:
    """One epoch by ``SentenceTransformerTrainer``; its own order where none is given."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.base.sampler import DefaultBatchSampler
    from sentence_transformers.sentence_transformer import losses, modules

    class Given(DefaultBatchSampler):
        def __iter__(self) -> Iterator[list[int]]:
            yield from order or ()

    recipe = FinetuneRecipe(**CHANGES)
    words = modules.Transformer(str(start))
    model = SentenceTransformer(modules=[words, modules.Pooling(words.get_embedding_dimension(), "mean")], device="cpu")
    model.max_seq_length = recipe.max_length
    steps = len(pairs) // recipe.batch_size
    arguments = SentenceTransformerTrainingArguments(
        str(folder.with_suffix(".trainer")),
        seed=seed,
        max_steps=steps,
        per_device_train_batch_size=recipe.batch_size,
        learning_rate=recipe.learning_rate,
        warmup_steps=math.ceil(recipe.warmup * steps),
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.clip_norm,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **({"batch_sampler": Given} if order else {}),
    )
    data = Dataset.from_dict({"anchor": list(pairs.first), "positive": list(pairs.second)})
    loss = losses.MultipleNegativesRankingLoss(model, scale=recipe.scale)
    SentenceTransformerTrainer(model=model, args=arguments, train_dataset=data, loss=loss).train()
    model.max_seq_length = 128  # as all are scored
    model.save(str(folder))


def trained(options: argparse.Namespace, pairs: Pairs) -> dict[str, Path]:
    """Every row's folder, trained unless it is there."""
    model = options.data_dir / "encoders" / "mlm-4x256"
    start, steady = (write_start(model, options.work / name, name == "start") for name in ("start", "steady"))
    fresh = SiameseFit(TransformerEncoder(steady, "mean", device="cpu"), pairs, FinetuneRecipe(**CHANGES))
    order = [rows.tolist() for rows in fresh.data.train_dataloader()]
    plans = {"same steps": (steady, 0, order)} | {f"seed {seed}": (start, seed, None) for seed in SEEDS}
    folders = {"start": start}
    for name, (model, seed, given) in plans.items():
        for loop in LOOPS:
            row = f"{loop}, {name}"
            folders[row] = options.work / row.replace(", ", "-").replace(" ", "-")
            if folders[row].exists():
                continue
            logger.info("training %s", row)
            if loop == LOOPS[0]:
                by_bertflow(model, pairs, seed, folders[row])
            else:
                by_sentence_transformers(model, pairs, seed, folders[row], given)
    return folders


def measured(options: argparse.Namespace, folders: Mapping[str, Path]) -> dict[str, Any]:
    """Scores on ``tuning``, differences of the two loops, and how far their embeddings are apart."""
    sts = options.data_dir / "sts"
    text = unique_sentences([load_sts("tuning", sts)])
    encoders = {row: Remembering(folder, options.work) for row, folder in folders.items()}
    systems: dict[str, SentenceEncoder] = {}
    for row, encoder in encoders.items():
        systems |= {f"{row} raw": encoder, f"{row} whitening": whitened(encoder, text)}
    report, forms = evaluate_sts(systems, "tuning", sts), ("raw", "whitening")
    values = figures(report, "tuning")
    rows = {row: {form: values[f"{row} {form}"]["value"] for form in forms} for row in encoders}
    x, ours, theirs = (encoders[row].encode(text) for row in ("start", *(f"{loop}, same steps" for loop in LOOPS)))
    lengths = np.linalg.norm(ours, axis=1)
    names = ("same steps", *(f"seed {seed}" for seed in SEEDS))
    return {
        "tuning": rows,
        "differences": [
            between(report, "tuning", *(f"{loop}, {name} {form}" for loop in LOOPS)) for name in names for form in forms
        ],
        "from start": [between(report, "tuning", f"{loop}, same steps raw", "start raw") for loop in LOOPS],
        "seeds": {
            f"{loop} {form}": [
                round(float(of([rows[f"{loop}, seed {seed}"][form] for seed in SEEDS])), 2)
                for of in (np.mean, lambda found: np.std(found, ddof=1))
            ]
            for loop in LOOPS
            for form in forms
        },
        "same steps": {
            "distance of the two loops": float((np.linalg.norm(ours - theirs, axis=1) / lengths).max()),
            "distance from the start": float(np.median(np.linalg.norm(ours - x, axis=1) / lengths)),
        },
    }


def to_markdown(found: Mapping[str, Any]) -> str:
    """The tables."""
    lines = ["| tuning | raw | whitening |", "|---|---:|---:|"]
    lines += [f"| {name} | {row['raw']:.2f} | {row['whitening']:.2f} |" for name, row in found["tuning"].items()]
    lines += ["", "| seeds | mean | standard deviation |", "|---|---:|---:|"]
    lines += [f"| {name} | {mean:.2f} | {spread:.2f} |" for name, (mean, spread) in found["seeds"].items()]
    lines += ["", "| difference | | 95 % |", "|---|---:|---|"]
    for row in (*found["differences"], *found["from start"]):
        low, high = row["ci"]
        lines.append(f"| {row['first']} - {row['second']} | {row['difference']:+.2f} | {low:+.2f} to {high:+.2f} |")
    lines += ["", "| the same steps, share of an embedding's length | |", "|---|---:|"]
    lines += [f"| {name} | {value:.1e} |" for name, value in found["same steps"].items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Train, score, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True, help="holds sts, nli and encoders")
    parser.add_argument("--work", type=Path, required=True, help="where encoders and embeddings are kept")
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    options.work.mkdir(parents=True, exist_ok=True)
    every = snli(options.data_dir).of_class("entailment")
    # Each text once: a text that came twice in a batch would be a wrong answer to itself in the other loop.
    counts = Counter((*every.first, *every.second))
    once = [
        row for row, both in enumerate(zip(every.first, every.second, strict=True)) if all(counts[t] == 1 for t in both)
    ]
    pairs = every.taken(np.array(once)).sample(options.steps * FinetuneRecipe().batch_size, 0)
    logger.info("%d pairs of %d", len(pairs), len(every))
    found = {"pairs": len(pairs), **measured(options, trained(options, pairs))}
    write_json(HERE / "nli_sbert.json", found)
    write_text(HERE / "nli_sbert.md", to_markdown(found))
    logger.info("%s", to_markdown(found))


if __name__ == "__main__":
    main()

"""How good the three recipes are where BERT-base cannot be run: the table of the README.

    python benchmarks/standins.py --data_dir DATA [--more NAME=FOLDER]

Inner layers of a tuned MiniLM stand in for a raw BERT (four rows of one model); MLM4 is a small plain BERT. Systems:

    raw         the stand-in's own pooling
    closed      the best closed form over its own pooling, sif and soft-sif: which one, was chosen on ``tuning`` (for
                search on the choosing half of the docstring queries) in the same setting
    hindsight   the best of them on what is reported itself: what no honest choice reaches
    default-1   the flow of the second round on the soft-sif pooling of the same layers
    similarity, both, search    the recipes of the third round (``RECIPES``)

STS is the mean over seven test sets of Spearman x 100, fitted on the 26,173 test sentences without labels
(transductive) or on a mixture that holds none of them (inductive). Search is hit@1 of the reporting half of the
docstring queries among all 2,500 texts, fitted on these texts (collection) or on other docstrings. Intervals are 95 %,
recipes a mean over seeds, from a bootstrap of sentences (STS) or queries. A flow that several recipes share is fitted
once. Writes standins.json and standins.md beside this file.
"""

import argparse
import logging
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from closed_forms import CLOSED_FORMS, applied
from material import SEARCHED, SETTINGS, STAND_INS, TUNED, Embedded, Material, StandIn, Vectors

from bertflow.bands import HEAD
from bertflow.calibration.blocks import Blocks
from bertflow.calibration.spelling import parse_calibrator
from bertflow.data.sts_tasks import SUITES
from bertflow.encoder.pooling import parse_pooling
from bertflow.errors import NullDirectionWarning
from bertflow.evaluation.figures import suite_figures
from bertflow.evaluation.significance import generator, pair_weights
from bertflow.files import write_json, write_text
from bertflow.moments import Moments
from bertflow.progress import unsaid
from bertflow.training.fitting import fit_flow
from bertflow.training.rows import CALIBRATED, KEPT_1, STEEP, STEEP_1, effective_rank, participation_ratio

HERE = Path(__file__).parent
ABOVE = (
    "Inner layers of a tuned MiniLM standing in for a raw BERT; BERT-base not run here; "
    "the paper's Table 2 not reproduced."
)
STS, SEARCH = SETTINGS[:2], SEARCHED
Systems = dict[str, Any]
"""Embeddings of what is scored; for search, of queries and of texts."""


@dataclass(frozen=True)
class Purpose:
    """A recipe of the third round.

    Attributes:
        pooling: Attribute of a ``StandIn``.
        tail: Weight of the directions behind the first quarter, where the spectrum is spread; 0 cuts them off.
        flow: Whether a flow follows whitening.
        cautious: Whether layers that look calibrated are left alone.
    """

    pooling: str
    tail: float
    flow: bool
    cautious: bool = False


RECIPES: Mapping[str, Purpose] = {
    "similarity": Purpose("soft", 0.0, flow=True, cautious=True),
    "both": Purpose("soft", 0.5, flow=True),
    "search": Purpose("sif", 1.0, flow=True),
}


def banded(z: Vectors, tail: float) -> Vectors:
    """The first quarter of the coordinates, or that and the others as two bands of unit length."""
    k = max(1, z.shape[1] // HEAD)
    if not tail:
        return z[:, :k]
    parts = [band / np.linalg.norm(band, axis=1, keepdims=True).clip(1e-12) for band in (z[:, :k], z[:, k:])]
    joined: Vectors = np.hstack([parts[0], np.float32(np.sqrt(tail)) * parts[1]])
    return joined


class Bench:
    """Scores systems, with the resamples that all of them share."""

    def __init__(self, data_dir: Path, cache: Path, resamples: int, more: Mapping[str, str]) -> None:
        self.tuning = Material(data_dir, cache, ["tuning"], "choosing", more)
        self.test = Material(data_dir, cache, SUITES["sts7"], "reporting", more)
        self.resamples = resamples
        self.latents: dict[tuple[str, str, str, int | None], Any] = {}

    def choose(self, material: Material, one: StandIn, setting: str) -> tuple[str, str]:
        """The pooling and the closed form that score best."""
        data, scores = material.embedded(one.encoder, setting), {}
        for pooling in dict.fromkeys((one.pooling, one.sif, one.soft)):
            moments = Moments.of(data.fitted[pooling])
            for name, form in CLOSED_FORMS.items():
                scores[pooling, name] = float(np.mean(material.score(form(moments), data, pooling)))
        return max(scores, key=lambda key: scores[key])

    def latent(self, data: Embedded, key: tuple[str, str, str, int | None]) -> Any:
        """What is scored, in all coordinates of a flow of that seed; of whitening for None."""
        if key not in self.latents:
            _, pooling, _, seed = key
            x = data.fitted[pooling]
            with unsaid():
                fitted = (
                    CLOSED_FORMS["whitening"](Moments.of(x))
                    if seed is None
                    else fit_flow(x, "default-1", random_state=seed, n_components="all").map
                )
            self.latents[key] = mapped(data, pooling, fitted)
        return self.latents[key]

    def recipe(self, one: StandIn, data: Embedded, setting: str, name: str, seed: int | None) -> tuple[Any, str]:
        """What a recipe makes of what is scored, and what it did."""
        purpose, plain = RECIPES[name], Moments.of(data.fitted[one.mean])
        if purpose.cautious and participation_ratio(plain) > CALIBRATED:
            return unchanged(data, one.pooling), "left alone"
        z = self.latent(data, (one.encoder, getattr(one, purpose.pooling), setting, seed if purpose.flow else None))
        if effective_rank(plain) <= STEEP:
            return z, "all"
        return each(z, lambda rows: banded(rows, purpose.tail)), f"tail {purpose.tail:g}"

    def first(self, one: StandIn, data: Embedded, setting: str, seed: int) -> Any:
        """What the default of the second round makes of what is scored."""
        if participation_ratio(Moments.of(data.fitted[one.mean])) > CALIBRATED:
            return unchanged(data, one.pooling)
        steep = effective_rank(Moments.of(data.fitted[one.soft])) <= STEEP_1
        z = self.latent(data, (one.encoder, one.soft, setting, seed))
        return z if steep else each(z, lambda rows: rows[:, :KEPT_1])

    def replicates(self, data: Embedded, systems: Systems) -> dict[str, tuple[float, np.ndarray]]:
        """For each system its score x 100, and the same on every resample."""
        if data.texts is not None:
            hits = np.stack([data.hits(*sides) for sides in systems.values()]).astype(float)
            n = hits.shape[1]
            blocks = pair_weights((np.arange(n),), self.resamples, generator(0, "docstrings"))
            drawn = np.concatenate([weights @ hits.T / n for weights in blocks]).T
            return {name: (100 * hits[k].mean(), 100 * drawn[k]) for k, name in enumerate(systems)}
        figures = suite_figures("sts7", self.test.scored_tasks(list(systems.values())), self.resamples, 0)
        figure = next(one for one in figures if one.aggregation == "all" and one.metric == "cosine_spearman")
        return {name: (100 * figure.values[k], 100 * figure.replicates[k]) for k, name in enumerate(systems)}


def each(z: Any, change: Callable[[Vectors], Vectors]) -> Any:
    """Both sides of a search, or the sentences of STS, changed."""
    return tuple(map(change, z)) if isinstance(z, tuple) else change(z)


def mapped(data: Embedded, pooling: str, fitted: torch.nn.Module) -> Any:
    """What is scored, through a map."""
    return each(unchanged(data, pooling), lambda x: applied(fitted, x))


def unchanged(data: Embedded, pooling: str) -> Any:
    """What is scored, as it is."""
    return data.scored[pooling] if data.texts is None else (data.scored[pooling], data.texts[pooling])


def measured(bench: Bench, one: StandIn, setting: str, seeds: int) -> dict[str, Any]:
    """All systems on one stand-in in one setting."""
    data = bench.test.embedded(one.encoder, setting)
    closed, hindsight = (bench.choose(material, one, setting) for material in (bench.tuning, bench.test))
    systems: Systems = {}
    for name, (pooling, form) in {"raw": (one.pooling, "raw"), "closed": closed, "hindsight": hindsight}.items():
        systems[name] = mapped(data, pooling, CLOSED_FORMS[form](Moments.of(data.fitted[pooling])))
    did, judged = {}, ("both", "search" if setting in SEARCH else "similarity")
    for name, purpose in RECIPES.items():
        for seed in range(seeds if name in judged else 1):
            systems[f"{name} {seed}"], did[name] = bench.recipe(one, data, setting, name, seed)
            if not purpose.flow or did[name] == "left alone":
                break
        if purpose.flow:
            systems[f"{name}, linear"], _ = bench.recipe(one, data, setting, name, None)
    for seed in range(seeds):
        systems[f"default-1 {seed}"] = bench.first(one, data, setting, seed)
    return {"closed": closed, "hindsight": hindsight, "did": did} | summary(bench.replicates(data, systems))


JOINED: Mapping[str, StandIn] = {
    "L0 + L3": StandIn("minilm", "concat(0,3)", "concat-sif(0,3)"),
    "MLM4 1 + 4": StandIn("mlm4", "concat(1,4)", "concat-sif(1,4)"),
}
"""Two layers, each calibrated alone, side by side."""


def joined(bench: Bench, one: StandIn, setting: str) -> dict[str, Any]:
    """The closed form of two recipes on joined layers, beside each layer alone, and reduced to the width of one."""
    data, systems, did = bench.test.embedded(one.encoder, setting), {}, ""
    layers = parse_pooling(one.sif).layers
    for name in ("both", "search"):
        pooling = parse_pooling(getattr(one, RECIPES[name].pooling))
        alone = [str(replace(pooling, layers=(layer,), join="mean")) for layer in layers]
        plain = str(replace(pooling, tokens="mean", join="mean"))
        steep = effective_rank(Moments.of(data.fitted[plain])) <= STEEP
        did = "whitening" if steep else f"two-band({RECIPES[name].tail:g})"
        x = data.fitted[str(pooling)]
        systems[name] = mapped(data, str(pooling), Blocks(did, blocks=2).fit(x).map)
        narrow = Blocks("whitening", n_components=x.shape[1] // 2 - 2, blocks=2)  # each layer has a null direction
        systems[f"{name}, reduced"] = mapped(data, str(pooling), narrow.fit(x).map)
        for layer in alone:
            systems[f"{name}, {layer}"] = mapped(data, layer, parse_calibrator(did).fit(data.fitted[layer]).map)
    return {"did": did, **summary(bench.replicates(data, systems))}


COMPARED = (
    *((recipe, "closed") for recipe in RECIPES),
    *((recipe, f"{recipe}, linear") for recipe in RECIPES),
    *((recipe, "default-1") for recipe in RECIPES),
    ("both", "similarity"),
    ("both", "search"),
)
"""Differences that are shown with an interval."""


def summary(found: Mapping[str, tuple[float, np.ndarray]]) -> dict[str, Any]:
    """Scores, their spread over seeds, and differences."""
    groups: dict[str, list[str]] = {}
    for key in found:
        name, _, seed = key.rpartition(" ")
        groups.setdefault(name if seed.isdecimal() else key, []).append(key)
    values = {name: [found[key][0] for key in keys] for name, keys in groups.items()}
    drawn = {name: np.mean([found[key][1] for key in keys], axis=0) for name, keys in groups.items()}
    differences = {}
    for one, other in COMPARED:
        if one in values and other in values:
            low, high = np.quantile(drawn[one] - drawn[other], [0.025, 0.975])
            gap = np.mean(values[one]) - np.mean(values[other])
            differences[f"{one} - {other}"] = [round(float(end), 2) for end in (gap, low, high)]
    return {
        "values": {name: round(float(np.mean(scores)), 2) for name, scores in values.items()},
        "spread": {name: round(float(np.std(scores)), 2) for name, scores in values.items() if len(scores) > 1},
        "differences": differences,
    }


def to_markdown(rows: Sequence[Mapping[str, Any]], pairs: Sequence[Mapping[str, Any]], seeds: int) -> str:
    """A table for STS, one for search, one for joined layers, and the words above them."""
    lines = [ABOVE, "", f"Recipes are a mean over {seeds} seeds; intervals are 95 %."]
    for title, settings, recipe in (("Similarity", STS, "similarity"), ("Search", SEARCH, "search")):
        lines += ["", f"## {title}", "", *_table([row for row in rows if row["setting"] in settings], recipe)]
    if not pairs:
        return "\n".join(lines) + "\n"
    lines += ["", "## Joined layers, each calibrated alone by the closed form of the recipe", ""]
    systems = list(dict.fromkeys(name.split(",", 1)[0] for row in pairs for name in row["values"]))
    lines += [
        "| layers | setting | purpose | joined | reduced to the width of one | each layer alone |",
        "|---" * 6 + "|",
    ]
    for row in pairs:
        for name in systems:
            values = {key: f"{value:.1f}" for key, value in row["values"].items() if key.split(",", 1)[0] == name}
            alone = ", ".join(value for key, value in values.items() if key not in (name, f"{name}, reduced"))
            cells = (row["layers"], row["setting"], name, values[name], values[f"{name}, reduced"], alone)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[Mapping[str, Any]], recipe: str) -> Iterator[str]:
    heads = ("raw", "best closed form (chosen)", "in hindsight", "default-1", *RECIPES)
    pairs = (f"{recipe} - closed", f"{recipe} - {recipe}, linear", f"both - {recipe}")
    head = ("stand-in", "setting", *heads, *pairs)
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for row in rows:
        values = {name: f"{value:.1f}" for name, value in row["values"].items()}
        for name in ("closed", "hindsight"):
            values[name] += f" ({' '.join(row[name])})"
        if row["did"].get("similarity") == "left alone":
            values["similarity"] += " (left alone)"
        cells = [values.get(name, "-") for name in ("raw", "closed", "hindsight", "default-1", *RECIPES)]
        gaps = [row["differences"].get(pair) for pair in pairs]
        cells += ["-" if gap is None else f"{gap[0]:+.2f} [{gap[1]:+.2f}, {gap[2]:+.2f}]" for gap in gaps]
        yield f"| {row['stand-in']} | {row['setting']} | {' | '.join(cells)} |"


def main() -> None:
    """Fit, score, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True, help="holds sts, text, nli and encoders")
    parser.add_argument("--cache", type=Path, default=Path("embeddings"), help="where embeddings are kept")
    parser.add_argument("--seeds", type=int, default=5, help="of the recipes")
    parser.add_argument("--resamples", type=int, default=500)
    parser.add_argument("--roberta", help="folder of a small RoBERTa, which joins the stand-ins as RoBERTa")
    parser.add_argument("--only", nargs="*", help="names of stand-ins")
    parser.add_argument("--settings", nargs="*", default=[*STS, *SEARCH])
    parser.add_argument("--output", type=Path, default=HERE / "standins.json", help="and the same with .md")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    warnings.simplefilter("ignore", NullDirectionWarning)
    more = {"roberta": options.roberta} if options.roberta else {}
    stand_ins = {**STAND_INS, **TUNED} | ({"RoBERTa": StandIn("roberta", "mean(1,-1)", "sif(1,-1)")} if more else {})
    bench, rows, pairs = Bench(options.data_dir, options.cache, options.resamples, more), [], []
    conditions = {"seeds": options.seeds, "resamples": options.resamples}
    for setting in options.settings:
        for name, one in stand_ins.items():
            if options.only and name not in options.only:
                continue
            begin = time.perf_counter()
            rows.append({"stand-in": name, "setting": setting, **measured(bench, one, setting, options.seeds)})
            logging.info("%s %s %.0f s %s", name, setting, time.perf_counter() - begin, rows[-1])
            write_json(options.output, conditions | {"rows": rows, "joined": pairs})
            write_text(options.output.with_suffix(".md"), to_markdown(rows, pairs, options.seeds))
        bench.latents.clear()
        for name, one in JOINED.items():
            if not options.only or name in options.only:
                pairs.append({"layers": name, "setting": setting, **joined(bench, one, setting)})
                logging.info("%s %s %s", name, setting, pairs[-1])
        write_json(options.output, conditions | {"rows": rows, "joined": pairs})
        write_text(options.output.with_suffix(".md"), to_markdown(rows, pairs, options.seeds))


if __name__ == "__main__":
    main()

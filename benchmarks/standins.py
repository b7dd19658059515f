"""How good the three recipes are where BERT-base cannot be run: the table of the README.

    python benchmarks/standins.py --data_dir DATA [--roberta FOLDER] [--simcse FOLDER]

Inner layers of a tuned MiniLM stand in for a raw BERT (four rows of one model); MLM4 is a small plain BERT, RoBERTa the
one of ``roberta.py``; SimCSE is three blocks of MiniLM (L3) after the contrast on text alone of ``simcse.py``. Systems:

    raw         the stand-in's own pooling
    closed      the best of ``PEERS`` over its own pooling, sif and soft-sif: which one, was chosen on ``tuning`` (for
                search on the choosing half of the docstring queries) in the same setting
    hindsight   the best of them on what is reported itself: what no honest choice reaches
    similarity, both, search    the recipes (``RECIPES``)

STS is the mean over seven test sets of Spearman x 100, fitted on the 26,173 test sentences without labels
(transductive) or on a mixture that holds none of them (inductive). Search is hit@1 of the reporting half of the
docstring queries among all 2,500 texts, fitted on these texts (collection: transductive) or on sentences of other
docstrings (docstrings: inductive); the row bm25 is words in common, without an encoder. Intervals are 95 %, recipes a
mean over seeds, from a bootstrap of pairs (STS) or queries. The column default-1 is a flow of an earlier round, as it
was measured then. A flow that several recipes share is fitted once, and kept in the cache. Writes standins.json beside
this file; rows of one stand-in in one setting replace those that are there, so parts can be run one by one.
"""

import hashlib
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from closed_forms import ALSO_TRIED, CLOSED_FORMS, applied
from material import SEARCHED, SETTINGS, STAND_INS, TUNED, Embedded, Material, StandIn, Vectors, halves
from standins_print import to_markdown
from study import Case, Row, Study

from bertflow.calibration.blocks import Blocks
from bertflow.calibration.spelling import parse_calibrator
from bertflow.data.sts_tasks import SUITES
from bertflow.encoder.pooling import parse_pooling
from bertflow.evaluation.aggregation import suite_figures
from bertflow.evaluation.bm25 import BM25, bm25_ranks_of_pairs
from bertflow.evaluation.significance import generator, pair_weights
from bertflow.files import atomic_file
from bertflow.maps import HEAD
from bertflow.moments import Moments
from bertflow.progress import unsaid
from bertflow.training.auto import CALIBRATED, STEEP, effective_rank, participation_ratio
from bertflow.training.flow_fit import fit_flow

STS, SEARCH = SETTINGS[:2], SEARCHED
PEERS = CLOSED_FORMS | ALSO_TRIED
"""What the recipes are compared with: all calibrators that need no gradient; with ridge and two bands."""
MORE: Mapping[str, StandIn] = {
    "RoBERTa": StandIn("roberta", "mean(1,-1)", "sif(1,-1)"),
    "SimCSE": StandIn("simcse", "mean(-1)", "sif(-1)"),
}
"""Stand-ins whose folders are given."""
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
        self.kept = cache / "latents"

    def choose(self, material: Material, one: StandIn, setting: str) -> tuple[str, str]:
        """The pooling and the closed form that score best."""
        data, scores = material.embedded(one.encoder, setting), {}
        for pooling in dict.fromkeys((one.pooling, one.sif, one.soft)):
            moments = Moments.of(data.fitted[pooling])
            for name, form in PEERS.items():
                scores[pooling, name] = float(np.mean(material.score(form(moments), data, pooling)))
        return max(scores, key=lambda key: scores[key])

    def latent(self, data: Embedded, pooling: str, seed: int | None) -> Any:
        """What is scored, in all coordinates of a flow of that seed; of whitening for None."""
        x = data.fitted[pooling]
        if seed is None:
            return mapped(data, pooling, CLOSED_FORMS["whitening"](Moments.of(x)))
        sides = unchanged(data, pooling)
        rows = np.ascontiguousarray(np.vstack([x, *(sides if isinstance(sides, tuple) else (sides,))]))
        kept = self.kept / f"{hashlib.sha256(rows.tobytes()).hexdigest()[:24]}-{len(x)}-{seed}.npz"
        if not kept.exists():
            with unsaid():
                fitted = fit_flow(x, random_state=seed, n_components="all").map
            found = each(sides, lambda side: applied(fitted, side))
            with atomic_file(kept) as aside, aside.open("wb") as file:
                np.savez(file, *(found if isinstance(found, tuple) else (found,)))
        with np.load(kept) as arrays:
            z = tuple(arrays.values())
        return z if len(z) > 1 else z[0]

    def recipe(self, one: StandIn, data: Embedded, name: str, seed: int | None) -> tuple[Any, str]:
        """What a recipe makes of what is scored, and what it did."""
        purpose, plain = RECIPES[name], Moments.of(data.fitted[one.mean])
        if purpose.cautious and participation_ratio(plain) > CALIBRATED:
            return unchanged(data, one.pooling), "left alone"
        z = self.latent(data, getattr(one, purpose.pooling), seed if purpose.flow else None)
        if effective_rank(plain) <= STEEP:
            return z, "all"
        return each(z, lambda rows: banded(rows, purpose.tail)), f"tail {purpose.tail:g}"

    def replicates(self, data: Embedded, systems: Systems) -> dict[str, tuple[float, np.ndarray]]:
        """For each system its score x 100, and the same on every resample."""
        if data.texts is not None:
            hits = np.stack([data.hits(*sides) for sides in systems.values()]).astype(float)
            n = hits.shape[1]
            blocks = pair_weights((np.arange(n),), self.resamples, generator(0, "docstrings"))
            drawn = np.concatenate([weights @ hits.T / n for weights in blocks]).T
            return {name: (100 * hits[k].mean(), 100 * drawn[k]) for k, name in enumerate(systems)}
        same = {
            name: hashlib.sha256(z.tobytes()).hexdigest() for name, z in systems.items()
        }  # steep: all recipes alike
        distinct = {same[name]: z for name, z in systems.items()}
        figures = suite_figures("sts7", self.test.scored_tasks(list(distinct.values())), self.resamples, 0)
        figure = next(one for one in figures if one.aggregation == "all" and one.metric == "cosine_spearman")
        row = {key: k for k, key in enumerate(distinct)}
        return {name: (100 * figure.values[row[key]], 100 * figure.replicates[row[key]]) for name, key in same.items()}


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
        systems[name] = mapped(data, pooling, PEERS[form](Moments.of(data.fitted[pooling])))
    did = {}
    for name, purpose in RECIPES.items():
        for seed in range(seeds if setting in SEARCH or name != "search" else 1):
            systems[f"{name} {seed}"], did[name] = bench.recipe(one, data, name, seed)
            if not purpose.flow or did[name] == "left alone":
                break
        if purpose.flow:
            systems[f"{name}, linear"], _ = bench.recipe(one, data, name, None)
    chosen = {"closed": closed, "hindsight": hindsight, "did": did, "peers": len(PEERS), "resamples": bench.resamples}
    return chosen | summary(bench.replicates(data, systems))


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


def words_in_common(bench: Bench) -> Row:
    """BM25, which embeds nothing, on the queries and texts of the search."""
    hits = bm25_ranks_of_pairs(bench.test.retrieval) == 1
    return {"values": {"raw": round(100 * float(hits[halves(len(hits))["reporting"]].mean()), 2)}, "differences": {}}


COMPARED = (
    *((recipe, "closed") for recipe in RECIPES),
    *((recipe, f"{recipe}, linear") for recipe in RECIPES),
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
        "seeds": {name: len(keys) for name, keys in groups.items() if keys != [name]},
        "differences": differences,
    }


def cases(options: Namespace) -> Iterator[Case]:
    """Every stand-in and the joined layers, in every setting; words in common, in one."""
    given = {name: getattr(options, name.lower()) for name in MORE}
    more = {MORE[name].encoder: folder for name, folder in given.items() if folder}
    bench = Bench(options.data_dir, options.cache, options.resamples, more)
    stand_ins = {**STAND_INS, **TUNED, **{name: one for name, one in MORE.items() if given[name]}}
    for setting in options.settings:
        for name, one in stand_ins.items():
            if not options.only or name in options.only:
                yield {"stand-in": name, "setting": setting}, partial(measured, bench, one, setting, options.seeds)
        for name, one in JOINED.items():
            if not options.only or name in options.only:
                yield {"layers": name, "setting": setting}, partial(joined, bench, one, setting)
    if not options.only or BM25 in options.only:
        yield {"stand-in": BM25, "setting": SEARCH[1]}, partial(words_in_common, bench)


def page(rows: Sequence[Row]) -> str:
    """All tables, in the order of stand-ins and settings."""
    names, settings = (*STAND_INS, *TUNED, *MORE, BM25, *JOINED), (*STS, *SEARCH)

    def place(row: Row) -> tuple[int, int]:
        return names.index(row.get("stand-in") or row["layers"]), settings.index(row["setting"])

    return to_markdown(sorted(rows, key=place))


STUDY = Study(
    __file__,
    __doc__,
    cases,
    page,
    arguments={
        "cache": (Path("embeddings"), "where embeddings are kept"),
        "seeds": (5, "of the recipes"),
        "resamples": (500, "of every bootstrap"),
        "roberta": ("", "folder that roberta.py wrote, which joins the stand-ins"),
        "simcse": ("", "folder that simcse.py wrote of MiniLM, which joins the stand-ins"),
        "only": ([], "names of stand-ins and of joined layers (else all)"),
        "settings": ([*STS, *SEARCH], "where maps are fitted"),
    },
)
if __name__ == "__main__":
    STUDY.main()

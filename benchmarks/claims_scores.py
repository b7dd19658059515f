"""Claims about how well similarities agree with people, and whether a search finds: poolings, calibrators, text."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from claims_bench import Bench, Float64, chosen_by, estimated, ranked_by
from claims_rules import Measured, Result, Untested
from claims_systems import PARTS
from closed_forms import applied
from study import rows_of, same

from bertflow.correlation import spearman
from bertflow.data.sts_tasks import SUITES, TASKS
from bertflow.evaluation.aggregation import ScoredTask, suite_figures
from bertflow.evaluation.edits import LEVELS, edit_distance
from bertflow.evaluation.significance import Figure
from bertflow.training.flow_fit import fit_flow

STANDINS = Path(__file__).parent / "standins.json"
NOT_TUNED = Untested("the claim is about layers that were tuned for sentences, and these were not")
NO_LAST = Untested("the claim compares with the last layer, which is none of the inner ones")
SCHEDULES: Sequence[Mapping[str, Any]] = (
    {"epochs": 0.5},
    {"epochs": 1},
    {"epochs": 2},
    {"epochs": 4},
    {"epochs": 2, "glow": {"hidden": 64}},
    {"epochs": 2, "glow": {"coupling": "affine"}},
)
"""Flows of the same rows, as changes of the default."""


def _top(part: str) -> int:
    """The uppermost layer that is looked at."""
    return PARTS[part].layers[-1]


def mean_against_cls(bench: Bench, part: str) -> Measured:
    """Mean of a layer minus its [CLS]."""
    return bench.compare_poolings(part, f"mean({_top(part)})", f"cls({_top(part)})")


def second_to_last(bench: Bench, part: str) -> Result:
    """Second-to-last layer minus the last."""
    return (
        NO_LAST if part == "inner" else bench.compare_poolings(part, f"mean({_top(part) - 1})", f"mean({_top(part)})")
    )


def first_last(bench: Bench, part: str) -> Result:
    """First-last-avg minus the last layer."""
    return NO_LAST if part == "inner" else bench.compare_poolings(part, "mean(1,-1)", f"mean({_top(part)})")


def static_against_cls(bench: Bench, part: str) -> Measured:
    """Averaged word embeddings minus [CLS]."""
    return bench.compare_poolings(part, "static", f"cls({_top(part)})")


def static_against_mean(bench: Bench, part: str) -> Measured:
    """Averaged word embeddings minus averaged outputs."""
    return bench.compare_poolings(part, "static", f"mean({_top(part)})")


def aggregations_apart(bench: Bench, part: str) -> Measured:
    """How far "wmean" is from "all", mean over STS12-16 of raw embeddings."""
    sets = [(at, pairs) for at, pairs in enumerate(bench.material.sets) if pairs.task.startswith("sts1")]
    raw = bench.similarities(part, "raw")
    tasks = [ScoredTask(pairs, "cosine", raw[at][None]) for at, pairs in sets]
    figures = {
        one.aggregation: one
        for one in suite_figures("sts12-16", tasks, bench.resamples, bench.seed)
        if one.metric == "cosine_spearman"
    }
    apart = 100 * (figures["wmean"].replicates[0] - figures["all"].replicates[0])
    numbers = {name: 100 * figures[name].values[0] for name in ("all", "mean", "wmean")}
    return estimated(numbers["wmean"] - numbers["all"], apart, figures["all"].n, "pairs", numbers)


def target_against_nli_by_subset(bench: Bench, part: str) -> Measured:
    """The same as the paper aggregates."""
    return bench.compare(part, "whitening of part", "whitening of NLI", "wmean")


def tuned_layer_harmed(bench: Bench, part: str) -> Result:
    """Raw minus whitening, on a tuned layer."""
    return bench.compare(part, "raw", "whitening") if part == "last" else NOT_TUNED


def _search(bench: Bench, part: str, first: str, second: str) -> Measured:
    """hit@1 in percent of one map minus that of another."""
    one, other = (100 * bench.hits(part, form) for form in (first, second))
    numbers = {first: one.mean(), second: other.mean()}
    gap = one - other
    return estimated(gap.mean(), bench.means("queries", gap), len(gap), "questions", numbers)


def search_reduced(bench: Bench, part: str) -> Measured:
    """Whitening to all directions minus whitening to 128."""
    return _search(bench, part, "whitening", "whitening(128)")


def search_whitened(bench: Bench, part: str) -> Measured:
    """Whitening minus raw."""
    return _search(bench, part, "whitening", "raw")


def tuned_search(bench: Bench, part: str) -> Result:
    """The same on a tuned layer."""
    return search_whitened(bench, part) if part == "last" else NOT_TUNED


def lexical_bias(bench: Bench, part: str) -> Measured:
    """Spearman of similarity and edit distance in words, flow minus raw."""
    at, pairs = next((at, one) for at, one in enumerate(bench.material.sets) if one.task == "stsb")
    cut = LEVELS["words"]
    sides = zip(pairs.first, pairs.second, strict=True)
    edits = np.array([float(edit_distance(cut(one), cut(other))) for one, other in sides])
    flow, raw = (bench.similarities(part, name)[at] for name in ("flow of part", "raw"))
    found = {"flow": flow, "raw": raw, "gold": pairs.target}
    numbers = {name: 100 * spearman(values, edits) for name, values in found.items()}
    drawn = bench.redrawn(
        "edits",
        len(edits),
        lambda each: 100 * (spearman(flow[each], edits[each]) - spearman(raw[each], edits[each])),
    )
    return estimated(numbers["flow"] - numbers["raw"], drawn, len(edits), "pairs", numbers)


def likelihood_ranks(bench: Bench, part: str) -> Measured:
    """Spearman of held-out likelihood and STS score, over flows of the same rows."""
    return ranked_by(*_flows(bench, part))


def likelihood_chooses(bench: Bench, part: str) -> Measured:
    """STS score of the likeliest flow minus that of the best."""
    return chosen_by(*_flows(bench, part))


@functools.cache
def _flows(bench: Bench, part: str) -> tuple[Float64, Figure]:
    """Held-out likelihood, in bits, and scores of every flow."""
    x = bench.by_layer(PARTS[part].encoder)[PARTS[part].stand_in.mean]
    fits = [fit_flow(x, n_components="all", random_state=bench.seed, **one) for one in SCHEDULES]
    bits = np.array([fit.record.held_out_bits for fit in fits], dtype=np.float64)
    scored = [bench.sample.scored_tasks([applied(fit.map, x)]) for fit in fits]
    return -bits, bench.scores([[task.similarities[0] for task in one] for one in scored])


def _published(part: str, setting: str) -> Result:
    """The default flow minus the best closed form that was chosen on tuning data, from ``standins.json``."""
    case = {"stand-in": PARTS[part].name, "setting": setting}
    row = next(row for row in rows_of(STANDINS) if same(row, case))
    if row["did"]["similarity"] == "left alone":
        return Untested("the default leaves these layers alone: they look calibrated already")
    numbers = {name: row["values"][name] for name in ("raw", "closed", "similarity")}
    pairs = sum(sum(TASKS[task].pairs.values()) for task in SUITES["sts7"])
    gap, low, high = row["differences"]["similarity - closed"]
    return Measured(gap, low, high, pairs, "pairs", numbers)


def flow_against_chosen(bench: Bench, part: str) -> Result:
    """Fitted on the scored text."""
    return _published(part, "transductive")


def flow_against_chosen_of_other_text(bench: Bench, part: str) -> Result:
    """Fitted on other text."""
    return _published(part, "inductive")

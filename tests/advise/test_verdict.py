"""The decision as a table: geometry and figures in, verdict out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

import numpy as np
import pytest
import torch

from bertflow.advise import verdict
from bertflow.advise.evidence import LABELED, MINED, STAND_IN, Evidence, Judgement
from bertflow.advise.likely import CENTERED, FEW, PURPOSES, WIDEST, Geometry, Shape, fallbacks, linear_form, recipes
from bertflow.advise.reasons import (
    MINED_ONLY,
    NOT_KNOWN,
    NOT_OUTRANKED,
    NOT_SUCH,
    OUTRANKED,
    PROOF,
    PROOF_BY_LABELS,
    PROOF_BY_QUERIES,
    RESCALED,
    SEARCH_ONLY,
    SIMILARITY_ONLY,
    UNKNOWN,
    UNMOVED,
    announced,
)
from bertflow.advise.rules import FOR_SEARCH, GENTLE, LIKELY, PROVEN, Known
from bertflow.advise.verdict import RESCALE
from bertflow.affine import whitening_map
from bertflow.calibration.spelling import parse_calibrator
from bertflow.evaluation.significance import Difference
from bertflow.maps import head_of
from bertflow.moments import Moments
from bertflow.training import Use
from bertflow.training.recipe import PRESETS
from bertflow.training.recipe import PURPOSES as PRESET_OF

CANDIDATES = ("whitening", "whitening(8)", "flow", "flow(8)")
NOISE = (-0.1, 0.1)
"""An interval of a difference that may be chance."""


def geometry(median):
    return Geometry(400, 16, median, median - 0.1, median, median + 0.1, 7.0, 1.5, 0.25)


def middle(interval):
    low, high = interval
    return (low + high) / 2 if low is not None else 0.01


@dataclass
class HalfReport:
    """What is read of a report: a score for each system, and the interval of its lead over any other."""

    metric: str
    scores: dict[str, float]
    intervals: dict[str, tuple[float, float]]

    def values(self, metric):
        return self.scores if metric == self.metric else {}

    def compared(self, system, other):
        interval = self.intervals[system]
        return [
            Difference("task", "all", self.metric, system, other, middle(interval), *interval, None, None, None, None)
        ]


def figures(kind=LABELED["graded"], choosing=(0.5, 0.4, 0.3, 0.2), lead=NOISE, gains=NOISE, candidates=CANDIDATES):
    """What evidence measured.

    Args:
        kind: Its kind.
        choosing: Scores of the candidates on the choosing half, in their order.
        lead: Interval of the best flow's lead over the best whitening, on the choosing half.
        gains: Interval of the gain over raw, on the judging half: one for all, or one for each.
        candidates: The candidates.
    """
    intervals = dict.fromkeys(candidates, gains) if isinstance(gains, tuple) else gains
    return Judgement(
        evidence=Evidence(kind, (), range(1200)),
        choosing=HalfReport(
            kind.metric, {"raw": 0.9, **dict(zip(candidates, choosing, strict=False))}, dict.fromkeys(candidates, lead)
        ),
        judging=HalfReport(
            kind.metric,
            {"raw": 0.4, **{name: 0.4 + middle(interval) for name, interval in intervals.items()}},
            intervals,
        ),
    )


RAW_SHAPE, TUNED_SHAPE = Shape(384, 25.0, 60.0), Shape(384, 100.0, 180.0)


def decide(median, evidence, purpose="similarity", shape=TUNED_SHAPE, likely=(), among=None, vetoes=None, **more):
    """The verdict, where by default all candidates may be advised and nothing speaks against any."""
    more = {"stand_in": None, "safe": "", **more}
    known = Known(geometry(median), shape, evidence, "there are no pairs.", purpose, likely, **more)
    every = {*CANDIDATES, *likely, *(name for one in evidence for name in one.choosing.scores)}
    return verdict.decide(known, every if among is None else among, lambda name: (vetoes or {}).get(name, ()))


CONE, CENTERED_CLOUD, BORDER = 0.8, 0.05, CENTERED
BETTER, WORSE, PERHAPS_WORSE = (0.01, 0.05), (-0.05, -0.01), (-0.05, 0.01)
ROWS = {
    "a cone, and no pairs": (CONE, [], "rescale the scores", "raw"),
    "near zero, and no pairs": (CENTERED_CLOUD, [], "you need labels", "raw"),
    "exactly at the border, and no pairs": (BORDER, [], "you need labels", "raw"),
    "just above the border, and no pairs": (BORDER + 1e-9, [], "rescale the scores", "raw"),
    "a cone, whitening is better": (CONE, [figures(gains=BETTER)], "whiten", "whitening"),
    "near zero, whitening is better all the same": (CENTERED_CLOUD, [figures(gains=BETTER)], "whiten", "whitening"),
    "a cone, the gain may be chance": (CONE, [figures()], "rescale the scores", "raw"),
    "near zero, the gain may be chance": (CENTERED_CLOUD, [figures()], "leave it", "raw"),
    "a cone, whitening is worse": (CONE, [figures(gains=WORSE)], "rescale the scores", "raw"),
    "near zero, whitening is worse": (CENTERED_CLOUD, [figures(gains=WORSE)], "leave it", "raw"),
    "the interval touches zero": (CONE, [figures(gains=(0.0, 0.05))], "rescale the scores", "raw"),
    "the interval is just above zero": (CONE, [figures(gains=(1e-9, 0.05))], "whiten", "whitening"),
    "no interval": (CONE, [figures(gains=(None, None))], "rescale the scores", "raw"),
    "fewer directions are better": (CONE, [figures(choosing=(0.4, 0.5, 0.3, 0.2), gains=BETTER)], "whiten",
     "whitening(8)"),
    "a flow scores more, by chance": (CONE, [figures(choosing=(0.3, 0.2, 0.4, 0.5), gains=BETTER)], "whiten",
     "whitening"),
    "a flow is better than whitening": (CONE, [figures(choosing=(0.3, 0.2, 0.4, 0.5), lead=BETTER, gains=BETTER)],
     "use the flow", "flow(8)"),
    "the flow's lead touches zero": (CONE, [figures(lead=(0.0, 0.1), gains=BETTER)], "whiten", "whitening"),
    "a flow is better than whitening, not than raw": (CONE, [figures(lead=BETTER)], "rescale the scores", "raw"),
    "only the candidate that was not chosen is better": (CONE, [figures(gains={"whitening": NOISE, "whitening(8)":
     BETTER, "flow": BETTER, "flow(8)": BETTER})], "rescale the scores", "raw"),
    "labels say no, mined pairs yes": (CONE, [figures(), figures(MINED, gains=BETTER)], "rescale the scores", "raw"),
    "labels say yes, mined pairs no": (CONE, [figures(gains=BETTER), figures(MINED)], "whiten", "whitening"),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
def test_the_verdict(row):
    median, evidence, word, system = ROWS[row]
    assert decide(median, evidence)[:2] == (word, system)


MADE = Shape(384, 25.0, 60.0, "the encoder is a sentence-transformers model")
ALWAYS_WORSE = {"whitening": NOISE, "whitening(8)": WORSE, "flow": NOISE, "flow(8)": NOISE}
WITHOUT_PROOF = {
    "raw geometry, no pairs": (CONE, RAW_SHAPE, [], "whitening(8)", LIKELY),
    "raw geometry, cosines near zero": (CENTERED_CLOUD, RAW_SHAPE, [], "raw", ""),
    "tuned geometry": (CONE, TUNED_SHAPE, [], "raw", ""),
    "exactly at the bound": (CONE, Shape(384, 75.0, 60.0), [], "whitening(8)", LIKELY),
    "just above the bound": (CONE, Shape(384, 75.1, 60.0), [], "raw", ""),
    "made for sentences": (CONE, MADE, [], "raw", ""),
    "raw geometry, the gain may be chance": (CONE, RAW_SHAPE, [figures()], "whitening(8)", LIKELY),
    "raw geometry, the chosen one is proven": (CONE, RAW_SHAPE, [figures(gains=BETTER)], "whitening", PROVEN),
    "tuned geometry, proven all the same": (CONE, TUNED_SHAPE, [figures(gains=BETTER)], "whitening", PROVEN),
    "raw geometry, the likely one is proven, not the chosen one": (CONE, RAW_SHAPE, [figures(gains={**ALWAYS_WORSE,
     "whitening(8)": BETTER})], "whitening(8)", PROVEN),
    "raw geometry, the pairs speak against it": (CONE, RAW_SHAPE, [figures(gains=ALWAYS_WORSE)], "raw", ""),
    "raw geometry, only the second evidence speaks against it": (CONE, RAW_SHAPE, [figures(), figures(MINED,
     gains=ALWAYS_WORSE)], "whitening(8)", LIKELY),
}  # fmt: skip


@pytest.mark.parametrize("row", WITHOUT_PROOF)
def test_what_is_likely_is_used_where_nothing_is_proven(row):
    median, shape, evidence, system, standing = WITHOUT_PROOF[row]
    decision = decide(median, evidence, shape=shape, likely=("whitening(8)",))
    assert (decision.system, decision.standing) == (system, standing)
    assert (decision.verdict == "whiten") == bool(standing)
    assert (PROOF in decision.reasons) == (standing == LIKELY or not evidence)


def test_without_a_recipe_nothing_is_likely():
    assert decide(CONE, [], shape=RAW_SHAPE).system == "raw"


MINED_ALONE = {
    "a raw encoder, search": (RAW_SHAPE, "search", "whitening", PROVEN),
    "a tuned encoder, search": (TUNED_SHAPE, "search", "whitening", PROVEN),
    "a raw encoder, similarity: they judge what is likely": (RAW_SHAPE, "similarity", "whitening(8)", FOR_SEARCH),
    "a tuned encoder, similarity: they prove nothing": (TUNED_SHAPE, "similarity", "raw", ""),
    "a tuned encoder, all uses: they prove nothing": (TUNED_SHAPE, "all", "raw", ""),
}


@pytest.mark.parametrize("row", MINED_ALONE)
def test_mined_pairs_measure_search_and_choose_for_it_alone(row):
    shape, purpose, system, standing = MINED_ALONE[row]
    likely = () if shape is TUNED_SHAPE else ("whitening(8)",)
    decision = decide(CONE, [figures(MINED, gains=BETTER)], purpose, shape, likely)
    assert (decision.system, decision.standing) == (system, standing)
    assert (UNMOVED in decision.reasons) == (system == "raw")


NARROW = dict.fromkeys(CANDIDATES, ("The text is narrow.",))
NARROW_FOR_ONE = {"whitening": NARROW["whitening"]}


VETOED: Mapping[str, tuple[list[Judgement], str, str, str]] = {
    # evidence, purpose, system, what is said of the sign
    "likely": ([], "search", "raw", ""),
    "proven by mined pairs": ([figures(MINED, gains=BETTER)], "search", "raw", ""),
    "proven by queries": ([figures(LABELED["retrieval"], gains=BETTER)], "search", "whitening", OUTRANKED),
    "queries, all uses": ([figures(LABELED["retrieval"], gains=BETTER)], "all", "whitening", OUTRANKED),
    "proven by scores": ([figures(gains=BETTER)], "similarity", "whitening", OUTRANKED),
    "scores, all uses": ([figures(gains=BETTER)], "all", "raw", NOT_OUTRANKED),
    "scores, another use": ([figures(gains=BETTER)], "search", "raw", NOT_OUTRANKED),
    "labels prove nothing": ([figures()], "search", "raw", ""),
}


@pytest.mark.parametrize("row", VETOED)
def test_a_veto_puts_a_change_beside_the_encoder_unless_labels_of_that_use_prove_it(row):
    evidence, purpose, system, said = VETOED[row]
    decision = decide(CONE, evidence, purpose, RAW_SHAPE, ("whitening(8)",), vetoes=NARROW)
    proven = any(one.proves for one in evidence)
    assert decision.system == system
    assert decision.beside == ("" if system != "raw" else "whitening" if proven else "whitening(8)")
    assert f"The text is narrow. {said}".strip() in decision.reasons
    assert (PROOF_BY_QUERIES in decision.reasons) == (not said)
    assert PROOF not in decision.reasons
    assert (decision.verdict == RESCALE) == (system == "raw")


def test_scores_alone_can_prove_a_vetoed_change_for_similarity():
    decision = decide(CONE, [], "similarity", RAW_SHAPE, ("whitening",), vetoes=NARROW)
    assert decision.reasons[-1] == PROOF_BY_LABELS


@pytest.mark.parametrize(
    ("gains", "system", "standing"),
    [
        (BETTER, "whitening", LIKELY),
        ((-0.05, 0.06), "whitening", LIKELY),
        (NOISE, "whitening", LIKELY),
        (WORSE, "raw", ""),
    ],
    ids=["better", "better, by chance", "no difference", "worse"],
)
def test_docstrings_choose_between_likely_recipes_and_must_not_speak_against_them(gains, system, standing):
    said = figures(STAND_IN, gains=gains, candidates=("whitening", "whitening(8)"))
    decision = decide(CONE, [], shape=RAW_SHAPE, likely=("whitening(8)", "whitening"), stand_in=said)
    assert (decision.system, decision.standing) == (system, standing)
    assert any("On 1,200 docstring pairs" in reason for reason in decision.reasons)


def test_only_some_candidates_may_be_advised():
    evidence = [figures(gains=BETTER)]
    assert decide(CONE, evidence, among={"whitening(8)", "flow"}).system == "whitening(8)"
    assert decide(CONE, evidence, among=set()).system == "raw"
    said = figures(STAND_IN, gains=BETTER)
    how = {"shape": RAW_SHAPE, "likely": CANDIDATES, "stand_in": said}
    assert decide(CONE, [], among={"whitening(8)"}, **how).system == "whitening(8)"


def test_the_gain_is_of_the_pairs_that_judged():
    labels, said = figures(gains=BETTER), figures(STAND_IN, gains=BETTER)
    assert decide(CONE, [labels]).gain.metric == "cosine_spearman"
    likely = decide(CONE, [], shape=RAW_SHAPE, likely=CANDIDATES, stand_in=said)
    assert likely.gain.metric == "mrr"
    assert decide(CONE, [], shape=RAW_SHAPE, likely=CANDIDATES).gain is None
    assert decide(CONE, [figures()]).gain is None


def test_vectors_of_an_unknown_encoder_are_likely_raw_only_where_a_quarter_of_their_directions_hold_the_variance():
    assert Shape(384, 70.0, 80.0, bare=True).raw
    assert not Shape(384, 76.0, 80.0, bare=True).raw
    assert Shape(64, 16.0, 20.0, bare=True).raw
    assert not Shape(64, 17.0, 20.0, bare=True).raw
    decision = decide(CONE, [], shape=Shape(384, 25.0, 60.0, bare=True), likely=("whitening(96)",))
    assert (decision.system, decision.standing) == ("whitening(96)", LIKELY)
    assert UNKNOWN in " ".join(decision.reasons)


def test_the_likely_recipe_for_similarity_is_its_preset_without_the_flow_where_many_directions_hold_the_variance():
    x = np.random.default_rng(0).normal(size=(800, 16)) * np.linspace(2, 1, 16)
    assert not PRESETS[PRESET_OF["similarity"]].tail
    made = parse_calibrator(linear_form("similarity", 16, steep=False)).fit(x)
    expected = whitening_map(Moments.of(x))(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(made.transform(x), expected[:, : head_of(16)], atol=1e-9)


def test_the_recipes_are_spelled_right_and_cut_for_similarity_alone():
    def first(free, steep):
        return {purpose: recipes(purpose, 384, steep, free)[0].spelling for purpose in PURPOSES}

    assert set(PURPOSES) == set(get_args(Use))

    assert first(free=False, steep=False) == {
        "similarity": "soft-sif+whitening(96)",
        "search": "sif+ridge(16)+crops",
        "topic": "ridge(50)",
        "all": "soft-sif+ridge(50)+crops",
    }
    assert first(free=True, steep=True)["similarity"] == "sif(1,-1)+ridge(1)"
    assert first(free=False, steep=True) == {
        "similarity": "sif+ridge(1)",
        "search": "sif+ridge(4)",
        "topic": "ridge(4)",
        "all": "soft-sif+ridge(1)",
    }
    both = [recipes(purpose, 768, steep, True) for purpose in PURPOSES for steep in (True, False)]
    assert all(row.calibrator for ladder in both for row in ladder)


def test_few_sentences_have_a_gentle_map_for_search():
    ladder = [row.spelling for row in recipes("search", 384, False, False)]
    forms = ["sif+ridge(16)", "ridge(16)"]
    assert ladder == [*(f"{form}+crops" for form in forms), *forms]  # of vectors there are no crops


def test_a_pooling_of_one_token_is_kept_unless_a_purpose_is_named():
    def first(purpose, **options):
        return recipes(purpose, 384, False, False, **options)[0].spelling

    assert (first("all", one_token=True), first("search", one_token=True)) == ("ridge(1)", "sif+ridge(16)+crops")
    assert (first("all"), first("all", n=FEW - 1)) == ("soft-sif+ridge(50)+crops", "faint-sif+ridge(50)+crops")


SPREAD = ["soft-sif+background(0.25)+crops", "background(0.25)", "faint-sif"]
STEEP = ["soft-sif+background(0.25)", "background(0.25)", "faint-sif"]
ONE_TOKEN = ["background(0.5)+crops"]


@pytest.mark.parametrize(
    ("purpose", "words", "one_token", "spread", "steep"),
    [
        ("similarity", 900, False, SPREAD, STEEP),
        ("similarity", 299, False, ["faint-sif"], ["faint-sif"]),
        ("similarity", 900, True, ONE_TOKEN, ONE_TOKEN),
        ("similarity", 40, False, [], []),
        ("search", 150, False, SPREAD, STEEP),
        ("search", 149, True, ["faint-sif"], []),
        ("search", 900, True, SPREAD, ONE_TOKEN),
        ("search", 59, False, [], []),
        ("topic", 60, False, SPREAD, STEEP),
        ("topic", 59, True, ONE_TOKEN, ONE_TOKEN),
        ("all", 900, False, SPREAD, STEEP),
        ("all", 150, True, ONE_TOKEN, ONE_TOKEN),
        ("all", 40, True, [], []),
    ],
)
def test_what_takes_the_place_of_a_vetoed_recipe(purpose, words, one_token, spread, steep):
    found = [fallbacks(purpose, words, few, one_token) for few in (False, True)]
    assert [[row.spelling for row in ladder] for ladder in found] == [spread, steep]


def test_wide_vectors_are_made_narrow_enough_for_an_index():
    assert linear_form("similarity", WIDEST, steep=True) == "ridge(1)"
    assert linear_form("similarity", WIDEST + 1, steep=True) == f"whitening({WIDEST})"


@pytest.mark.parametrize(("score", "hardly"), [(0.006, True), (0.02, False)])
def test_a_search_that_finds_hardly_more_than_chance_says_so(score, hardly):
    found = figures(LABELED["retrieval"])
    found.judging.scores.update(dict.fromkeys(found.judging.scores, score))
    chance = 100 * sum(1 / rank for rank in range(1, 1201)) / 1200
    said = f" Chance gives {chance:.1f}. Are these labels right?"
    assert found.said_of("whitening").endswith(said) == hardly


def test_what_can_be_said_is_announced():
    evidence = [Evidence(LABELED["graded"], range(60), range(60)), Evidence(MINED, range(200), range(200))]
    assert announced(evidence, "", "all") == (
        "120 graded labels decide: half choose the change; the others test it, and may prove it; 400 mined pairs are "
        "shown, too"
    )
    mined = evidence[1:]
    assert announced(mined, "", "all") == (
        "200 mined pairs test the likely change, and may prove it if the text is not narrow"
    )
    assert announced(mined, "", "search") == (
        "400 mined pairs decide: half choose the change; the others test it, and may prove it if the text is not narrow"
    )
    assert announced([], "there are no pairs.", "all").startswith("there are no pairs. So nothing can be proven here")


@pytest.mark.parametrize(
    ("candidates", "word"),
    [
        (["flow"], "use the flow"),
        (["whitening"], "whiten"),
        (["abtt"], "use abtt"),
        (["sif+gaussian(4)"], "whiten"),
        ([], "rescale the scores"),
    ],
    ids=[
        "only a flow",
        "only whitening",
        "another closed form",
        "another name of whitening",
        "nothing could be fitted",
    ],
)
def test_what_was_not_tried_is_not_chosen(candidates, word):
    advised, system, _, reasons, *_ = decide(CONE, [figures(gains=BETTER, candidates=candidates)])
    assert (advised, system) == (word, next(iter(candidates), "raw"))
    if not candidates:
        assert "No candidate was fitted that the graded labels could judge." in reasons


def test_the_first_of_equal_candidates_is_chosen():
    assert figures(choosing=(0.5, 0.5, 0.5, 0.5)).chosen == "whitening"


def test_the_reasons_give_the_numbers():
    labels, mined = figures(gains=BETTER), figures(MINED, gains=WORSE)
    assert decide(CONE, [labels, mined]).reasons == (
        "Random pairs have cosine 0.80 (90 % of them: 0.70 to 0.90), so a cosine alone does not say whether texts "
        "are alike.",
        "On 1,200 held-out graded labels, agreement with your scores (Spearman x 100) is 43.0 with "
        "whitening and 40.0 raw: better (+3.0, 95 % interval +1.0 to +5.0).",
        "On 1,200 held-out mined pairs, search quality (MRR x 100) is 37.0 with whitening and 40.0 "
        "raw: worse (-3.0, 95 % interval -5.0 to -1.0).",
    )


def test_without_pairs_the_reasons_say_what_is_missing():
    first, missing, shape, proof = decide(CONE, []).reasons
    assert first.endswith(RESCALED)
    assert missing == "Whether a change improves ranking cannot be proven on this text: there are no pairs."
    assert (shape, proof) == (f"{TUNED_SHAPE} {NOT_KNOWN}", PROOF)


@pytest.mark.parametrize(
    ("kinds", "purpose", "said"),
    [
        ([MINED], "similarity", MINED_ONLY),
        ([MINED], "search", None),
        ([LABELED["graded"], MINED], "similarity", None),
        ([LABELED["graded"], MINED], "all", SIMILARITY_ONLY),
        ([LABELED["binary"]], "search", SIMILARITY_ONLY),
        ([LABELED["retrieval"]], "search", None),
        ([LABELED["retrieval"]], "topic", SEARCH_ONLY),
    ],
)
def test_a_proven_change_says_what_its_pairs_do_not_measure(kinds, purpose, said):
    evidence = [figures(kind, gains=BETTER) for kind in kinds]
    decision = decide(CONE, evidence, purpose=purpose, shape=RAW_SHAPE, likely=["whitening"])
    assert decision.standing == (FOR_SEARCH if said == MINED_ONLY else PROVEN)
    assert {MINED_ONLY, SEARCH_ONLY, SIMILARITY_ONLY} & {*decision.reasons} == ({said} if said else set())


def test_where_nothing_is_changed_nothing_is_said_of_what_pairs_measure():
    decision = decide(CONE, [figures(MINED)], shape=RAW_SHAPE, likely=["whitening"])
    assert MINED_ONLY not in decision.reasons


def test_what_divides_by_nothing_takes_the_place_of_what_is_vetoed():
    def decided(vetoes, safe="whitening(8)", evidence=()):
        decision = decide(CONE, evidence, "search", RAW_SHAPE, ("whitening",), vetoes=vetoes, safe=safe)
        written = [reason for reason in decision.reasons if f"with {decision.system} and " in reason]
        assert len(written) == len(evidence) * (decision.system != "raw")  # what pairs say of what is written
        return decision.system, decision.standing, decision.beside

    assert decided({}) == ("whitening", LIKELY, "")
    assert decided(NARROW_FOR_ONE) == ("whitening(8)", GENTLE, "whitening")
    assert decided(NARROW_FOR_ONE, safe="") == ("raw", "", "whitening")
    assert decided({**NARROW_FOR_ONE, "whitening(8)": ("Other neighbors.",)}) == ("raw", "", "whitening")
    worse = [figures(MINED, gains={"whitening": WORSE, "whitening(8)": NOISE})]
    assert decided({}, evidence=worse) == ("whitening(8)", GENTLE, "")
    worse = [figures(MINED, gains={"whitening": WORSE, "whitening(8)": WORSE})]
    assert decided({}, evidence=worse) == ("raw", "", "")
    assert decided({"whitening(8)": ("The encoder is of another kind.",)}, evidence=()) == ("whitening", LIKELY, "")


@pytest.mark.parametrize(
    ("purpose", "kind", "gain", "system"),
    [
        ("search", MINED, WORSE, "raw"),
        ("search", MINED, PERHAPS_WORSE, "whitening(8)"),  # in text from templates mined pairs are hardly found at all
        ("all", MINED, PERHAPS_WORSE, "whitening(8)"),
        ("topic", MINED, PERHAPS_WORSE, "whitening(8)"),
        ("topic", LABELED["graded"], PERHAPS_WORSE, "raw"),
    ],
)
def test_labels_keep_a_safe_candidate_from_the_encoder_and_mined_pairs_by_more_than_chance(purpose, kind, gain, system):
    found = [figures(kind, gains=gain)]
    decision = decide(CONE, found, purpose, RAW_SHAPE, ("whitening",), vetoes=NARROW_FOR_ONE, safe="whitening(8)")
    assert decision.system == system
    left = [reason for reason in decision.reasons if "So whitening(8) is not used." in reason]
    assert bool(left) == (system == "raw")


@pytest.mark.parametrize(
    ("purpose", "gain", "narrow", "standing"),
    [
        ("all", BETTER, False, FOR_SEARCH),
        ("all", NOISE, False, GENTLE),
        ("all", BETTER, True, GENTLE),  # such pairs share words
        ("similarity", BETTER, False, GENTLE),
    ],
)
def test_pairs_that_agree_with_a_safe_candidate_prove_it_for_search_alone(purpose, gain, narrow, standing):
    evidence = [figures(MINED, gains={"whitening": NOISE if narrow else WORSE, "whitening(8)": gain})]
    vetoes = NARROW_FOR_ONE if narrow else {}
    decision = decide(CONE, evidence, purpose, RAW_SHAPE, ("whitening",), vetoes=vetoes, safe="whitening(8)")
    assert (decision.system, decision.standing) == ("whitening(8)", standing)


def test_a_narrow_text_is_named_also_where_pairs_have_put_the_recipe_aside():
    evidence = [figures(MINED, gains={"whitening": WORSE, "whitening(8)": BETTER})]
    decision = decide(CONE, evidence, "all", RAW_SHAPE, ("whitening",), vetoes=NARROW_FOR_ONE, safe="whitening(8)")
    assert (decision.system, decision.standing, decision.beside) == ("whitening(8)", GENTLE, "")
    _, against, instead, *others = decision.reasons
    assert against.startswith("The text is narrow. On 1,200 held-out mined pairs")
    assert against.endswith("So whitening is not used.")
    assert instead.startswith("whitening(8) is used instead")
    assert instead.endswith(NOT_SUCH)
    assert others[-1] == PROOF_BY_QUERIES


def test_pairs_that_speak_for_what_is_vetoed_are_doubted():
    evidence = [figures(MINED, gains={"whitening": BETTER, "whitening(8)": NOISE})]
    decision = decide(CONE, evidence, "all", RAW_SHAPE, ("whitening",), vetoes=NARROW_FOR_ONE, safe="whitening(8)")
    assert decision.beside == "whitening"
    (said,) = (reason for reason in decision.reasons if "with whitening and" in reason)
    assert said.endswith(NOT_SUCH)
    assert sum(NOT_SUCH in reason for reason in decision.reasons) == 1


def test_a_recipe_that_was_not_wanted_is_not_told():
    gains = {"whitening": BETTER, "whitening(8)": WORSE, "flow": NOISE, "flow(8)": NOISE}
    mined = [figures(MINED, gains=gains)]
    vetoed = decide(CONE, mined, "search", RAW_SHAPE, ("whitening(8)",), vetoes=NARROW_FOR_ONE)
    assert (vetoed.system, vetoed.beside) == ("raw", "whitening")
    assert not any("So whitening(8) is not used." in reason for reason in vetoed.reasons)

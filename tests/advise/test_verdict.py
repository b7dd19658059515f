"""The decision as a table: geometry and figures in, verdict out."""

import pytest

from bertflow.advise.verdict import CENTERED, MINED_ONLY, RESCALED, Figures, Gain, Geometry, choose, decide

ADVICE = {"whitening": "whiten", "whitening(8)": "whiten", "flow": "use the flow", "flow(8)": "use the flow"}
NOISE = (-0.1, 0.1)
"""An interval of a difference that may be chance."""


def geometry(median):
    return Geometry(400, 16, median, median - 0.1, median, median + 0.1, 7.0, 1.5, 0.25)


def gain(interval):
    low, high = interval
    return Gain((low + high) / 2 if low is not None else 0.01, low, high)


def figures(kind="graded labels", choosing=(0.5, 0.4, 0.3, 0.2), lead=NOISE, gains=NOISE, advice=tuple(ADVICE)):
    """Evidence about candidates.

    Args:
        kind: Its name.
        choosing: Scores of the candidates on the choosing half, in their order.
        lead: Interval of the best flow's lead over the best whitening, on the choosing half.
        gains: Interval of the gain over raw, on the judging half: one for all, or one for each.
        advice: The candidates.
    """
    intervals = dict.fromkeys(advice, gains) if isinstance(gains, tuple) else gains
    return Figures(
        kind=kind,
        metric="Spearman x 100",
        pairs=1200,
        choosing=dict(zip(advice, choosing, strict=False)),
        leads={(one, other): gain(lead) for one in advice for other in advice},
        judging={"raw": 0.4, **{name: 0.4 + gain(interval).difference for name, interval in intervals.items()}},
        gains={name: gain(interval) for name, interval in intervals.items()},
    )


CONE, CENTERED_CLOUD, BORDER = 0.8, 0.05, CENTERED
BETTER, WORSE = (0.01, 0.05), (-0.05, -0.01)
ROWS = {
    "a cone, and no pairs": (CONE, [], "rescale the scores", "raw"),
    "near zero, and no pairs": (CENTERED_CLOUD, [], "you need labels", "raw"),
    "exactly at the border, and no pairs": (BORDER, [], "you need labels", "raw"),
    "just above the border, and no pairs": (BORDER + 1e-9, [], "rescale the scores", "raw"),
    "a cone, whitening is better": (CONE, [figures(gains=BETTER)], "whiten", "whitening"),
    "near zero, whitening is better all the same": (CENTERED_CLOUD, [figures(gains=BETTER)], "whiten", "whitening"),
    "a cone, the gain may be chance": (CONE, [figures()], "rescale the scores", "raw"),
    "near zero, the gain may be chance": (CENTERED_CLOUD, [figures()], "leave it", "raw"),
    "exactly at the border, the gain may be chance": (BORDER, [figures()], "leave it", "raw"),
    "a cone, whitening is worse": (CONE, [figures(gains=WORSE)], "rescale the scores", "raw"),
    "near zero, whitening is worse": (CENTERED_CLOUD, [figures(gains=WORSE)], "leave it", "raw"),
    "the interval touches zero": (CONE, [figures(gains=(0.0, 0.05))], "rescale the scores", "raw"),
    "the interval is just above zero": (CONE, [figures(gains=(1e-9, 0.05))], "whiten", "whitening"),
    "no interval": (CONE, [figures(gains=(None, None))], "rescale the scores", "raw"),
    "fewer directions are better": (
        CONE,
        [figures(choosing=(0.4, 0.5, 0.3, 0.2), gains=BETTER)],
        "whiten",
        "whitening(8)",
    ),
    "a flow scores more, by chance": (
        CONE,
        [figures(choosing=(0.3, 0.2, 0.4, 0.5), gains=BETTER)],
        "whiten",
        "whitening",
    ),
    "a flow is better than whitening": (
        CONE,
        [figures(choosing=(0.3, 0.2, 0.4, 0.5), lead=BETTER, gains=BETTER)],
        "use the flow",
        "flow(8)",
    ),
    "the flow's lead touches zero": (CONE, [figures(lead=(0.0, 0.1), gains=BETTER)], "whiten", "whitening"),
    "a flow is better than whitening, not than raw": (CONE, [figures(lead=BETTER)], "rescale the scores", "raw"),
    "only the candidate that was not chosen is better": (
        CONE,
        [figures(gains={"whitening": NOISE, "whitening(8)": BETTER, "flow": BETTER, "flow(8)": BETTER})],
        "rescale the scores",
        "raw",
    ),
    "mined pairs alone": (CONE, [figures("mined pairs", gains=BETTER)], "whiten", "whitening"),
    "labels say no, mined pairs yes": (
        CONE,
        [figures(), figures("mined pairs", gains=BETTER)],
        "rescale the scores",
        "raw",
    ),
    "labels say yes, mined pairs no": (CONE, [figures(gains=BETTER), figures("mined pairs")], "whiten", "whitening"),
}


@pytest.mark.parametrize("row", ROWS)
def test_the_verdict(row):
    median, evidence, word, system = ROWS[row]
    verdict = decide(geometry(median), evidence, ADVICE, "there are no pairs.")
    assert (verdict.verdict, verdict.system) == (word, system)


@pytest.mark.parametrize(
    ("advice", "word"),
    [
        ({"flow": "use the flow"}, "use the flow"),
        ({"whitening": "whiten"}, "whiten"),
        ({"abtt": "use abtt"}, "use abtt"),
        ({}, "rescale the scores"),
    ],
    ids=["only a flow", "only whitening", "another closed form", "nothing could be fitted"],
)
def test_what_was_not_tried_is_not_chosen(advice, word):
    evidence = [figures(gains=BETTER, advice=tuple(advice))]
    verdict = decide(geometry(CONE), evidence, advice)
    assert (verdict.verdict, verdict.system) == (word, next(iter(advice), "raw"))
    if not advice:
        assert "Nothing could be fitted, so the graded labels have nothing to judge." in verdict.reasons


def test_the_first_of_equal_candidates_is_chosen():
    assert choose(figures(choosing=(0.5, 0.5, 0.5, 0.5)), ADVICE) == "whitening"


def test_the_reasons_give_the_numbers():
    labels, mined = figures(gains=BETTER), figures("mined pairs", gains=WORSE)
    assert decide(geometry(CONE), [labels, mined], ADVICE).reasons == (
        "Two random texts have a cosine of 0.80 (90 % of them 0.70 to 0.90): the size of a cosine says little.",
        "On 1,200 graded labels that nothing was fitted on or chosen by, whitening has Spearman x 100 43.0, raw 40.0: "
        "better (+3.0, 95 % interval +1.0 to +5.0).",
        "On 1,200 mined pairs that nothing was fitted on or chosen by, whitening has Spearman x 100 37.0, raw 40.0: "
        "worse (-3.0, 95 % interval -5.0 to -1.0).",
    )


def test_without_pairs_the_reasons_say_what_is_missing():
    assert decide(geometry(CONE), [], ADVICE, "there are no pairs.").reasons[1:] == (
        RESCALED,
        "Whether a change ranks better is unknown: there are no pairs. Give labels: pairs that you judged.",
    )


@pytest.mark.parametrize(
    ("evidence", "said"),
    [
        ([figures("mined pairs", gains=BETTER)], True),
        ([figures(gains=BETTER), figures("mined pairs", gains=BETTER)], False),
        ([figures("mined pairs")], False),
    ],
    ids=["mined pairs decided", "labels decided", "nothing is changed"],
)
def test_a_change_by_mined_pairs_alone_says_that_they_measure_search(evidence, said):
    assert (MINED_ONLY in decide(geometry(CONE), evidence, ADVICE).reasons) == said


def test_every_verdict_has_its_row():
    words = {word for _, _, word, _ in ROWS.values()}
    assert words == {"leave it", "rescale the scores", "whiten", "use the flow", "you need labels"}

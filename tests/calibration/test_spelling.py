import numpy as np
import pytest

from bertflow.calibration.background import Background
from bertflow.calibration.blocks import Blocks
from bertflow.calibration.closed_forms import CLOSED_FORMS, Center, Ridge, TwoBand, Whitening
from bertflow.calibration.spelling import SystemSpec, parse_calibrator, parse_system, parse_systems
from bertflow.encoder.pooling import POOLINGS
from bertflow.errors import UsageError

from ..evaluation.conftest import ToyEncoder, toy_pairs


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [
        ("raw", SystemSpec("raw")),
        ("center", SystemSpec("center", None, "center")),
        ("abtt(7)", SystemSpec("abtt(7)", None, "abtt", 7)),
        ("whitening(64)", SystemSpec("whitening(64)", None, "whitening", 64)),
        ("whitening(64,power=0.5)", SystemSpec("whitening(64,power=0.5)", None, "whitening", 64, (("power", 0.5),))),
        ("sif", SystemSpec("sif", "sif")),
        ("sif+whitening(64)", SystemSpec("sif+whitening(64)", "sif", "whitening", 64)),
        ("mean(0)+abtt", SystemSpec("mean(0)+abtt", "mean(0)", "abtt")),
        ("sn", SystemSpec("sn", None, "standardize")),
        ("natsv(10)", SystemSpec("natsv(10)", None, "abtt", 10)),
        ("cls", SystemSpec("cls", "cls")),
        ("static", SystemSpec("static", "static")),
        ("ridge(0.25)", SystemSpec("ridge(0.25)", None, "ridge", 0.25)),
        ("first-last-avg+two-band(1)", SystemSpec("first-last-avg+two-band(1)", "first-last-avg", "two-band", 1.0)),
        ("two-band", SystemSpec("two-band", None, "two-band")),
        (
            "concat(0,3)+blocks(ridge(1),12)",
            SystemSpec("concat(0,3)+blocks(ridge(1),12)", "concat(0,3)", "blocks", "ridge(1),12"),
        ),
        ("ridge(1)+crops", SystemSpec("ridge(1)+crops", None, "ridge", 1.0, crops=True)),
        ("sif+ridge(1)+crops", SystemSpec("sif+ridge(1)+crops", "sif", "ridge", 1.0, crops=True)),
    ],
)
def test_a_spelling_is_a_pooling_and_a_calibrator(spelling, expected):
    assert parse_system(spelling) == expected


def test_commas_within_brackets_do_not_part_a_list():
    listed = "raw, mean(1,2)+center ,raw,sif(0,3), whitening(8,power=0.5),blocks(whitening(5), 3)"
    listed += ",concat(0,3)+blocks(two-band(1)),center"
    assert [one.spelling for one in parse_systems(listed)] == [
        "raw",
        "mean(1,2)+center",
        "sif(0,3)",
        "whitening(8,power=0.5)",
        "blocks(whitening(5), 3)",
        "concat(0,3)+blocks(two-band(1))",
        "center",
    ]


@pytest.mark.parametrize(
    ("spelling", "made"),
    [
        ("ridge(1)", Ridge(1.0)),
        ("whitening(power=0.5)", Whitening(power=0.5)),
        ("whitening(64, power=0.25)", Whitening(64, 0.25)),
        ("two-band", TwoBand(0.5)),
        ("background(0.5)", Background(0.5)),
        ("blocks", Blocks("whitening")),
        ("blocks(two-band(0.5))", Blocks("two-band(0.5)")),
        ("blocks( ridge(1) , 384)", Blocks("ridge(1)", 384)),
        ("blocks(whitening(64),32)", Blocks("whitening(64)", 32)),
        ("blocks(whitening(power=0.5),32)", Blocks("whitening(power=0.5)", 32)),
    ],
)
def test_what_stands_in_brackets_sets_the_parameters(spelling, made):
    assert parse_calibrator(spelling).get_params() == made.get_params()


@pytest.mark.parametrize(
    ("spelling", "message"),
    [
        ("ridge(-1)", "ridge takes a number in brackets, got (-1). Known: "),
        ("ridge(1e3)", "ridge takes a number in brackets, got (1e3). Known: "),
        ("whitening(0.5)", "whitening takes a number or power=NUMBER in brackets, got (0.5). Known: "),
        ("whitening(8,rank=2)", "whitening takes a number or power=NUMBER in brackets, got (8,rank=2). Known: "),
        ("ridge(1,power=2)", "ridge takes a number in brackets, got (1,power=2). Known: "),
        ("center(power=1)", "center takes nothing in brackets, got (power=1). Known: "),
        ("blocks(flow)", "Unknown calibrator of blocks 'flow'. Known: "),
        ("blocks(64)", "A calibrator is a name and one number, as whitening(128); got '64'. Known: "),
        ("blocks(whitening,0)", "Blocks(n_components=...) takes a whole number of directions, 1 or more, got 0."),
        ("blocks(whiten)", "Unknown calibrator of blocks 'whiten'. Known: "),
        ("blocks()", "A calibrator is a name and one number, as whitening(128); got 'blocks()'. Known: "),
    ],
)
def test_what_cannot_stand_in_brackets_is_said(spelling, message):
    with pytest.raises(UsageError) as refused:
        parse_calibrator(spelling)
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


def test_no_list_is_no_baselines():
    assert parse_systems("") == []


@pytest.mark.parametrize(
    "spelling", ["whiten", "center(3)", "abtt(x)", "sif+mean+center", "whitening(64", "raw+center", "blocks(flow)"]
)
def test_a_misspelled_baseline_lists_the_known_ones(spelling, refusal):
    assert refusal(parse_system, spelling, error=UsageError) == (
        f"Unknown baseline {spelling!r}. Known: raw, center, standardize, abtt, whitening, ridge, two-band, "
        f"background, blocks, flow, abtt(N), whitening(N), ridge(N), two-band(N), background(N), blocks(C), flow(N), "
        f"sif, soft-sif, faint-sif, static, static-sif; a pooling ({', '.join(POOLINGS)}, or written out as "
        "mean(1,2)); and a pooling with a calibrator, as sif+whitening(64)."
        + (" Did you mean whitening?" if spelling == "whiten" else "")
    )


@pytest.mark.parametrize(("own", "expected"), [("mean(1,2)", "sif(1,2)"), ("cls(3)", "sif(3)"), ("mean", "sif")])
def test_sif_reads_the_layers_of_the_encoders_own_pooling(own, expected):
    assert parse_system("sif").pooling_for(own) == expected
    assert parse_system("raw").pooling_for(own) == own


@pytest.mark.parametrize("spelling", list(CLOSED_FORMS))
def test_a_baseline_refitted_from_moments_is_the_one_fitted_on_the_text(spelling):
    encoder, pairs = ToyEncoder(), toy_pairs()
    sentences = list(dict.fromkeys([*pairs.first, *pairs.second]))
    baseline = parse_system(spelling)
    fitted = baseline.make().fit_sentences(encoder, sentences)
    refitted = baseline.refitted(Whitening(n_components=2).fit_sentences(encoder, sentences))
    x = encoder.encode(sentences)
    np.testing.assert_array_equal(refitted.transform(x), fitted.transform(x))
    np.testing.assert_array_equal(refitted.provenance.text_hashes, fitted.provenance.text_hashes)


def test_what_is_no_function_of_the_moments_needs_text(refusal):
    fitted = Center().fit(np.random.default_rng(0).normal(size=(20, 4)))
    assert refusal(lambda: parse_system("flow").refitted(fitted), error=UsageError) == (
        "flow cannot be fitted from moments alone. Give text with --fit_on."
    )


def test_crops_need_a_calibrator(refusal):
    assert refusal(parse_system, "sif+crops", error=UsageError) == (
        "Crops need a calibrator that is fitted to them, as ridge(1)+crops; got 'sif+crops'."
    )
    assert refusal(parse_system, "whiten+crops", error=UsageError).startswith("Unknown baseline 'whiten+crops'.")


def test_crops_give_queries_a_mean_of_their_own():
    fitted = parse_system("ridge(1)+crops")
    assert set(" ".join(fitted.queries(["a dog runs", "the cat"])).split()) == {"dog", "runs", "the", "cat"}
    assert parse_system("ridge(1)").queries(["a dog runs"]) is None
    assert not fitted.refittable

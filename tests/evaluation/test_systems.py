from dataclasses import asdict
from itertools import permutations

import numpy as np
import pytest

from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.closed_forms import Whitening
from bertflow.calibration.spelling import parse_systems
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import UsageError
from bertflow.evaluation.evaluating import score_sets
from bertflow.evaluation.score_table import SystemFacts
from bertflow.evaluation.systems import SharedPass, build_systems, open_system
from bertflow.files import write_json

SENTENCES = ["the dog runs", "a cat sleeps", "the big bird sings", "a man in the house", "red garden", "the cat eats"]
EQUAL = 1e-5
"""Two batchings of one encoder differ by rounding."""


@pytest.fixture
def calibrated(tiny_bert, tmp_path):
    encoder = TransformerEncoder(tiny_bert, pooling="mean(1,2)", max_length=32, device="cpu")
    fitted = CalibratedEncoder.fit(encoder, Whitening(n_components=3), SENTENCES)
    fitted.save(tmp_path / "mine")
    return fitted, tmp_path / "mine"


def built(opened, compare="", corpus=None):
    return build_systems(opened, parse_systems(compare), corpus)


def test_an_encoder_is_scored_as_it_comes(tiny_bert):
    opened = open_system(str(tiny_bert), device="cpu", pooling="cls(2)", max_length=32)
    systems = built([opened])
    assert list(systems) == ["raw"]
    assert systems["raw"].describe()["pooling"] == "cls(2)"
    expected = TransformerEncoder(tiny_bert, pooling="cls(2)", max_length=32, device="cpu").encode(SENTENCES)
    np.testing.assert_array_equal(systems["raw"].encode(SENTENCES), expected)


def test_a_calibrated_encoder_is_opened_with_its_recipe(calibrated):
    fitted, folder = calibrated
    systems = built([open_system(str(folder), device="cpu")])
    assert list(systems) == ["mine"]
    np.testing.assert_array_equal(systems["mine"].encode(SENTENCES), fitted.encode(SENTENCES))
    assert systems["mine"].describe() == fitted.describe()


def test_a_run_is_opened_by_the_recipe_in_its_record(calibrated, tiny_bert, tmp_path):
    fitted, _ = calibrated
    fitted.calibrator.save(tmp_path / "run" / "calibrator")
    recipe = {"model": str(tiny_bert), "pooling": "mean(1,2)", "max_length": 32}
    write_json(tmp_path / "run" / "run.json", {"encoder": recipe})
    systems = built([open_system(str(tmp_path / "run"), device="cpu")])
    np.testing.assert_array_equal(systems["run"].encode(SENTENCES), fitted.encode(SENTENCES))


def test_a_run_without_its_recipe_is_refused(calibrated, tmp_path, refusal):
    calibrated[0].calibrator.save(tmp_path / "run" / "calibrator")
    write_json(tmp_path / "run" / "run.json", {})
    assert refusal(open_system, str(tmp_path / "run"), device="cpu") == (
        f"{tmp_path / 'run' / 'run.json'} is not a complete training run: it has no encoder. Train again."
    )


def test_baselines_are_refitted_from_the_moments_of_a_calibrator(calibrated):
    fitted, folder = calibrated
    systems = built([open_system(str(folder), device="cpu")], "raw,whitening(3),center")
    assert list(systems) == ["raw", "whitening(3)", "center", "mine"]
    np.testing.assert_allclose(systems["whitening(3)"].encode(SENTENCES), fitted.encode(SENTENCES), atol=EQUAL)
    np.testing.assert_array_equal(systems["center"].fitted_hashes(), fitted.fitted_hashes())


def test_baselines_are_fitted_on_a_corpus(tiny_bert):
    opened = open_system(str(tiny_bert), device="cpu", pooling="mean(1,2)")
    systems = built([opened], "whitening(3)", SENTENCES)
    encoder = TransformerEncoder(tiny_bert, pooling="mean(1,2)", device="cpu")
    expected = CalibratedEncoder.fit(encoder, Whitening(n_components=3), SENTENCES)
    np.testing.assert_allclose(systems["whitening(3)"].encode(SENTENCES), expected.encode(SENTENCES), atol=EQUAL)


@pytest.mark.parametrize("compare", ["center", "sif", "sif+center", "center+crops"])
def test_a_baseline_without_text_or_moments_is_refused(tiny_bert, compare, refusal):
    assert refusal(built, [open_system(str(tiny_bert), device="cpu")], compare, error=UsageError) == (
        f"{compare} needs text to be fitted on. Give fit_on: a file, or eval for the scored sentences."
    )


def test_of_several_encoders_it_is_said_which_one_has_no_moments(tiny_bert, refusal):
    raw, other = (TransformerEncoder(tiny_bert, pooling=pooling, device="cpu") for pooling in ("mean(1)", "mean(2)"))
    opened = [SharedPass(raw, "mine"), SharedPass(CalibratedEncoder.fit(other, Whitening(3), SENTENCES), "fixed")]
    message = refusal(built, opened, "whitening", error=UsageError)
    assert message.startswith("whitening of mine needs text to be fitted on.")


def test_crops_are_fitted_as_queries(tiny_bert):
    system = built([open_system(str(tiny_bert), device="cpu")], "ridge(1)+crops", SENTENCES)["ridge(1)+crops"]
    assert system.has_roles
    assert not np.allclose(system.encode_query(SENTENCES), system.encode(SENTENCES), atol=0.01)


def test_a_pooling_of_its_own_cannot_use_the_moments_of_another(calibrated):
    with pytest.raises(UsageError):
        built([open_system(str(calibrated[1]), device="cpu")], "mean(0)+center")


def test_poolings_of_one_encoder_share_a_pass(tiny_bert, monkeypatch):
    passes = []
    encode_poolings = TransformerEncoder.encode_poolings

    def counted(self, sentences, poolings, *rest):
        passes.append((len(sentences), sorted(poolings)))
        return encode_poolings(self, sentences, poolings, *rest)

    monkeypatch.setattr(TransformerEncoder, "encode_poolings", counted)
    opened = open_system(str(tiny_bert), device="cpu", pooling="mean(1,2)")
    systems = built([opened], "raw,center,sif,sif+whitening(2),mean(0)", SENTENCES)
    found = {name: system.encode(SENTENCES) for name, system in systems.items()}
    assert passes == [(6, ["mean(0)", "mean(1,2)", "sif(1,2)"])]
    sif = TransformerEncoder(tiny_bert, pooling="sif(1,2)", device="cpu").count_tokens(SENTENCES)
    np.testing.assert_allclose(found["sif"], sif.encode(SENTENCES), atol=EQUAL)


def test_token_counts_that_an_encoder_brings_are_kept(tiny_bert):
    def counted():
        return TransformerEncoder(tiny_bert, pooling="sif(1)", device="cpu").count_tokens(SENTENCES[:2])

    shared = SharedPass(counted())
    shared.pooled("sif(1)", SENTENCES)
    np.testing.assert_allclose(shared.pooled("sif(1)").encode(SENTENCES), counted().encode(SENTENCES), atol=EQUAL)


def test_systems_of_several_encoders_say_whose_they_are(tiny_bert, calibrated):
    other = open_system(str(tiny_bert), device="cpu", pooling="cls")
    systems = built([other, open_system(str(calibrated[1]), device="cpu")], "center", SENTENCES)
    assert list(systems) == ["raw of tiny-bert (cls)", "center of tiny-bert", "center of mine", "mine"]


def test_a_saved_encoder_without_a_calibrator_keeps_its_name_beside_raw(tiny_bert, calibrated, tmp_path):
    weighs = TransformerEncoder(tiny_bert, pooling="sif(1)", device="cpu").count_tokens(SENTENCES)
    weighs.save(tmp_path / "fixed" / "encoder")
    opened = [open_system(tmp_path / "fixed" / "encoder", device="cpu"), open_system(calibrated[1], device="cpu")]
    assert {"fixed/encoder", "mine"} <= {*built(opened, "raw", SENTENCES)}


def test_an_encoder_and_what_was_fitted_on_it_share_their_baselines(tiny_bert, calibrated):
    raw = open_system(str(tiny_bert), device="cpu", pooling="mean(1,2)", max_length=32)
    assert list(built([raw, open_system(str(calibrated[1]), device="cpu")], "center")) == ["raw", "center", "mine"]


def test_the_raw_encoder_of_a_run_has_its_own_name_if_it_is_given_too(tiny_bert, calibrated):
    other = open_system(str(tiny_bert), device="cpu", pooling="cls")
    raw = open_system(str(tiny_bert), device="cpu", pooling="mean(1,2)", max_length=32)
    raw.name = "plain"
    systems = built([open_system(str(calibrated[1]), device="cpu"), raw, other], "center", SENTENCES)
    assert {"raw of plain (mean(1,2))", "center of plain", "mine"} < set(systems)


def test_two_systems_of_one_name_are_refused(calibrated, refusal):
    opened = open_system(str(calibrated[1]), device="cpu")
    said = "Two systems would be called 'mine'. Name one as NAME=path, or leave one out."
    assert refusal(built, [opened, opened], error=UsageError) == said


@pytest.fixture
def three(tiny_bert, tmp_path):
    """Two calibrators that were fitted on the same text, and one on other text."""
    encoder = TransformerEncoder(tiny_bert, pooling="mean(1,2)", max_length=32, device="cpu")
    for name, text in {"one": SENTENCES, "other": SENTENCES[:4], "two": SENTENCES}.items():
        CalibratedEncoder.fit(encoder, Whitening(n_components=2), text).save(tmp_path / name)
    return [tmp_path / name for name in ("one", "other", "two")]


def test_every_text_that_was_fitted_on_has_its_own_baselines(three):
    systems = built([open_system(str(folder), device="cpu") for folder in three], "raw,whitening(2)")
    assert set(systems) == {"raw", "whitening(2) of one", "whitening(2) of other", "one", "other", "two"}
    for name in ("one", "other"):
        theirs = systems[f"whitening(2) of {name}"].encode(SENTENCES)
        np.testing.assert_allclose(theirs, systems[name].encode(SENTENCES), atol=EQUAL)


def test_no_comparison_depends_on_the_order_of_arguments(three, pairs):
    found = []
    for order in permutations(three):
        report = score_sets(built([open_system(str(folder), device="cpu") for folder in order], "raw,center"), [pairs])
        rows = {(row.system, row.metric, row.aggregation, row.subset): row.as_dict() for row in report.rows}
        both = {(row.first, row.second, row.metric): row for row in report.differences}
        both |= {(second, first, metric): row.seen_from(second) for (first, second, metric), row in both.items()}
        found.append((rows, both, set(report.comparison())))
    for rows, both, lines in found[1:]:
        assert rows == found[0][0]
        assert lines == found[0][2]
        assert both.keys() == found[0][1].keys()
        for place, row in both.items():
            for name, value in asdict(row).items():
                assert value == pytest.approx(asdict(found[0][1][place])[name], abs=1e-9), (place, name)
    apart = [line for line in found[0][2] if "fitted on different text" in line]
    assert len(apart) == 2
    assert any("(center of other on 4 rows and one on 6 rows)" in line for line in apart)


def test_whether_unknown_text_is_the_same_is_said_to_be_unknown(tiny_bert, pairs):
    encoder = TransformerEncoder(tiny_bert, pooling="mean(1,2)", max_length=32, device="cpu")
    x = encoder.encode(SENTENCES)
    known = CalibratedEncoder.fit(encoder, Whitening(n_components=2), SENTENCES)
    bare = {"bare": x, "again": x, "other": x + 1, "fewer": x[:4]}
    systems = {name: CalibratedEncoder(encoder, Whitening(n_components=2).fit(rows)) for name, rows in bare.items()}
    facts = {name: SystemFacts.of(name, system) for name, system in {"known": known, **systems}.items()}
    assert facts["bare"].fitted_apart(facts["again"]) == ""
    assert facts["bare"].fitted_apart(facts["other"]) == (
        ", fitted on text that may differ (bare on 6 rows and other on 6 rows)"
    )
    assert facts["known"].fitted_apart(facts["bare"]) == (
        ", fitted on text that may differ (bare on 6 rows and known on 6 rows)"
    )
    apart = ", fitted on different text (bare on 6 rows and fewer on 4 rows)"
    assert facts["fewer"].fitted_apart(facts["bare"]) == facts["bare"].fitted_apart(facts["fewer"]) == apart
    lines = score_sets({name: systems[name] for name in ("bare", "other", "fewer")}, [pairs]).comparison()
    assert {"different" if "fewer" in line else "that may differ" in line for line in lines} == {"different", True}
    assert "whitening(2)" not in facts["bare"].fitted_apart(SystemFacts.of("raw", encoder))

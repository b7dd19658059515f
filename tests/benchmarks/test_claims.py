"""The ledger of claims: complete rows, verdicts that follow from their numbers, and a page that prints without data."""

import importlib
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from bertflow.data.pairs import Pairs

from .conftest import FOLDER, imported, read_json

pytestmark = pytest.mark.usefixtures("benchmark")  # which puts the folder on the path


rules, command = imported("claims_rules"), imported("claims")


@pytest.fixture
def claims(benchmark):
    return benchmark("claims_table").CLAIMS


@pytest.fixture
def ledger():
    return read_json(FOLDER / "claims.json")


def test_every_claim_was_measured_on_every_encoder(claims, ledger, rules):
    assert set(ledger) == set(claims)
    assert all(set(kept["results"]) == set(rules.SUBJECTS) for kept in ledger.values())


def test_every_measuring_function_is_there_and_says_what_it_measures(claims):
    for claim in claims.values():
        module, function = claim.measure.split(":")
        if module == "compare":
            assert set(function.split(" - ")) <= set(importlib.import_module("claims_systems").SYSTEMS)
        else:
            assert getattr(importlib.import_module(module), function).__doc__


def test_every_function_of_the_package_that_a_claim_names_is_there(claims):
    for claim in claims.values():
        for name in claim.by.split(", ") if "`" not in claim.by else ():
            module, _, function = name.rpartition(".")
            assert callable(getattr(importlib.import_module(module), function)), name


def test_every_verdict_follows_from_its_numbers(claims, ledger, rules):
    for name, kept in ledger.items():
        for part, found in kept["results"].items():
            assert found["verdict"] == rules.verdict(claims[name], rules.result_from(found)), (name, part)


VERDICTS = {
    (0.7, 0.6, 0.8): ("HOLDS", "FAILS"),
    (0.7, 0.4, 0.9): ("UNTESTED", "UNTESTED"),
    (0.3, 0.2, 0.4): ("FAILS", "HOLDS"),
    (0.3, 0.2, 0.6): ("UNTESTED", "UNTESTED"),
    (0.7, None, None): ("HOLDS", "FAILS"),
    (0.5, None, None): ("FAILS", "FAILS"),
    (0.3, None, None): ("FAILS", "HOLDS"),
}
"""A value and its interval -> the verdicts on claims that it is above 0.5, and below."""


@pytest.mark.parametrize("side", [0, 1], ids=["above", "below"])
@pytest.mark.parametrize("measured", VERDICTS, ids=str)
def test_the_rule_by_hand(rules, measured, side):
    claim = rules.Claim("It is so.", "a paper", "m:f", "effect", 0.5, "a function", ("above", "below")[side])
    found = rules.Measured(*measured, 10, "pairs")
    assert rules.verdict(claim, found) == getattr(rules, VERDICTS[measured][side])


def test_the_printed_ledger_is_the_one_that_is_kept(command):
    printed = importlib.import_module("claims_print").to_markdown(command.read_ledger(FOLDER / "claims.json"))
    assert printed == (FOLDER / "claims.md").read_text("utf-8")


@pytest.fixture
def measuring(command, rules, claims, monkeypatch):
    """A bench whose every claim measures 1, and which keeps what is asked of it."""
    bench = SimpleNamespace(folders={}, seed=0, resamples=10, asked=[], stop_at=None)

    def measured(_, name):
        bench.asked.append(name)
        if name == bench.stop_at:
            raise KeyboardInterrupt
        result = rules.Measured(1.0, 0.9, 1.1, 5, "pairs", {})
        return {part: {**result.to_dict(), "verdict": rules.verdict(claims[name], result)} for part in rules.SUBJECTS}

    monkeypatch.setattr(command, "measured", measured)
    return bench


def test_a_run_that_was_stopped_goes_on_where_it_was(command, measuring, tmp_path):
    path = tmp_path / "claims.json"
    measuring.stop_at = "centering"
    names = ["cone", "cls", "centering", "flow"]
    with pytest.raises(KeyboardInterrupt):
        command.run(measuring, {}, names, path)
    assert set(read_json(path)) == {"cone", "cls"}
    measuring.asked.clear()
    measuring.stop_at = None
    command.run(measuring, command.read_ledger(path), names, path)
    assert measuring.asked == ["centering", "flow"]


def test_other_conditions_are_measured_anew(command, measuring, tmp_path):
    path = tmp_path / "claims.json"
    command.run(measuring, {}, ["cone"], path)
    measuring.resamples = 20
    command.run(measuring, command.read_ledger(path), ["cone"], path)
    assert measuring.asked == ["cone", "cone"]


def test_a_verdict_in_the_file_that_its_numbers_deny_is_not_believed(command, tmp_path, rules):
    path = tmp_path / "claims.json"
    shutil.copy(FOLDER / "claims.json", path)
    kept = read_json(path)
    kept["rare-far"]["results"]["inner"]["verdict"] = rules.HOLDS
    path.write_text(json.dumps(kept))
    assert command.read_ledger(path)["rare-far"]["results"]["inner"]["verdict"] == rules.FAILS


def test_weighted_mean_cosine_of_each_row_once_is_the_mean_cosine():
    sentences = importlib.import_module("claims_sentences")
    x = np.random.default_rng(0).normal(1, 1, (40, 6))
    units = x / np.linalg.norm(x, axis=1, keepdims=True)
    cosines = units @ units.T
    drawn = np.array([[2.0] * 20 + [0.0] * 20, [1.0] * 40])
    found = sentences.weighted_coordinates(units, drawn).sum(1)
    half = cosines[:20, :20]
    for value, matrix in zip(found, (half, cosines), strict=True):
        n = len(matrix)
        np.testing.assert_allclose(value, (matrix.sum() - n) / (n * (n - 1)))


@pytest.fixture
def bench():
    """The resampling of a bench, without its text."""
    made = object.__new__(importlib.import_module("claims_bench").Bench)
    made.seed, made.resamples = 0, 400
    return made


def test_bootstrap_means_spread_as_the_standard_error(bench):
    values = np.random.default_rng(0).normal(3, 2, 500)
    drawn = bench.means("any", values)
    assert drawn.mean() == pytest.approx(3, abs=0.3)
    assert drawn.std() == pytest.approx(values.std() / 500**0.5, rel=0.2)


def test_redrawn_rows_give_the_mean_that_weights_give(bench):
    values = np.random.default_rng(0).normal(3, 2, 50)
    by_rows = bench.redrawn("any", 50, lambda rows: values[rows].mean())
    np.testing.assert_allclose(by_rows, bench.means("any", values))


def test_choosing_the_best_system_costs_nothing_and_another_one_does(bench):
    rng = np.random.default_rng(0)
    gold = rng.uniform(0, 5, 300)
    names = tuple(f"sentence {number}" for number in range(600))
    pairs = Pairs("toy", names[:300], names[300:], gold, split="test", source="toy")
    bench.sample = SimpleNamespace(sets=[pairs])
    figure = bench.scores([[gold + rng.normal(0, noise, 300)] for noise in (0.1, 1.0, 3.0)])
    kind, (best, worst) = importlib.import_module("claims_bench"), np.array([[3, 2, 1], [1, 2, 3]])
    right, wrong = kind.chosen_by(best, figure), kind.chosen_by(worst, figure)
    assert (right.value, right.low, right.high) == (0, 0, 0)
    assert wrong.high < -10
    assert right.numbers["chosen"] == wrong.numbers["best"]
    assert kind.ranked_by(best, figure).value == 1
    assert kind.ranked_by(worst, figure).value == -1

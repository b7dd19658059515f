"""One flow with several seeds: the fits, their mean, and the interval of the mean, each by a second voice."""

import csv
import io
import json
import shutil

import numpy as np
import pytest
from scipy.stats import norm

import bertflow
from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.closed_forms import Whitening
from bertflow.calibration.flow import FlowCalibrator
from bertflow.data.fitting_text import TextOptions
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import DataError, UsageError
from bertflow.evaluation.seeds import SeveralSeeds
from bertflow.evaluation.significance import Figure, generator
from bertflow.store.store import EmbeddingStore
from bertflow.training.trainer import repeatable_options

from ..texts import TWELVE as WORDS

RECIPE = {"batch_size": 32, "learning_rate": 0.01, "n_components": "all", "glow": {"hidden": 8}}
SCORED = {"tasks": "news,chat", "resamples": 60, "device": "cpu", "progress": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two tasks, and text to fit on."""
    folder, rng = tmp_path_factory.mktemp("seeds"), np.random.default_rng(0)
    for task in ("news", "chat"):
        pairs = ((" ".join(rng.choice(WORDS, 4)), " ".join(rng.choice(WORDS, 4))) for _ in range(60))
        rows = (f"{one}\t{other}\t{rng.integers(0, 6)}" for one, other in pairs)
        (folder / f"{task}.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *rows]) + "\n")
    (folder / "text.txt").write_text("".join(f"{' '.join(rng.choice(WORDS, 5))}\n" for _ in range(200)))
    return folder


@pytest.fixture(scope="module")
def train(folder, tiny_bert):
    """Trains on the text, with the seed and the options that are given."""

    def call(name, seed=0, text=None, **options):
        given = TextOptions(str(folder / "text.txt")) if text is None else text
        options = {"flow": RECIPE, "trainer": {"max_steps": 12, "accelerator": "cpu"}, **options}
        encoder = TransformerEncoder(tiny_bert, pooling="mean(1,2)", device="cpu")
        return bertflow.train(encoder, given, output=folder / name, seed=seed, report=False, **options)

    return call


@pytest.fixture(scope="module")
def runs(train):
    """The same training with three seeds."""
    return [train(name, seed).folder for name, seed in (("mine", 3), ("four", 4), ("five", 5))]


@pytest.fixture(scope="module")
def report(runs, folder):
    return bertflow.evaluate(str(runs[0]), data_dir=folder, seeds=3, **SCORED)


def values(report, system):
    return [row.value for row in report.rows if row.system == system]


def test_each_seed_is_the_run_that_training_with_it_writes(report, runs, folder):
    own = bertflow.evaluate([str(run) for run in runs], data_dir=folder, **{**SCORED, "resamples": 0})
    for name, run in (("mine", "mine"), ("mine, seed 4", "four"), ("mine, seed 5", "five")):
        assert values(report, name) == values(own, run)
    assert values(report, "mine") != values(report, "mine, seed 4") != values(report, "mine, seed 5")


def test_one_seed_is_the_run_itself(runs, folder, report):
    one = bertflow.evaluate(str(runs[0]), data_dir=folder, seeds=1, **SCORED)
    alone = bertflow.evaluate(str(runs[0]), data_dir=folder, compare="raw", **SCORED)
    assert values(one, "flow of mine, 1 seed") == values(one, "mine") == values(report, "mine")
    places = ((one, "flow of mine, 1 seed"), (alone, "mine"))
    ends = [[(row.ci_low, row.ci_high) for row in each.rows if row.system == name] for each, name in places]
    assert ends[0] == ends[1]
    assert one.sections[0].table.lines[-1] == ("standard deviation", "-", "-")


def test_mean_and_standard_deviation_are_those_of_the_seeds(report):
    names = ["mine", "mine, seed 4", "mine, seed 5"]
    by_seed = np.array([values(report, name) for name in names])
    np.testing.assert_allclose(values(report, "flow of mine, 3 seeds"), by_seed.mean(0))
    rows = json.loads(report.to_json())["seeds"]
    np.testing.assert_allclose([row["values"] for row in rows], by_seed.T)
    np.testing.assert_allclose([row["standard_deviation"] for row in rows], by_seed.std(0, ddof=1))
    assert rows[0]["seeds"] == [3, 4, 5]
    lines = {line[0]: line[1:] for line in report.sections[0].table.lines}
    assert lines["4"][0] == f"{100 * report.value('mine, seed 4', 'news'):.2f}"
    assert lines["mean"][0] == f"{100 * report.value('flow of mine, 3 seeds', 'news'):.2f}"


def test_every_baseline_stands_beside_and_the_mean_in_place_of_the_seeds(report):
    names = ["raw", "sif", "center", "standardize", "abtt", "whitening", "flow of mine, 3 seeds"]
    assert [line[0] for line in report.table().lines] == names
    assert [line[0] for line in report.sections[1].table.lines] == names[:-1]
    lines = report.comparison()
    assert len(lines) == len(names) - 1
    assert all(line.startswith("news: flow of mine, 3 seeds ") for line in lines)
    assert any("random_state=[3, 4, 5]" in line for line in report.captions())
    assert "also of seeds for the flow of mine, 3 seeds" in report.captions()[0]


def test_a_mean_is_no_system_that_predicts(report, tmp_path):
    report.save(tmp_path)
    header = next(csv.reader(io.StringIO((tmp_path / "predictions.csv").read_text())))
    assert {"mine", "mine, seed 4"} < {*header}
    assert "flow of mine, 3 seeds" not in header
    assert all(row.p_williams is None for row in report.compared("flow of mine, 3 seeds", "raw"))
    assert any(row.p_williams is not None for row in report.compared("mine", "raw"))


def figure_of(values, noise, resamples, rng):
    """A figure of n seeds and one more system; the pairs' noise is shared in part."""
    n = len(values)
    replicates = values[:, None] + noise * rng.normal(size=resamples) + noise * 0.1 * rng.normal(size=(n, resamples))
    return Figure("t", "test", "all", "", "m", 50, values, replicates, influence=rng.normal(size=(n, 50)))


SEEDS = SeveralSeeds("it", (0, 1, 2, 3, 4), ("s0", "s1", "s2", "s3", "s4"))


def test_replicates_of_the_mean_are_those_of_a_loop_over_resamples():
    rng = np.random.default_rng(0)
    figure = figure_of(rng.normal(size=6), 0.3, 40, rng)
    names = ["other", *SEEDS.systems]
    made = SEEDS.with_mean(figure, names, seed=7)
    drawn = generator(7, "seeds").integers(0, 5, (4, 40))
    expected = [np.mean([figure.replicates[1 + seed, r] for seed in drawn[:, r]]) for r in range(40)]
    np.testing.assert_allclose(made.replicates[-1], expected)
    np.testing.assert_array_equal(made.replicates[:-1], figure.replicates)
    assert made.values[-1] == pytest.approx(figure.values[1:].mean())


def test_the_interval_is_bca_with_the_influence_of_pairs_and_of_seeds():
    rng = np.random.default_rng(0)
    figure = figure_of(rng.normal(size=5), 0.3, 4000, rng)
    made = SEEDS.with_mean(figure, SEEDS.systems, seed=0)
    of_seeds = [mean - np.delete(figure.values, at).mean() for at, mean in enumerate([figure.values.mean()] * 5)]
    jackknife = np.array(of_seeds) * 4 / 5  # of each seed left out
    u = np.concatenate([figure.influence.mean(0), jackknife])
    bias = norm.ppf((made.replicates[-1] < made.values[-1]).mean())
    acceleration = (u**3).sum() / (6 * (u**2).sum() ** 1.5)
    z = bias + norm.ppf([0.025, 0.975])
    expected = np.quantile(made.replicates[-1], norm.cdf(bias + z / (1 - acceleration * z)))
    np.testing.assert_allclose(made.interval(5), expected)


def test_four_draws_of_five_seeds_have_the_variance_of_their_mean():
    values = np.random.default_rng(0).normal(size=5)
    figure = Figure("t", "test", "all", "", "m", 9, values, np.repeat(values[:, None], 40_000, axis=1))
    spread = SEEDS.with_mean(figure, SEEDS.systems, seed=0).replicates[-1].var()
    assert spread == pytest.approx(values.var(ddof=1) / 5, rel=0.03)


@pytest.mark.parametrize(("noise", "covered"), [(1.0, 0.945), (0.0, 0.857)])
def test_how_often_the_interval_covers(noise, covered):
    rng, hits = np.random.default_rng(0), []
    for draw in range(500):  # the true value is 0; where there is noise of pairs, the seeds hardly differ
        sample = noise * rng.normal() + (0.1 if noise else 1.0) * rng.normal(size=5)
        replicates = sample[:, None] + noise * rng.normal(size=400)
        made = SEEDS.with_mean(Figure("t", "test", "all", "", "m", 9, sample, replicates), SEEDS.systems, draw)
        low, high = made.interval(5)
        hits.append(low <= 0 <= high)
    assert np.mean(hits) == pytest.approx(covered, abs=0.04)


def test_a_calibrated_encoder_is_fitted_again_on_the_text_that_is_given(tiny_bert, folder):
    encoder = TransformerEncoder(tiny_bert, pooling="mean(1,2)", device="cpu")
    text = (folder / "text.txt").read_text().splitlines()
    flow = FlowCalibrator(
        n_components="all", changes={"batch_size": 32}, trainer={"max_steps": 5, "accelerator": "cpu"}
    )
    mine = CalibratedEncoder.fit(encoder, flow, text)
    mine.save(folder / "saved")
    options = {"compare": "raw", "seeds": 2, "data_dir": folder, "tasks": "news", "resamples": 0}
    by_encoder = bertflow.evaluate(mine, fit_on=text, **options)
    by_name = bertflow.evaluate(str(folder / "saved"), fit_on=folder / "text.txt", device="cpu", **options)
    assert by_encoder.value("flow of tiny-bert, 2 seeds", "news") == by_name.value("flow of saved, 2 seeds", "news")
    again = FlowCalibrator(**{**flow.get_params(), "random_state": 1}).fit_sentences(encoder, text)
    scored = bertflow.evaluate(CalibratedEncoder(encoder, again), **{**options, "seeds": None})
    assert values(by_encoder, "tiny-bert, seed 1") == values(scored, "tiny-bert")


def test_a_store_of_the_run_is_read_again_and_none_is_made(train, folder, report, monkeypatch):
    store = folder / "store"
    run = str(train("stored", 3, text=TextOptions(str(folder / "text.txt"), store=str(store))).folder)
    build, read = EmbeddingStore.build, []
    spy = lambda *given, **options: read.append(given[2]) or build(*given, **options)  # noqa: E731
    monkeypatch.setattr(EmbeddingStore, "build", spy)
    for _ in range(2):
        again = bertflow.evaluate(run, data_dir=folder, seeds=2, **SCORED)
        assert values(again, "stored, seed 4") == values(report, "mine, seed 4")
        shutil.rmtree(store, ignore_errors=True)
    assert read == [str(store)]
    assert not store.exists()


def test_an_encoder_in_the_loop_is_seeded_too(train, folder):
    recipe = {"preset": "paper-tf", "epochs": 1, "batch_size": 64, "glow": {"hidden": 4, "depth": 1}}
    options = {"flow": recipe, "trainer": {"max_steps": 2, "accelerator": "cpu"}}
    folders = [train(f"paper{seed}", seed, **options).folder for seed in (0, 1)]
    report = bertflow.evaluate(str(folders[0]), data_dir=folder, seeds=2, **SCORED)
    own = bertflow.evaluate(str(folders[1]), data_dir=folder, **SCORED)
    assert values(report, "paper0, seed 1") == values(own, "paper1")


def test_the_command_shows_a_bar_and_writes_the_seeds(runs, folder, capsys, told):
    words = f"--seeds 2 --tasks news --data_dir {folder} --device cpu --resamples 20 --output {folder / 'scores'}"
    out = told("evaluate", runs[0], *words.split())
    assert "flow of mine, 2 seeds" in out
    assert " standard deviation " in out
    assert "Seed 3 is mine itself." in out
    assert len(json.loads((folder / "scores" / "results.json").read_text())["seeds"][0]["values"]) == 2
    assert "## Seeds of the flow of mine" in (folder / "scores" / "results.md").read_text()
    bertflow.evaluate(str(runs[0]), "news", folder, seeds=2, progress=True, resamples=0, device="cpu")
    assert "fitting mine with other seeds: 100%" in capsys.readouterr().err


def refused(error, models, folder, **options):
    with pytest.raises(error) as caught:
        bertflow.evaluate(models, data_dir=folder, **{**SCORED, "seeds": 3, **options})
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_has_no_seeds_is_refused(runs, folder, tiny_bert):
    encoder = TransformerEncoder(tiny_bert, pooling="mean(1,2)", device="cpu")
    text = (folder / "text.txt").read_text().splitlines()
    affine = CalibratedEncoder.fit(encoder, Whitening(4), text)
    assert refused(UsageError, affine, folder) == (
        "seeds fits one flow again, but none of tiny-bert (Whitening) is a flow. Only a flow depends on a seed; give "
        "a run of `bertflow train`."
    )
    assert refused(UsageError, [str(run) for run in runs[:2]], folder).startswith(
        "seeds fits one flow again, but 2 of mine (FlowCalibrator), four (FlowCalibrator) are flows."
    )
    one = CalibratedEncoder.fit(encoder, FlowCalibrator(n_components=1), text)
    assert refused(UsageError, one, folder, fit_on=text) == (
        "The flow of tiny-bert is an affine map, so it has no seeds. Leave seeds out."
    )
    bare = FlowCalibrator(changes={"epochs": 1}, trainer={"accelerator": "cpu"}).fit(encoder.encode(text))
    assert refused(UsageError, CalibratedEncoder(encoder, bare), folder, fit_on=text) == (
        "The flow of tiny-bert does not record the text that it was fitted on. Leave seeds out."
    )
    assert refused(UsageError, str(runs[0]), folder, seeds=0) == "seeds should be 1 or more, got 0."


def test_text_that_is_missing_or_has_changed_is_refused(train, folder):
    do = "Give fit_on, the text that the flow was fitted on."
    lines = (folder / "text.txt").read_text().splitlines()
    given = str(train("given", text=lines).folder)
    assert refused(UsageError, given, folder) == f"given does not say where its text is. {do}"
    path = folder / "moved.txt"
    shutil.copy(folder / "text.txt", path)
    run = str(train("moved", text=TextOptions(str(path))).folder)
    path.write_text("\n".join(lines[:-1]))
    assert refused(DataError, run, folder) == (
        f"The flow of moved was fitted on {len({*lines})} sentences, but this is another text, of "
        f"{len({*lines[:-1]})}. {do}"
    )
    path.unlink()
    words = refused(DataError, run, folder)
    assert words.startswith(f"The text of moved, {path}, cannot be read again. ")
    assert words.endswith(do)
    assert values(bertflow.evaluate(run, data_dir=folder, fit_on=lines, seeds=2, **SCORED), "moved, seed 1")


def test_options_of_the_trainer_are_repeated_where_they_change_the_result(refusal):
    recorded = {"max_steps": 7, "accelerator": "cpu", "devices": 2, "precision": None, "enable_checkpointing": True,
                "fast_dev_run": False, "callbacks": None, "gradient_clip_val": 0.5}  # fmt: skip
    assert repeatable_options(recorded) == {"max_steps": 7, "gradient_clip_val": 0.5}
    assert refusal(repeatable_options, {"callbacks": ["EarlyStopping"]}, error=UsageError) == (
        "The run kept only the names of its trainer.callbacks, so it cannot be fitted again."
    )

"""How to change it: each table of CONTRIBUTING.md gets one more row, and everything that reads the table knows it."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest

import bertflow
from bertflow.affine import center_map
from bertflow.calibration.closed_forms import CLOSED_FORMS, AbstractClosedForm, ClosedForm
from bertflow.calibration.parameters import CalibratorKind
from bertflow.calibration.spelling import CALIBRATORS
from bertflow.cli import main
from bertflow.cli.commands import COMMANDS, Row
from bertflow.data.sts_tasks import TASKS, StsTask
from bertflow.encoder.pooling import POOLINGS, Pooling
from bertflow.geometry.measures import MEASURES, Measure
from bertflow.similarity import SIMILARITIES, Similarity
from bertflow.training.recipe import PRESETS

from .texts import neighbors

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning:pytorch_lightning")


def reflect_map(moments):
    centered = center_map(moments)
    centered.weight.neg_()
    return centered


class Reflect(AbstractClosedForm):
    """The mean minus the embedding: a calibrator that the package does not have."""

    row = ClosedForm(reflect_map)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Text with paragraphs, and the table of a task."""
    folder, rng, pairs = tmp_path_factory.mktemp("files"), np.random.default_rng(0), neighbors(600)
    (folder / "text.txt").write_text("\n".join(line for pair in pairs for line in (*pair, "")))
    scored = [f"{a}\t{b}\t{rng.integers(0, 6)}" for a, b in pairs[:30]]
    (folder / "mine.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *scored]) + "\n")
    return folder


@pytest.fixture
def bert(tiny_bert):
    return (tiny_bert, "--device", "cpu")


class TestAPooling:
    """One row in POOLINGS."""

    @pytest.fixture(autouse=True)
    def _row(self, monkeypatch):
        monkeypatch.setitem(POOLINGS, "outer", Pooling(layers=(0, -1), tokens="max"))

    def test_an_encoder_takes_it_and_says_so(self, tiny_bert, files, tmp_path):
        encoder = bertflow.TransformerEncoder(tiny_bert, pooling="outer", device="cpu")
        assert encoder.describe()["pooling"] == "outer"
        spelled_out = bertflow.TransformerEncoder(tiny_bert, pooling="max(0,-1)", device="cpu")
        np.testing.assert_array_equal(encoder.encode(["a dog"]), spelled_out.encode(["a dog"]))
        fitted = bertflow.CalibratedEncoder.fit(encoder, bertflow.Whitening(), ["a dog", "the cat", "a big house"])
        fitted.save(tmp_path / "saved")
        assert bertflow.CalibratedEncoder.load(tmp_path / "saved").describe()["pooling"] == "outer"

    def test_the_commands_know_it(self, bert, told, files, tmp_path):
        task = ("--tasks", files / "mine.tsv")
        assert "pooling outer" in told("evaluate", *bert, "--pooling", "outer", "--details", *task)
        assert "outer+center" in told("evaluate", *bert, "--compare", "outer+center", "--fit_on", "eval", *task)
        assert "outer" in told("sweep", *bert, "--layers", "0", "--tokens", "mean", "--details", *task)
        told("embed", files / "text.txt", "--model", *bert, "--pooling", "outer", "--store", tmp_path / "store")
        told("inspect", *bert, "--pooling", "outer", "--text", files / "text.txt", "--pairs", "none",
                  "--sentences", "60", "--output", tmp_path / "report")  # fmt: skip
        out = told("fix", *bert, files / "text.txt", "--pooling", "outer", "--candidates", "whitening(8)",
                        "--resamples", "100", "--output", tmp_path / "fixed")  # fmt: skip
        assert "pooling outer" in out or "outer" in (tmp_path / "fixed" / "fix.json").read_text()


class TestACalibrator:
    """One class, one row in CLOSED_FORMS."""

    @pytest.fixture(autouse=True)
    def _row(self, monkeypatch):
        for table in (CLOSED_FORMS, CALIBRATORS):  # which holds the rows of the first
            monkeypatch.setitem(table, "reflect", CalibratorKind(Reflect))

    def test_vectors_are_fitted_and_transformed(self, told, tmp_path):
        np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(50, 4)).astype("float32"))
        source = ("--vectors", tmp_path / "x.npy")
        told("fit", *source, "--calibrator", "reflect", "--output", tmp_path / "fitted")
        told("transform", *source, "--calibrator", tmp_path / "fitted", "--output", tmp_path / "z.npy")
        x, z = np.load(tmp_path / "x.npy"), np.load(tmp_path / "z.npy")
        np.testing.assert_allclose(z, x.mean(0) - x, atol=1e-5)

    def test_the_commands_know_it(self, bert, told, files, tmp_path):
        task = ("--tasks", files / "mine.tsv")
        out = told("evaluate", *bert, "--compare", "raw,reflect,mean(1)+reflect", "--fit_on", "eval", *task)
        assert [line.split()[0] for line in out.splitlines()[4:7]] == ["raw", "reflect", "mean(1)+reflect"]
        out = told("inspect", *bert, "--compare", "raw,reflect", "--text", files / "text.txt", "--pairs", "none",
                        "--sentences", "60", "--output", tmp_path / "report")  # fmt: skip
        assert "reflect" in out
        told("fix", *bert, files / "text.txt", "--candidates", "reflect", "--resamples", "100",
                  "--output", tmp_path / "fixed")  # fmt: skip
        record = json.loads((tmp_path / "fixed" / "fix.json").read_text())
        assert "reflect" in json.dumps(record)


class TestATask:
    """One row in TASKS."""

    @pytest.fixture(autouse=True)
    def _row(self, monkeypatch):
        row = StsTask("Mine", "test", {"all": 30}, folders=("MINE",), layout="stsb", files=("mine.csv",))
        monkeypatch.setitem(TASKS, "mine30", row)

    @pytest.fixture
    def data(self, files, tmp_path):
        (tmp_path / "MINE").mkdir()
        rows = [line.split("\t") for line in (files / "mine.tsv").read_text().splitlines()[1:]]
        lines = [f"g\tf\t2024\t{k}\t{score}\t{a}\t{b}" for k, (a, b, score) in enumerate(rows)]
        (tmp_path / "MINE" / "mine.csv").write_text("\n".join(lines) + "\n")
        return tmp_path

    def test_the_commands_know_it(self, bert, told, data):
        task = ("--tasks", "mine30", "--data_dir", data)
        assert told("evaluate", *bert, *task).splitlines()[2].split() == ["system", "Mine"]
        assert "mean(0)" in told("sweep", *bert, "--layers", "0", "--tokens", "mean", "--details", *task)


class TestASimilarity:
    """One row in SIMILARITIES."""

    @pytest.fixture(autouse=True)
    def _row(self, monkeypatch):
        row = Similarity(lambda a, b: -np.abs(a - b).max(1), lambda a, b: -np.abs(a[:, None] - b[None]).max(2))
        monkeypatch.setitem(SIMILARITIES, "chebyshev", row)

    def test_the_commands_know_it(self, bert, told, files, tmp_path):
        rows = (files / "mine.tsv").read_text().splitlines()[1:21]
        lines = ["query\ttext", *("\t".join(row.split("\t")[:2]) for row in rows)]
        (tmp_path / "faq.tsv").write_text("\n".join(lines) + "\n")
        out = told("evaluate", *bert, "--similarity", "chebyshev", "--tasks", files / "mine.tsv",
                        "--retrieval", tmp_path / "faq.tsv", "--output", tmp_path / "scores")  # fmt: skip
        assert out.splitlines()[2].split()[:2] == ["system", "mine"]
        rows = json.loads((tmp_path / "scores" / "results.json").read_text())["rows"]
        assert "chebyshev_spearman" in {row["metric"] for row in rows}


class TestAMeasure:
    """One row in MEASURES."""

    @pytest.fixture(autouse=True)
    def _row(self, monkeypatch):
        row = Measure("width", lambda cloud: float(cloud.dim), lambda n, dim: dim)
        monkeypatch.setitem(MEASURES, "width", row)

    def test_the_report_shows_it(self, bert, told, files, tmp_path):
        out = told("inspect", *bert, "--text", files / "text.txt", "--pairs", "none", "--sentences", "60",
                        "--compare", "raw,whitening(8)", "--details", "--output", tmp_path / "report")  # fmt: skip
        assert ["width", "16.0", "8.000", "8.000"] in [line.split() for line in out.splitlines()]
        twin = json.loads((tmp_path / "report" / "report.json").read_text())
        assert twin["sections"]["Measures"]["values"]["raw"]["width"] == 16


class TestAPreset:
    """One row in PRESETS."""

    @pytest.fixture(autouse=True)
    def _row(self, monkeypatch):
        row = replace(PRESETS["similarity-2"], preset="short", epochs=1.0, steps=2, batch_size=16, n_components="all")
        monkeypatch.setitem(PRESETS, "short", row)

    def test_the_commands_know_it(self, told, tiny_bert, files, tmp_path):
        lines = [line for line in (files / "text.txt").read_text().splitlines() if line][:80]
        (tmp_path / "few.txt").write_text("\n".join(lines))
        told("train", "--flow.preset=short", f"--encoder.model={tiny_bert}", "--report=false",
                  f"--data.sentences={tmp_path / 'few.txt'}", "--trainer.accelerator=cpu", "--flow.glow.hidden=8",
                  "--trainer.enable_progress_bar=false", f"--output={tmp_path / 'run'}")  # fmt: skip
        config = (tmp_path / "run" / "config.yaml").read_text()
        assert "preset: short" in config
        assert "steps: 2" in config
        np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(80, 4)).astype("float32"))
        told("fit", "--vectors", tmp_path / "x.npy", "--calibrator", "flow", "--preset", "short",
                  "--output", tmp_path / "fitted")  # fmt: skip
        assert bertflow.load_calibrator(tmp_path / "fitted").get_params()["preset"] == "short"


class TestACommand:
    """One row in COMMANDS."""

    @pytest.fixture(autouse=True)
    def _row(self, monkeypatch):
        def count_words(text: str, least: int = 1) -> None:
            """Count the words of a text.

            Args:
                text: The text.
                least: Shortest word that counts, in letters.
            """
            sys.stdout.write(f"{sum(len(word) >= least for word in text.split())}\n")

        monkeypatch.setitem(COMMANDS, "count-words", Row("count the words of a text", count_words, ("text",)))

    def test_it_is_listed_and_explained_and_runs(self, told):
        assert "  count-words " in told("--help")
        assert "Shortest word that counts, in letters." in told("count-words", "--help")
        assert told("count-words", "a big dog", "--least", "3") == "2\n"
        assert main(["count-wrods"]) == 2

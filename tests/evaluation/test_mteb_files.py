import json

import numpy as np
import pytest

from bertflow.data.pairs import Pairs
from bertflow.encoder.abstract import AbstractEncoder
from bertflow.evaluation.evaluating import score_sets
from bertflow.evaluation.mteb_files import DECIMALS, LAYOUT_VERSION, mteb_files, revision_of, training_datasets
from bertflow.evaluation.score_table import SystemFacts
from bertflow.text_keys import hash_texts


class Letters(AbstractEncoder):
    """Counts letters: an encoder with an answer that can be followed."""

    dim = 26

    def __init__(self, scale=1.0, text=()):
        self.scale, self.text = scale, text

    def _encode(self, sentences, *_):
        letters = "abcdefghijklmnopqrstuvwxyz"
        return np.array([[s.count(c) ** self.scale for c in letters] for s in sentences], dtype=np.float32)

    def describe(self):
        return {"encoder": "letters", "scale": self.scale, "max_length": 64, "prompt": ""}

    def fitted_hashes(self):
        return None if self.text is None else hash_texts(self.text)


def pairs(task, source="STS", text_form="raw"):
    rng = np.random.default_rng(len(task))
    words = ["dog", "cat", "bird", "house", "garden", "river", "stone"]
    first, second = ([" ".join(rng.choice(words, 3)) for _ in range(20)] for _ in range(2))
    gold = rng.random(20) * 5
    return Pairs(task, tuple(first), tuple(second), gold, split="test", text_form=text_form, source=source)


SETS = [pairs("sts12"), pairs("stsb", "hub:mteb/stsbenchmark-sts@b0f"), pairs("stsb-dev"), pairs("sickr"), pairs("own")]
SYSTEMS = {"raw": Letters(), "with root (0.5)": Letters(0.5)}


@pytest.fixture(scope="module")
def report():
    return score_sets(SYSTEMS, SETS, resamples=0)


@pytest.fixture(scope="module")
def files(report):
    return mteb_files(report.systems, report.rows)


def of_raw(files, name):
    (text,) = (text for path, text in files.items() if "bertflow__raw/" in path and path.endswith(f"/{name}"))
    return json.loads(text)


def test_there_is_a_file_for_each_task_that_mteb_has(files):
    assert {path.split("/")[-1] for path in files} == {"STS12.json", "STSBenchmark.json", "model_meta.json"}


def test_the_folder_is_named_for_model_and_revision(files):
    revision = revision_of(SystemFacts.of("raw", SYSTEMS["raw"]))
    assert f"results/bertflow__raw/{revision}/STS12.json" in files
    assert any(path.startswith("results/bertflow__with_root_(0.5)/") for path in files)


def test_scores_are_those_of_the_report_rounded(files, report):
    scores = of_raw(files, "STS12.json")["scores"]["test"][0]
    own = [row for row in report.rows if (row.system, row.task, row.aggregation) == ("raw", "sts12", "all")]
    expected = {row.metric: round(row.value, DECIMALS) for row in own}
    assert {name: scores[name] for name in expected} == expected
    assert scores["main_score"] == scores["spearman"] == expected["cosine_spearman"]
    assert scores["pearson"] == expected["cosine_pearson"]


def test_the_splits_of_one_task_share_a_file(files):
    assert set(of_raw(files, "STSBenchmark.json")["scores"]) == {"test", "validation"}


@pytest.mark.parametrize(
    ("task", "revision"),
    [("STS12", "local-raw"), ("STSBenchmark", "b0fddb56ed78048fa8b90373c8a3cfc37b684831")],
)
def test_only_text_from_the_hub_has_the_hubs_revision(task, revision, files):
    assert of_raw(files, f"{task}.json")["dataset_revision"] == revision


def test_another_fitting_text_is_another_revision():
    facts = [SystemFacts.of("it", Letters(text=text)) for text in ((), ["a"], ["b"], None)]
    assert len({revision_of(one) for one in facts}) == 4


def test_what_was_seen_becomes_training_data():
    system = Letters(text=SETS[0].first[:1])
    report = score_sets({"raw": system}, SETS[:1], resamples=0)
    assert of_raw(mteb_files(report.systems, report.rows), "model_meta.json")["training_datasets"] == ["STS12"]


def test_what_is_unknown_is_null(files):
    assert of_raw(files, "model_meta.json")["training_datasets"] is None


@pytest.mark.parametrize(
    ("seen", "labels", "of_encoder", "expected"),
    [
        ({"sts12": 0.1, "sts13": 0.0}, (), None, {"STS12"}),
        ({"sts12": None}, (), [], None),
        ({"sts12": 0.0}, (), [], set()),
        ({"tuning": 0.5, "own": 1.0}, (), [], {"SICK-R", "STSBenchmark"}),
        ({}, ["stsb-train"], None, {"STSBenchmark"}),
    ],
)
def test_training_datasets_are_names_of_mteb(seen, labels, of_encoder, expected):
    assert training_datasets(seen, labels, of_encoder) == expected


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # mteb's own imports
def test_mteb_reads_the_files(files, tmp_path):
    results = pytest.importorskip("mteb.results", reason="the mteb extra is not installed")
    from mteb.models.model_meta import ModelMeta

    for path, text in files.items():
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        if target.name == "model_meta.json":
            assert ModelMeta.model_validate_json(text).name.startswith("bertflow/")
        else:
            result = results.TaskResult.from_disk(target, load_historic_data=False)
            assert (result.task_name, result.mteb_version) == (target.stem, LAYOUT_VERSION)

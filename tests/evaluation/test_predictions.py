import csv
import io

import pytest

from bertflow.evaluation.evaluating import score_sets
from bertflow.evaluation.mteb_files import predictions_csv
from bertflow.similarity import SIMILARITIES

from .conftest import ToyEncoder, toy_pairs


def test_every_pair_has_a_line_with_every_systems_similarity():
    sets = [toy_pairs("sts12", (12, 9)), toy_pairs("stsb", (20,))]
    systems = {"one": ToyEncoder(), "two": ToyEncoder(seed=1)}
    report = score_sets(systems, sets, resamples=0)
    lines = list(csv.DictReader(io.StringIO(predictions_csv(report.systems, report.tasks))))
    assert len(lines) == 41
    first, second = (systems["two"].encode([lines[30][name]]) for name in ("sentence1", "sentence2"))
    assert float(lines[30]["two"]) == pytest.approx(SIMILARITIES["cosine"].paired(first, second)[0], abs=1e-8)
    assert float(lines[30]["gold"]) == sets[1].target[9]
    assert lines[0]["subset"] == "part0"

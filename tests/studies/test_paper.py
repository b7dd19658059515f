"""Tables 2 and 3 of the paper: what a line is, lines made by several jobs, and what is merged from them."""

import json
import re
import statistics
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import spearmanr

import bertflow
from bertflow.cli import main
from bertflow.data.sts import load_sts
from bertflow.data.sts_tasks import TASKS
from bertflow.evaluation.evaluating import score_sets
from bertflow.evaluation.seeds import SeveralSeeds
from bertflow.runs.training import FlowRun
from bertflow.studies import paper_lines as making
from bertflow.studies.literature import published

from ..texts import TWELVE as WORDS

SPLITS = ("stsb", "stsb-train", "stsb-dev")
OPTIONS = ["--tasks", "stsb", "--seeds", "2", "--resamples", "400", "--max_sentences", "64", "--device", "cpu"]

pytestmark = pytest.mark.filterwarnings("ignore:The number of training batches:UserWarning")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with small tables in place of the tasks, and NLI text."""
    folder, rng = tmp_path_factory.mktemp("paper"), np.random.default_rng(0)
    with pytest.MonkeyPatch.context() as patch:
        for task in (*SPLITS, "sts16"):
            texts = [[" ".join(rng.choice(WORDS, rng.integers(2, 9))) for _ in range(60)] for _ in range(2)]
            scored = zip(*texts, rng.integers(0, 11, 60) / 2, strict=True)
            rows = "".join(f"{one}\t{other}\t{score}\n" for one, other, score in scored)
            (folder / f"{task}.tsv").write_text("sentence1\tsentence2\tscore\n" + rows)
            parts = {"all": 60} if task in SPLITS else {"a": 30, "b": 30}
            patch.setitem(TASKS, task, replace(TASKS[task], pairs=parts))
        (folder / "nli.txt").write_text("".join(f"the {one} {other} .\n" for one in WORDS for other in WORDS))
        yield folder


@pytest.fixture
def call(place, tiny_bert, capsys):
    """The command with an output folder; its exit code and what it printed."""

    def run(output, *more, model=tiny_bert, options=OPTIONS):
        given = ["paper-tables", str(model), "--data_dir", str(place), "--output", str(output)]
        code = main([*given, *options, "--nli", str(place / "nli.txt"), *map(str, more)])
        return code, *capsys.readouterr()

    return run


@pytest.fixture(scope="module")
def made(place, tiny_bert, tmp_path_factory):
    """The tables of one call, and their folder."""
    folder = tmp_path_factory.mktemp("made")
    options = {"tasks": "stsb", "seeds": 2, "resamples": 400, "max_sentences": 64, "device": "cpu"}
    return bertflow.paper_tables(str(tiny_bert), str(place), folder, str(place / "nli.txt"), **options), folder


def spearman(encoder, pairs):
    first, second = (encoder.encode(list(side)).astype(float) for side in (pairs.first, pairs.second))
    cosines = (first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
    return spearmanr(cosines, pairs.target).statistic


def test_a_line_is_its_encoder_its_pooling_and_its_flow(made, place, tiny_bert):
    tables, folder = made
    pairs, runs = load_sts("stsb", place), folder / "lines"
    expected = {
        "avg": [bertflow.load(tiny_bert, pooling="mean", max_length=64)],
        "last2avg": [bertflow.load(tiny_bert, pooling="first-last-avg", max_length=64)],
        "flow (NLI)": [bertflow.load(runs / f"tiny-bert-flow-NLI-seed-{seed}" / "flow") for seed in (0, 1)],
        "flow (target)": [bertflow.load(runs / f"tiny-bert-flow-target-seed-{seed}" / "flow-stsb") for seed in (0, 1)],
    }
    assert [row.name for row in tables.rows] == [f"tiny-bert {name}" for name in expected]
    for row, encoders in zip(tables.rows, expected.values(), strict=True):
        (score,) = row.scores
        values = [spearman(encoder, pairs) for encoder in encoders]
        np.testing.assert_allclose(score.values, values, atol=2e-3)  # ranks of cosines that are nearly equal
        assert score.mean == pytest.approx(statistics.mean(score.values))
        spread = statistics.stdev(score.values) if row.flow else None
        assert score.standard_deviation == (pytest.approx(spread) if row.flow else None)
        theirs = next(line for line in published() if (line.model, line.aggregation) == (row.published, "wmean"))
        assert score.published == pytest.approx(theirs.scores["stsb"] / 100)
    target, nli = (json.loads((next(runs.glob(f"*{name}-seed-1/flow*")) / "run.json").read_text())
                   for name in ("target", "NLI"))  # fmt: skip
    assert (target["options"]["flow"]["preset"], target["options"]["flow"]["epochs"]) == ("paper-tf", 1)
    assert target["options"]["data"]["tasks"] == "stsb-train,stsb-dev,stsb"
    assert (nli["options"]["flow"]["preset"], nli["options"]["flow"]["dropout"]) == ("paper-tf-nli", True)
    assert [run["text"]["sentences"] for run in (target, nli)] == [64, 64]


def test_intervals_are_those_of_an_evaluation_of_pairs_and_seeds(made, place):
    tables, folder = made
    flows = {f"seed {at}": bertflow.load(folder / f"lines/tiny-bert-flow-NLI-seed-{at}/flow") for at in (0, 1)}
    several = SeveralSeeds("seed 0", (0, 1), tuple(flows))
    systems = {"raw": flows["seed 0"].raw, **flows}
    report = score_sets(systems, [load_sts("stsb", place)], resamples=400, seeds=several)
    mean = next(row for row in report.rows if row.system == several.name and row.metric == "cosine_spearman")
    (less,) = [one for one in report.compared(several.name, "raw") if one.aggregation == "wmean"]
    score = next(row for row in tables.rows if row.name.endswith("flow (NLI)")).scores[0]
    assert (score.ci_low, score.ci_high) == pytest.approx((mean.ci_low, mean.ci_high), abs=2e-3)
    expected = (less.difference, less.ci_low, less.ci_high)
    assert (score.difference, score.difference_low, score.difference_high) == pytest.approx(expected, abs=2e-3)


def test_lines_made_one_by_one_in_any_order_give_the_same_tables(made, call, tmp_path, monkeypatch):
    _, whole = made
    code, shown, _ = call(tmp_path, "--list")
    assert (code, "0 of 6 lines are done." in shown) == (0, True)
    assert re.findall(r"^ ([3-6]) +tiny-bert (.+?) +- *$", shown, re.MULTILINE) == [
        ("3", "flow (NLI), seed 0"),
        ("4", "flow (NLI), seed 1"),
        ("5", "flow (target), seed 0"),
        ("6", "flow (target), seed 1"),
    ]
    for number in range(6, 0, -1):
        code, shown, _ = call(tmp_path, "--line", number)
        assert (code, f"{7 - number} of 6 lines are done." in shown) == (0, True)
        assert not (tmp_path / "paper_tables.json").exists()

    def refuse(*_, **__):
        raise AssertionError("what is done is not made again")

    for name in ("train", "load"):
        monkeypatch.setattr(making, name, refuse)
    assert call(tmp_path)[0] == 0
    for name in ("paper_tables.json", "paper_tables.md"):
        assert (tmp_path / name).read_bytes() == (whole / name).read_bytes()


def test_what_was_stopped_goes_on(made, call, tmp_path, monkeypatch):
    _, whole = made
    begun, train = [], making.train

    def stopped(*given, **more):
        begun.append(given[4])
        return FlowRun(given[4], "interrupted") if len(begun) == 2 else train(*given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(making, "train", stopped)
        code, _, err = call(tmp_path)
    assert (code, err.splitlines()[-1]) == (1, "interrupted")
    assert not (tmp_path / "paper_tables.md").exists()
    code, out, _ = call(tmp_path)
    assert (code, "line 3 of 6" in out, "line 4 of 6" in out) == (0, False, True)
    assert (tmp_path / "paper_tables.json").read_bytes() == (whole / "paper_tables.json").read_bytes()


def test_an_encoder_after_nli_has_lines_of_table_3(call, tiny_bert, tmp_path):
    tuned = tmp_path / "tiny-nli"
    tuned.symlink_to(tiny_bert)
    code, out, _ = call(tmp_path / "out", "--nli_models", tuned, "--list")
    assert (code, bool(re.search(r"^ 7 +tiny-nli avg ", out, re.MULTILINE)), "0 of 12" in out) == (0, True, True)


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (["--line", "1", "--list"], 2, "A line is made, or all are shown, but both were asked for."),
        (["--tasks", "sts16"], 3, "The figure of sts16 is wmean, over its sub-sets, but sts16.tsv does not name them."),
    ],
    ids=["line-and-list", "no-sub-sets"],
)
def test_what_cannot_be_made_is_one_line(more, code, said, call, tmp_path):
    found, _, err = call(tmp_path / "out", *more)
    assert (found, said in err.splitlines()[-1]) == (code, True)
    assert not (tmp_path / "out").exists()


def test_a_folder_is_of_one_set_of_options_and_of_the_same_data(made, call, place, tiny_bert, tmp_path):
    _, whole = made
    code, _, err = call(whole, "--max_sentences", "32")
    assert (code, "was made with max_sentences=64, but now it is 32." in err) == (2, True)
    other = tmp_path / "tiny-bert"
    other.symlink_to(tiny_bert)
    code, _, err = call(whole, model=other)
    assert (code, "was made with model=" in err) == (2, True)
    code, _, err = call(whole, "--nli_models", other)
    assert (code, "Two encoders are called 'tiny-bert'." in err) == (2, True)
    before = (place / "stsb.tsv").read_text()
    try:
        (place / "stsb.tsv").write_text(before.replace("man", "dog"))
        code, _, err = call(whole)
    finally:
        (place / "stsb.tsv").write_text(before)
    assert (code, "has scored other pairs of stsb" in err) == (3, True)


def test_a_damaged_record_of_a_line_is_named(made, call):
    _, whole = made
    path = whole / "lines" / "tiny-bert-avg" / "scores.json"
    before = path.read_text()
    try:
        path.write_text(before.replace("first-last-avg", "x")[:-40])
        code, _, err = call(whole)
    finally:
        path.write_text(before)
    assert (code, str(path) in err.splitlines()[-1]) == (3, True)

"""What commands print at their end: command lines that work as they stand."""

import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

import bertflow
from bertflow.cli import main, next_commands
from bertflow.cli.next_commands import STEPS, next_lines
from bertflow.data.columns import TextColumns
from bertflow.data.fitting_text import TextOptions

from .test_every_command import CHANGING, LINES, PUBLISHED, WRITERS, marked, words

pytestmark = pytest.mark.usefixtures("few_docstrings")
LEAVING = [*WRITERS, *CHANGING, "search recalibrate"]
"""Commands that leave something, and have here what they need."""
SMALL = {
    "inspect": ("--text", "text.txt", "--pairs", "none", "--sentences", "30", "--compare", "raw,whitening"),
    "evaluate": ("--tasks", "mine", "--data_dir", "data", "--resamples", "0"),
    "search example": ("--answers", "5", "--sentences", "5"),
}
"""Options that make a next command small: the docstrings of this package alone are too few for its defaults."""


@pytest.fixture
def run():
    """A training that is done."""
    Path("mine/calibrator").mkdir(parents=True)
    record = SimpleNamespace(untrained="", n_train=150, n_held_out=0)
    return SimpleNamespace(status="done", note="", folder=Path("mine"), record=record)


def test_every_command_that_leaves_something_has_a_row():
    named = {name.partition(" to ")[0] for name in (*LEAVING, *PUBLISHED)}
    assert named == set(STEPS)


@pytest.mark.parametrize("command", marked([(name,) for name in LEAVING], lambda name: name not in CHANGING))
@pytest.mark.usefixtures("minilm")
def test_the_next_commands_work_as_they_stand(command, place, capsys, monkeypatch):
    monkeypatch.setattr(next_commands, "find_spec", lambda name: None)  # a server would not end
    assert main(words(LINES[command])) == 0
    Path("FILE").with_suffix(".tsv").write_text("query\ttext\na dog\tthe dog eats\na cat\tthe cat sleeps\n", "utf-8")
    lines = "".join(capsys.readouterr().out.split("\nnext: ")[1:])
    assert bool(lines) != command.startswith("transform")  # what is mapped needs no other map
    for line in lines.splitlines():
        name, *rest = shlex.split(line.removeprefix(next_commands.LABELED).replace(" FILE ", " FILE.tsv "))
        assert name == "bertflow"
        if rest[0] != "demo":
            small = SMALL.get(" ".join(rest[:2]), SMALL.get(rest[0], ()))
            assert main([*rest, *small]) == 0, capsys.readouterr().err


def test_a_training_on_the_docstrings_is_judged_on_them_and_one_on_text_of_yours_on_your_pairs(run):
    lines = [next_lines("train", {"text": TextOptions(text)}, run) for text in (None, "mine.txt")]
    assert lines[0].endswith(" --retrieval docstrings --compare raw,whitening")
    assert lines[1].startswith(f"\nnext: {next_commands.LABELED}bertflow evaluate ")


def test_after_a_flow_that_was_not_trained_comes_fix_or_more_text(run):
    run.record.untrained = "Too few."
    given = {"text": TextOptions(["mine.txt"]), "encoder": {"model": "bert", "pooling": "cls"}}
    few = next_lines("train", given, run)
    assert few == "\nnext: give more text: fix needs 200 different sentences or more, and mine.txt has 150"
    run.record.n_held_out = 50
    fix = "\nnext: bertflow fix bert mine.txt --output mine-fixed "
    assert next_lines("train", given, run).startswith(fix)  # inspect names the folder fixed


SCORE = "bertflow score "


@pytest.mark.parametrize(
    ("purpose", "changed", "words"), [("similarity", True, SCORE), ("topic", True, ""), ("topic", False, SCORE)]
)
def test_what_comes_after_fix_suits_the_purpose(purpose, changed, words):
    Path("encoder").mkdir()
    advice = SimpleNamespace(folder=Path(), asked=None, exported=("how to open it",) * changed)
    line = next_lines("fix", {"purpose": purpose, "vectors": None}, advice)
    assert (words in line, " FILE" in line) == (True, bool(words))
    assert "encoder" in line


READ = {
    None: "",
    TextColumns(("Title", "body"), ("ID", "price"), paired=True): "",
    TextColumns(("name", "body"), ("ID", "price"), paired=True): " --columns ID,body,name",
    TextColumns(("name", "body"), ("price",), paired=True): " --columns body",
    TextColumns(("body",), (), paired=False): " --columns body",
}


@pytest.mark.parametrize(("columns", "read"), READ.items())
def test_who_fixes_for_search_builds_an_index_of_the_text(columns, read):
    Path("encoder").mkdir()
    text = SimpleNamespace(columns=columns)
    advice = SimpleNamespace(folder=Path(), asked=None, exported=(), text=text)
    given = {"purpose": "search", "text": "mine.csv", "vectors": None}
    build = f"bertflow search build text.index --answers mine.csv{read} --model encoder"
    assert next_lines("fix", given, advice) == f"\nnext: {build}"
    assert "search build" not in next_lines("fix", {**given, "purpose": "all"}, advice)
    assert "search build" in next_lines("fix", {**given, "purpose": "all", "queries": "asked.txt"}, advice)


def test_who_asks_for_pairs_is_shown_how_to_give_their_scores():
    advice = SimpleNamespace(folder=Path("fixed"), asked=object())
    given = {"encoder": "bert", "text": "a.csv", "columns": "body", "purpose": "search", "vectors": None}
    line = next_lines("fix", given, advice)
    again = "bertflow fix bert a.csv --columns body --purpose search --labels fixed/ask.csv"
    assert line == f"\nnext: once the scores are filled in: {again} --output fixed-labeled"
    given = {"encoder": "a.txt", "text": None, "vectors": "x.npy", "purpose": "all"}
    again = "bertflow fix a.txt --vectors x.npy --purpose all --labels fixed/ask.csv"
    assert f": {again} --output" in next_lines("fix", given, advice)


def test_who_fixes_vectors_maps_the_queries_as_well(tmp_path):
    (tmp_path / "calibrator").mkdir()
    given = {"purpose": "all", "vectors": "x.npy", "column": None, "query_vectors": "q.npy"}
    line = next_lines("fix", given, SimpleNamespace(folder=tmp_path, asked=None))
    map_ = f"bertflow transform --calibrator {tmp_path}/calibrator --vectors"
    assert f"{map_} x.npy --output {tmp_path}/calibrated.npy\n" in line
    assert f"{map_} q.npy --role query --output {tmp_path}/calibrated-queries.npy" in line


def test_who_adapts_to_a_text_is_shown_how_to_see_what_it_finds():
    done = SimpleNamespace(index="", folder="adapted")
    given = {"model": "bert", "text": ["a.txt"], "queries": None, "pooling": "cls"}
    compare = "bertflow compare bert adapted a.txt --pooling cls --queries"
    assert next_lines("adapt", given, done) == f"\nnext: to see what it finds: {compare} FILE"
    assert next_lines("adapt", {**given, "queries": "q.txt"}, done) == f"\nnext: {compare} q.txt"


@pytest.mark.parametrize(
    ("falling", "shown"),
    [(["raw"], "first"), (["whitening", "mine", "raw"], "second"), (["first", "mine"], "first"), ([], "first")],
)
def test_after_an_evaluation_comes_the_geometry_of_the_best_encoder_that_was_named(falling, shown):
    for name in ("first", "second"):
        Path(name).mkdir()
    rows = [SimpleNamespace(system=name) for name in falling]
    report = SimpleNamespace(leads=lambda: [(None, rows[0], rows[1:])] if rows else [])
    models = ["first", "mine=second"]
    assert next_lines("evaluate", {"models": models}, report) == f"\nnext: bertflow inspect {shown}"


def test_the_next_command_of_a_sweep_has_a_pooling_that_can_be_typed():
    best = [SimpleNamespace(pooling="weighted mean of all", value=0.9), SimpleNamespace(pooling="cls(1)", value=0.5)]
    line = next_lines("sweep", {"model": "bert", "fit_on": None}, SimpleNamespace(falling=best))
    assert line == "\nnext: bertflow inspect bert --pooling 'cls(1)'"


def test_a_saved_encoder_keeps_its_pooling_in_what_comes_next(tiny_bert):
    bertflow.load(tiny_bert, pooling="mean(1)", device="cpu").save("saved")
    for second, options in ((Path("saved"), ""), (tiny_bert, " --pooling 'mean(2)'")):
        line = next_lines("compare", {"second": second, "pooling": "mean(2)", "text": ["a.txt"], "output": None}, None)
        assert line == f"\nnext: bertflow inspect {second}{options} --text a.txt"


def test_a_name_with_a_space_is_quoted_and_a_place_that_is_taken_is_left_alone():
    folder = Path("my store")
    done = SimpleNamespace(store=SimpleNamespace(folder=folder), seconds=1.0)
    Path("my store-whitening").mkdir()
    Path("my store-whitening-2").mkdir()
    line = next_lines("embed", {}, done)
    assert line == f"\nnext: bertflow fit --store '{folder}' --calibrator whitening --output '{folder}-whitening-3'"


def test_the_column_of_the_text_of_a_collection_is_named_again():
    done = SimpleNamespace(index="lancedb:docs", folder="adapted")
    line = next_lines("adapt", {"columns": "body", "device": "cpu"}, done)
    named = "--model adapted --text body --device cpu"
    assert line == f"\nnext: bertflow search ask lancedb:docs '{next_commands.QUESTION}' {named}"


def test_commands_import_what_this_one_imported_and_what_is_said_in_words_does_not(run, monkeypatch):
    monkeypatch.setattr(next_commands, "imported", ["my part"])
    given = {"text": TextOptions(["mine.txt"]), "encoder": {"model": "bert"}}
    assert next_lines("train", given, run).endswith(" --retrieval FILE --compare raw,whitening --import 'my part'")
    run.record.untrained = "Too few."
    assert next_lines("train", given, run).endswith("mine.txt has 150")


def test_a_command_that_leaves_nothing_says_nothing():
    assert next_lines("tokens", {}, object()) == ""
    only_checked = SimpleNamespace(store=SimpleNamespace(folder="s"), seconds=None)
    assert next_lines("embed", {}, only_checked) == ""


@pytest.mark.parametrize(("vectors", "made"), [("x.npy", "npy"), ("x.parquet", "parquet"), ("store.v2", "npy")])
def test_a_table_of_vectors_keeps_its_other_columns_in_what_comes_next(vectors, made):
    Path("fixed/calibrator").mkdir(parents=True)
    advice = SimpleNamespace(folder=Path("fixed"), asked=None, exported=())
    line = next_lines("fix", {"encoder": None, "text": None, "vectors": vectors, "purpose": "all"}, advice)
    assert line.startswith("\nnext: bertflow transform --calibrator fixed/calibrator ")
    assert line.endswith(f" --output fixed/calibrated.{made}")

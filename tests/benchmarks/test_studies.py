"""Every study: its page prints what is kept, a run that was stopped goes on, and what cannot be done is refused."""

import json
import shutil
from pathlib import Path

import pytest

from .conftest import FOLDER, read_json

STUDIES = sorted(path.stem for path in FOLDER.glob("*.py") if "STUDY = Study(" in path.read_text("utf-8"))


@pytest.mark.parametrize("name", STUDIES)
def test_what_is_kept_is_printed_without_measuring(name, benchmark, tmp_path, capsys):
    study = benchmark(name).STUDY
    kept = shutil.copy(study.kept, tmp_path)
    study.main(["--print", "--output", str(kept)])
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("|") for line in lines) > 3
    assert read_json(Path(kept)) == read_json(study.kept)


@pytest.fixture
def counted(tmp_path, benchmark):
    """A study of three numbers, and those that were measured."""
    module, asked = benchmark("study"), []

    def measure(number):
        asked.append(number)
        if number == 2 and asked.count(2) == 1:
            raise KeyboardInterrupt
        return {"square": number**2}

    def cases(options):
        return [({"number": number}, lambda number=number: measure(number)) for number in options.only]

    only = {"only": ([1, 2, 3], "numbers")}
    page = lambda rows: " ".join(str(row["square"]) for row in rows)  # noqa: E731
    return module.Study(str(tmp_path / "squares.py"), "Squares.", cases, page, "", only), asked


def test_a_run_that_was_stopped_goes_on(counted, capsys, refusal):
    study, asked = counted
    assert "interrupted; what was measured is kept. Go on with --resume." in refusal(study.main, [], error=SystemExit)
    assert read_json(study.kept) == [{"number": 1, "square": 1}]
    study.main(["--resume"])
    assert asked == [1, 2, 2, 3]
    assert capsys.readouterr().out == "1 4 9\n"


def test_a_row_takes_the_place_of_the_one_that_is_kept(counted):
    study, asked = counted
    study.kept.write_text(json.dumps([{"number": 1, "square": 0}, {"number": 5, "square": 25}]))
    study.main(["--only", "1"])
    assert {row["number"]: row["square"] for row in read_json(study.kept)} == {1: 1, 5: 25}
    assert asked == [1]


def test_a_study_of_data_asks_for_it(tmp_path, capsys, benchmark, refusal):
    study = benchmark("study").Study(str(tmp_path / "none.py"), "", lambda options: [], str)
    assert "2" in refusal(study.main, [], error=SystemExit)
    assert "a folder with sts, text, nli and encoders is wanted. Give --data_dir DATA." in capsys.readouterr().err

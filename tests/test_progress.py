import logging
import sys

import pytest

from bertflow.errors import UsageError
from bertflow.progress import Lines, bar, place, reading


def test_a_bar_that_is_asked_for_is_shown_on_stderr_alone(capsys):
    with bar(5, "encoding", show=True) as advance:
        for units in (2, 3):
            advance(units)
    shown = capsys.readouterr()
    assert "encoding: 100%" in shown.err
    assert "5/5" in shown.err
    assert shown.out == ""


@pytest.mark.parametrize("show", [False, None])
def test_nothing_is_shown_where_nobody_watches(capsys, show):
    with bar(5, "encoding", show=show) as advance:
        advance(5)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_shows_a_bar_once_the_work_takes_long(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with bar(5, "encoding") as advance:
        advance(5)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("bertflow.progress.DELAY", 1e-9)
    with bar(5, "encoding") as advance:
        advance(5)
    assert "5/5" in capsys.readouterr().err


def test_progress_in_a_file_is_a_line_now_and_then(caplog):
    caplog.set_level(logging.INFO, "bertflow")
    clock = iter([0.0, 10.0, 20.0, 30.0]).__next__
    lines = Lines(1000, "embedding", "rows", clock)
    for units in (100, 100, 100):
        lines.advance(units)
    assert caplog.messages == ["embedding: 200 of 1,000 rows, 10 a second, 1.3 min left"]


def test_of_several_processes_the_first_one_speaks(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with bar(5, "encoding", show=True) as advance:
        advance(5)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "1", "WORLD_SIZE": "2"}, (1, 2)),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "4"}, (3, 4)),
        ({"RANK": "1", "WORLD_SIZE": "2", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, (1, 2)),
        ({"WORLD_SIZE": "2", "LOCAL_RANK": "1"}, (0, 1)),
    ],
)
def test_the_launcher_says_which_process_this_is(environment, expected):
    assert place(environment) == expected


@pytest.mark.parametrize("rank", ["2", "-1", "x"])
def test_an_impossible_rank_is_refused(rank):
    with pytest.raises(UsageError) as caught:
        place({"RANK": rank, "WORLD_SIZE": "2"})
    assert str(caught.value) == (
        f"RANK should be a number from 0 to below WORLD_SIZE, got {rank} of 2. Set both, or neither."
    )


def test_reading_a_long_text_is_logged(caplog, monkeypatch):
    caplog.set_level(logging.INFO, "bertflow")
    monkeypatch.setattr("bertflow.progress.READ", 5)
    assert list(reading(map(str, range(12)))) == [str(k) for k in range(12)]
    assert caplog.messages == ["reading: 5 sentences", "reading: 10 sentences"]

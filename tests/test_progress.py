import logging
import re
import sys
import threading
from types import SimpleNamespace

import pytest
from tqdm import tqdm

from bertflow.errors import UsageError
from bertflow.progress import (
    DELAY,
    RATE,
    SILENCE,
    LastWord,
    bar,
    log_lines,
    never_silent,
    rank_and_world,
    reading,
    unsaid,
    working,
)


def test_a_bar_that_is_asked_for_is_shown_on_stderr_alone(capsys):
    with bar(5, "encoding", show=True) as advance:
        for units in (2, 3):
            advance(units)
    shown = capsys.readouterr()
    assert "encoding: 100%" in shown.err
    assert re.search(r"5/5 \[.*, +[\d.?]+ sentences/s]", shown.err)
    assert shown.out == ""


def test_a_bar_says_units_a_second_also_where_one_takes_longer():
    assert tqdm.format_meter(2, 4, 5.0, unit=" steps", bar_format=RATE).endswith(",  0.40 steps/s]")


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


def test_progress_in_a_file_is_a_line_now_and_then(caplog, monkeypatch):
    caplog.set_level(logging.INFO, "bertflow")
    monkeypatch.setattr("bertflow.progress.time", SimpleNamespace(monotonic=iter([0.0, 10.0, 20.0, 30.0]).__next__))
    advance = log_lines(1000, "embedding", "rows")
    for _ in range(3):
        advance(100)
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
    assert rank_and_world(environment) == expected


@pytest.mark.parametrize("rank", ["2", "-1", "x"])
def test_an_impossible_rank_is_refused(rank, refusal):
    assert refusal(rank_and_world, {"RANK": rank, "WORLD_SIZE": "2"}, error=UsageError) == (
        f"RANK should be a number from 0 to below WORLD_SIZE, got {rank} of 2. Set both, or neither."
    )


def test_reading_a_long_text_is_logged(caplog, monkeypatch):
    caplog.set_level(logging.INFO, "bertflow")
    monkeypatch.setattr("bertflow.progress.READ", 5)
    assert list(reading(map(str, range(12)))) == [str(k) for k in range(12)]
    assert caplog.messages == ["reading: 5 sentences", "reading: 10 sentences"]


def later(last, seconds):
    """What is said so many seconds after the last word."""
    words = last.silent(last.when + seconds)
    last.when += seconds if words else 0
    return words


def test_work_that_takes_long_is_named_once_and_then_goes_on():
    with working("drawing"):
        last = LastWord()
        assert later(last, DELAY / 2) == ""
        assert later(last, DELAY + 0.1) == "drawing"
        assert later(last, SILENCE / 2) == ""
        assert later(last, 3 * SILENCE) == f"drawing: still at work after {3 * SILENCE + DELAY:.0f} s"
        with working("saving"):
            assert later(last, SILENCE) == "saving"
        last.emit(logging.LogRecord("bertflow", logging.INFO, "", 0, "said by others", (), None))
        assert later(last, SILENCE / 2) == ""


def test_nothing_is_said_beside_a_bar_and_where_nothing_is_done():
    assert LastWord().silent(1e12) == ""
    with working("training"), bar(5, "encoding", show=True), working("fitting"):
        assert LastWord().silent(1e12) == ""
    with bar(5, "encoding"):
        assert LastWord().silent(1e12) == "encoding 5 sentences"
    with bar(1, "encoding"):
        assert LastWord().silent(1e12) == "encoding 1 sentence"


def test_a_program_is_never_silent_also_where_its_notes_would_mislead(monkeypatch):
    monkeypatch.setattr("bertflow.progress.SILENCE", 0.02)
    monkeypatch.setattr("bertflow.progress.DELAY", 0.01)
    heard, said = threading.Event(), []

    class Hears(logging.Handler):
        def emit(self, record):
            said.append((record.name, record.getMessage()))
            heard.set()

    logger, hears = logging.getLogger("bertflow"), Hears()
    logger.addHandler(hears)
    try:
        with never_silent("bertflow fix"), unsaid():
            assert heard.wait(30)
    finally:
        logger.removeHandler(hears)
    assert said[0] == ("bertflow.progress", "bertflow fix: still at work after 0 s")
    assert "bertflow-progress" not in {thread.name for thread in threading.enumerate()}
    assert not any(isinstance(one, LastWord) for one in logger.handlers)


def test_a_program_draws_its_bars_again(capsys, monkeypatch):
    monkeypatch.setattr("bertflow.progress.DELAY", 0.01)
    again = threading.Event()
    refresh = tqdm.refresh

    def drawn(self, *args, **options):
        refresh(self, *args, **options)
        if threading.current_thread().name == "bertflow-progress":
            again.set()

    monkeypatch.setattr(tqdm, "refresh", drawn)
    with never_silent("bertflow fix"), bar(5, "encoding", show=True):
        assert again.wait(30)
    assert "encoding:   0%" in capsys.readouterr().err


def test_a_library_says_nothing_of_its_own_accord(caplog):
    with working("drawing"):
        pass
    assert not caplog.messages

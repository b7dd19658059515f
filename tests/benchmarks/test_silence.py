"""silence.py: that it runs every command, and what it says of one."""

import importlib
import sys
from pathlib import Path

import pytest

from bertflow.cli import COMMANDS, load

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def silence():
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module("silence")
    sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def commands():
    """Every command, and every action of those that have some, by the words that call it."""
    loaded = {name: load(name).__self__ for name in COMMANDS}
    actions = {
        f"{name} {action}": one
        for name, command in loaded.items()
        for action, one in vars(command).get("actions", {}).items()
    }
    return {name: command for name, command in loaded.items() if "actions" not in vars(command)} | actions


def test_every_command_has_a_row_which_it_can_read(silence, commands):
    read = set()
    for row in silence.LINES.values():
        name = next(name for name in commands if f"{row.line} ".startswith(f"{name} "))
        words = row.line.removeprefix(name).replace("PORT", "8000").split()
        commands[name].parse([word for word in words if word != "--print_config"])
        read.add(name)
    assert read == {*commands}


def test_what_runs_beside_is_waited_for(silence):
    assert all(silence.LINES[row.beside].until for row in silence.LINES.values() if row.beside)


def test_the_longest_silence_is_between_two_lines_or_before_the_end(silence):
    parts = [(5.0, "begin\nread\n"), (1.0, "first"), (1.0, "\n"), (6.0, "last\n")]
    assert silence.longest_silence(parts, 7.0) == (4.0, "first")
    assert silence.longest_silence(parts, 16.0) == (10.0, "last")
    assert silence.longest_silence([], 3.0) == (3.0, "")


def test_texts_that_begin_again_have_a_number(silence):
    assert silence.numbered(["a", "b"], 5) == ["a", "b", "a 1", "b 1", "a 2"]


def script(text, *more):
    return [sys.executable, "-u", "-c", text, *more]


@pytest.mark.parametrize("terminal", [False, True])
def test_a_process_is_heard_and_stopped_when_it_has_said_what_was_waited_for(silence, tmp_path, terminal):
    words = script("import time; print('begin'); print('listens'); time.sleep(600)")
    heard = silence.Heard(words, tmp_path, "listens", terminal)
    heard.stop()
    heard.end()
    assert heard.texts[0].split() == ["begin", "listens"]
    assert heard.process.returncode < 0


def test_a_process_that_ends_without_it_is_not_waited_for(silence, tmp_path):
    heard = silence.Heard(script("import sys; print('no', file=sys.stderr); sys.exit(3)"), tmp_path, "listens")
    heard.stop()
    heard.end()
    assert (heard.texts, heard.process.returncode) == (["", "no\n"], 3)


def test_a_command_that_leaves_a_file_should_say_what_comes_next(silence, tmp_path, monkeypatch):
    rows = {"leaves": "open('x', 'w')", "says": "open('y', 'w'); print('next: bertflow demo')", "only reads": "1"}
    monkeypatch.setattr(silence, "LINES", {name: silence.Row(name) for name in rows})
    bench = silence.Bench(tmp_path)
    monkeypatch.setattr(bench, "start", lambda row: silence.Heard(script(rows[row.line]), tmp_path))
    assert [bench.measured(name).then for name in rows] == ["no next", "next", "-"]
    assert not bench.measured("only reads").failed

import signal
import subprocess
import sys
import textwrap

import pytest

from bertflow.errors import DataError
from bertflow.files import atomic_file, atomic_folder, write_json, write_text


def _write_half(aside):
    aside.write_text("half")
    raise RuntimeError


def test_a_file_that_fails_half_way_leaves_the_old_one(tmp_path):
    write_text(tmp_path / "a.txt", "old")
    with pytest.raises(RuntimeError), atomic_file(tmp_path / "a.txt") as aside:
        _write_half(aside)
    assert (tmp_path / "a.txt").read_text() == "old"
    assert list(tmp_path.iterdir()) == [tmp_path / "a.txt"]


def test_a_folder_that_fails_half_way_leaves_the_old_one(tmp_path):
    with atomic_folder(tmp_path / "f") as aside:
        (aside / "a").write_text("old")
    with pytest.raises(RuntimeError), atomic_folder(tmp_path / "f") as aside:
        _write_half(aside / "a")
    assert (tmp_path / "f" / "a").read_text() == "old"
    assert list(tmp_path.iterdir()) == [tmp_path / "f"]


def test_a_folder_is_replaced_whole(tmp_path):
    for name in ("first", "second"):
        with atomic_folder(tmp_path / "f") as aside:
            (aside / name).write_text(name)
    assert [path.name for path in (tmp_path / "f").iterdir()] == ["second"]


def test_a_killed_process_leaves_the_old_file(tmp_path):
    write_text(tmp_path / "a.txt", "old")
    script = textwrap.dedent("""
        import os, signal, sys
        from bertflow.files import atomic_file
        with atomic_file(sys.argv[1]) as aside:
            aside.write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)
    """)
    killed = subprocess.run([sys.executable, "-c", script, str(tmp_path / "a.txt")], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert (tmp_path / "a.txt").read_text() == "old"


def test_a_finished_file_has_ordinary_permissions(tmp_path):
    write_text(tmp_path / "ours", "")
    (tmp_path / "ordinary").write_text("")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "ordinary").stat().st_mode


def test_a_file_in_the_place_of_the_folder_is_kept(tmp_path):
    (tmp_path / "f").write_text("mine")
    with pytest.raises(DataError, match="should become a folder"), atomic_folder(tmp_path / "f"):
        pass
    assert (tmp_path / "f").read_text() == "mine"


def test_equal_content_is_equal_bytes(tmp_path):
    write_json(tmp_path / "a.json", {"b": 1, "a": [2.5]})
    write_json(tmp_path / "b.json", {"a": [2.5], "b": 1})
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_a_nan_is_never_written(tmp_path):
    with pytest.raises(ValueError, match="Out of range float"):
        write_json(tmp_path / "a.json", float("nan"))
    assert not list(tmp_path.iterdir())

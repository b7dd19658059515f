import os
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from bertflow.errors import DataError, UsageError
from bertflow.files import atomic_file, atomic_folder, remove_unfinished, write_json, write_text
from bertflow.places import expand
from bertflow.records import read_record


def _write_half(aside):
    aside.write_text("half")
    raise RuntimeError


def test_a_file_that_fails_half_way_leaves_the_old_one(tmp_path):
    write_text(tmp_path / "a.txt", "old")
    with pytest.raises(RuntimeError), atomic_file(tmp_path / "a.txt") as aside:
        _write_half(aside)
    assert (tmp_path / "a.txt").read_text() == "old"
    assert list(tmp_path.iterdir()) == [tmp_path / "a.txt"]


@pytest.fixture
def synced(monkeypatch):
    """What was given to fsync, in order: the number of the file, and whether its final name was there."""
    seen = []

    def fsync(number):
        seen.append((os.fstat(number).st_ino, fsync.final.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    fsync.seen = seen
    return fsync


def test_a_file_is_on_the_disk_before_it_has_its_name_and_then_the_name(synced, tmp_path):
    synced.final = tmp_path / "a.txt"
    write_text(synced.final, "new")
    assert synced.seen == [(synced.final.stat().st_ino, False), (tmp_path.stat().st_ino, True)]


def test_a_folder_is_on_the_disk_before_it_has_its_name_and_then_the_name(synced, tmp_path):
    synced.final = folder = tmp_path / "f"
    with atomic_folder(folder) as aside:
        (aside / "a").write_text("new")
    assert synced.seen[:-1] == [(path.stat().st_ino, False) for path in (folder, folder / "a")]
    assert synced.seen[-1] == (tmp_path.stat().st_ino, True)


def test_a_folder_that_fails_half_way_leaves_the_old_one(tmp_path):
    with atomic_folder(tmp_path / "f") as aside:
        (aside / "a").write_text("old")
    with pytest.raises(RuntimeError), atomic_folder(tmp_path / "f") as aside:
        _write_half(aside / "a")
    assert (tmp_path / "f" / "a").read_text() == "old"
    assert list(tmp_path.iterdir()) == [tmp_path / "f"]


def test_a_folder_that_another_process_wrote_meanwhile_is_kept(tmp_path):
    said = r"^Another process wrote .*/f meanwhile\. Choose another place\.$"
    with pytest.raises(UsageError, match=said), atomic_folder(tmp_path / "f"), atomic_folder(tmp_path / "f") as other:
        (other / "a").write_text("other")
    assert (tmp_path / "f" / "a").read_text() == "other"
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


@pytest.fixture(params=[0o022, 0o077])
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def _modes(folder):
    return {str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}


def test_what_is_written_has_the_mode_of_the_umask(umask, tmp_path):
    with atomic_file(tmp_path / "array.safetensors") as aside:
        save_file({"x": np.zeros(3)}, aside)  # sets a mode of its own
    with atomic_folder(tmp_path / "folder") as aside:
        save_file({"x": np.zeros(3)}, aside / "array.safetensors")
        (aside / "part").mkdir(mode=0o700)
        (aside / "part" / "tool").touch(mode=0o777)
    assert _modes(tmp_path) == {
        "array.safetensors": 0o666 & ~umask,
        "folder": 0o777 & ~umask,
        "folder/array.safetensors": 0o666 & ~umask,
        "folder/part": 0o777 & ~umask,
        "folder/part/tool": 0o666 & ~umask,
    }


REPLACE = """
import itertools, os, signal, sys
from pathlib import Path
import bertflow.files as files

die = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
rename, renames = Path.rename, itertools.count(1)
{patch}
with files.atomic_folder(sys.argv[1]) as aside:
    files.write_json(aside / "a.json", {{"is": "new"}})
    {last}
"""
RENAMES = "files._exchanged = lambda *_: False; "
KILLS = {
    "while the new one is written": ("", "die()", "old"),
    "before the exchange": ("files._swap = die", "", "old"),
    "after the exchange": ("files.shutil.rmtree = die", "", "new"),
    "between two renames": (
        RENAMES + "Path.rename = lambda a, b: die() if next(renames) == 3 else rename(a, b)",
        "",
        "old",
    ),
    "after two renames": (RENAMES + "files.shutil.rmtree = die", "", "new"),
}


@pytest.mark.parametrize("when", KILLS)
def test_a_folder_whose_replacement_is_killed_is_the_old_or_the_new_one(when, tmp_path):
    patch, last, expected = KILLS[when]
    folder = tmp_path / "f"
    with atomic_folder(folder) as aside:
        write_json(aside / "a.json", {"is": "old"})
    killed = subprocess.run([sys.executable, "-c", REPLACE.format(patch=patch, last=last), str(folder)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert read_record(folder / "a.json", dict[str, str]) == {"is": expected}
    with atomic_folder(folder) as aside:
        write_json(aside / "a.json", {"is": "newest"})
    assert list(tmp_path.iterdir()) == [folder], "what the dead process left is gone"
    assert read_record(folder / "a.json", dict[str, str]) == {"is": "newest"}


@pytest.mark.parametrize("write", [atomic_file, atomic_folder])
def test_what_a_living_process_writes_is_left_alone(write, tmp_path):
    with write(tmp_path / "a") as aside:
        remove_unfinished(tmp_path / "a")
        assert aside.exists()
        if aside.is_dir():
            write_text(aside / "nested", "")
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]


def test_only_unfinished_files_are_swept(tmp_path):
    kept, swept = [".a.b", ".a.0123", ".ab.01234567", "a.01234567"], ".a.01234567"
    for name in (*kept, swept):
        (tmp_path / name).touch()
    remove_unfinished(tmp_path / "a")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)


def test_a_folder_behind_a_link_is_replaced_and_the_link_kept(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "old").touch()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with atomic_folder(tmp_path / "link") as aside:
        (aside / "new").touch()
    assert (tmp_path / "link").is_symlink()
    assert [path.name for path in (tmp_path / "real").iterdir()] == ["new"]


def test_a_prepared_folder_keeps_its_group_and_permissions(tmp_path):
    (tmp_path / "shared").mkdir()
    os.chown(tmp_path / "shared", -1, group := max(os.getgroups() or [os.getgid()]))
    (tmp_path / "shared").chmod(0o2770)
    with atomic_folder(tmp_path / "shared") as aside:
        (aside / "inner").mkdir()
        (aside / "inner" / "file").touch()
    found = {path.name: path.stat() for path in (tmp_path / "shared", *(tmp_path / "shared").rglob("*"))}
    assert {name: stat.S_IMODE(one.st_mode) for name, one in found.items()} == {
        "shared": 0o2770,
        "inner": 0o2770,
        "file": 0o660,
    }
    assert {one.st_gid for one in found.values()} == {group}


def test_a_home_that_no_user_has_is_a_name(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expand("~/a") == tmp_path / "a"
    assert expand("~no such user/a") == Path("~no such user/a")


def test_a_file_in_the_place_of_the_folder_is_kept(tmp_path):
    (tmp_path / "f").write_text("mine")
    with pytest.raises(DataError, match="should become a folder"), atomic_folder(tmp_path / "f"):
        pass
    assert (tmp_path / "f").read_text() == "mine"


def test_equal_content_is_equal_bytes(tmp_path):
    write_json(tmp_path / "a.json", {"b": 1, "a": [2.5]})
    write_json(tmp_path / "b.json", {"a": [2.5], "b": 1})
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_a_nan_is_never_written(tmp_path, refusal):
    assert "Out of range float" in refusal(lambda: write_json(tmp_path / "a.json", float("nan")), error=ValueError)
    assert not list(tmp_path.iterdir())

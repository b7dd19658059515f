import errno
import gc
import logging
import signal
import subprocess
import sys
import threading
import warnings

import pytest
from safetensors import SafetensorError

import bertflow
from bertflow.cli.commands import COMMANDS
from bertflow.cli.program import RANKS, announced, main, run
from bertflow.errors import DataError, MissingExtraError, ThresholdMissedError, UnknownNameError

from .conftest import ROOT


def test_a_name_that_is_not_public_is_an_attribute_error():
    with pytest.raises(AttributeError, match="No bertflow attribute nothing"):
        bertflow.nothing  # noqa: B018


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "search"])  # search has actions instead
def test_every_command_takes_its_own_defaults(command, told):
    assert ": " in told(command, "--print_config")


def test_help_lists_every_command(told):
    printed = told("--help")
    assert all(f"  {name} " in printed for name in COMMANDS)
    assert "3 data or disk" in printed


def test_an_unknown_command_is_one_line(capsys):
    assert main(["trian"]) == 2
    known = ", ".join(COMMANDS)
    assert capsys.readouterr().err == f"error: Unknown command 'trian'. Did you mean train? Known: {known}.\n"


@pytest.mark.parametrize(("launcher", "heeded"), [(None, True), ("LOCAL_RANK", False), ("SLURM_PROCID", False)])
def test_sigterm_is_heeded_as_ctrl_c_but_by_processes_of_a_launcher(launcher, heeded, monkeypatch, capsys):
    def command(argv):
        assert (signal.getsignal(signal.SIGTERM) is signal.default_int_handler) == heeded
        if heeded:
            signal.raise_signal(signal.SIGTERM)
        return 0

    for name in RANKS:
        monkeypatch.delenv(name, raising=False)
    if launcher:
        monkeypatch.setenv(launcher, "0")
    assert run(command, []) == int(heeded)
    assert capsys.readouterr().err == ("interrupted\n" if heeded else "")
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_sigterm_is_left_to_those_who_handle_it_and_to_the_main_thread():
    codes = []
    thread = threading.Thread(target=lambda: codes.append(run(lambda argv: 0, [])))
    thread.start()
    thread.join()
    assert codes == [0], "a thread cannot set a handler"
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        assert run(lambda argv: int(signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN), []) == 0
    finally:
        signal.signal(signal.SIGTERM, before)


NO_SPACE = OSError(errno.ENOSPC, "No space left on device", "out/x.npy")
ENDS = [
    (UnknownNameError("a"), 2, "error: a"),
    (MissingExtraError("mteb", "mteb"), 2, "error: This needs the package mteb."),
    (DataError("a"), 3, "error: a"),
    (ThresholdMissedError("a"), 4, "error: a"),
    (KeyboardInterrupt(), 1, "interrupted"),
    (NO_SPACE, 3, "error: out/x.npy: No space left on device. Make room on that disk, or choose another place."),
    (PermissionError(errno.EACCES, "Permission denied", "x"), 3, "error: x: Permission denied. Change its permissions"),
    (OSError("3 requested and 1 written"), 3, "error: 3 requested and 1 written. Look at the path"),
    (SafetensorError("Error while deserializing header"), 3, "error: "),
    (ZeroDivisionError("division\nby zero."), 5, "error: Internal error: ZeroDivisionError: division by zero. Please "
     "report it, with what --debug prints."),
]  # fmt: skip


@pytest.mark.parametrize(("error", "code", "line"), ENDS)
def test_what_ends_a_command_is_one_line_with_an_exit_code(error, code, line, capsys):
    def command(argv):
        raise error

    assert run(command, []) == code
    printed = capsys.readouterr().err
    assert printed.startswith(line)
    assert printed.count("\n") == 1


@pytest.mark.parametrize("how", ["option", "environment"])
def test_the_traceback_is_shown_for_debugging(how, capsys, monkeypatch):
    def command(argv):
        assert argv == ["x"], "the option is not the command's"
        raise ZeroDivisionError

    if how == "environment":
        monkeypatch.setenv("BERTFLOW_DEBUG", "1")
    assert run(command, ["x"] if how == "environment" else ["--debug", "x"]) == 5
    assert "Traceback" in capsys.readouterr().err


def test_a_warning_is_said_once(capsys):
    def command(argv):
        for _ in range(2):
            warnings.warn("2 directions hold no variance", stacklevel=1)
        return 0

    with warnings.catch_warnings(action="always"):
        assert run(command, []) == 0
    assert capsys.readouterr().err == "note: 2 directions hold no variance\n"


def test_a_note_is_shown_once_and_progress_each_time(capsys):
    def command(argv):
        for name in ("bertflow", "bertflow.progress") * 2:
            logging.getLogger(name).warning("from %s", name)
        return 0

    assert [run(command, []) for _ in range(2)] == [0, 0]
    each = "note: from bertflow\n" + 2 * "note: from bertflow.progress\n"
    assert capsys.readouterr().err == 2 * each


STOPPED = """
import importlib.abc, sys
class NoTorch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "numpy"):
            sys.exit("here it is loaded")
sys.meta_path.insert(0, NoTorch())
"""
PROGRAM = "from bertflow.cli import main; sys.exit(main())"


def stopped(folder, script, *argv):
    """What Python says until something slow is loaded."""
    command = [sys.executable, "-c", STOPPED + script, *argv]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder).stderr


ANNOUNCED = {
    "fix minilm text.txt --seed 1": "bertflow fix minilm text.txt: look at the cosines",
    "search ask faq.index how": "bertflow search ask faq.index how: rank the answers for a question\n",
    "search build faq.index": "bertflow search build faq.index: embed answers into a new index\n",
    "search": "bertflow search: keep known answers in an index",
    "train --output run": "bertflow train: fit a flow",
    "demo": "bertflow demo: calibrate a small real BERT",
}


@pytest.mark.parametrize(("line", "said"), ANNOUNCED.items())
def test_a_program_says_what_it_will_do_before_anything_slow_is_loaded(line, said, tmp_path):
    assert stopped(tmp_path, PROGRAM, *line.split()).startswith(said)


def test_python_that_strips_docstrings_is_refused():
    ended = subprocess.run([sys.executable, "-OO", "-m", "bertflow", "fix", "a", "b"], capture_output=True, text=True)
    assert ended.returncode == 2
    assert ended.stderr == "error: Python runs without docstrings (-OO), which hold the options. Use -O.\n"


WITHOUT_TEXT = {
    "fix": "An encoder and a text are needed, as `bertflow fix MODEL TEXT`. Give both, or --vectors.",
    "fix minilm empty.txt": "empty.txt should hold sentences, but holds none. Give text.",
    "fix minilm empty.csv": "empty.csv should hold sentences, but holds none. Give text.",
}


@pytest.mark.parametrize(("line", "said"), WITHOUT_TEXT.items())
def test_without_text_fix_ends_before_anything_slow_is_loaded(line, said, tmp_path):
    for name in ("empty.txt", "empty.csv"):
        (tmp_path / name).touch()
    assert stopped(tmp_path, PROGRAM, *line.split()).splitlines()[1:] == [f"error: {said}"]


@pytest.mark.parametrize("script", ["train", "evaluate"])
def test_a_script_does_so_as_well(script, tmp_path):
    said = stopped(tmp_path, f"import runpy; runpy.run_path('{ROOT / script}.py', run_name='__main__')", "no model")
    assert said.startswith(f"bertflow {script} 'no model': {COMMANDS[script].does}\n")


@pytest.mark.parametrize(
    ("option", "said"), [("--help", ""), ("--print_config", "bertflow tokens: show all options with their values\n")]
)
def test_help_is_not_announced_and_options_that_are_shown_are_not_work(option, said, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bertflow", "tokens", option])
    assert main() == 0
    assert capsys.readouterr().err == said


def test_a_program_ends_without_a_search_for_cycles(monkeypatch):
    at_exit = []
    monkeypatch.setattr("atexit.register", at_exit.append)
    monkeypatch.setattr(sys, "argv", ["bertflow", "--version"])
    assert main(["--version"]) == 0
    assert not at_exit
    assert main() == 0
    assert at_exit == [gc.freeze]


def test_of_several_processes_the_first_one_announces(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bertflow", "tokens", "--nothing"])
    for rank, announcements in (("1", 0), ("0", 1)):
        monkeypatch.setenv("RANK", rank)
        assert main() == 2
        assert capsys.readouterr().err.count("\n") == 1 + announcements


def test_a_long_question_is_announced_with_both_quotation_marks():
    said = announced(["search", "ask", "faq.index", "How do I reset my password after a year?"])
    assert said.startswith("bertflow search ask faq.index 'How do I reset my ...': ")


def test_a_long_path_is_announced_by_its_end():
    words = ["fix", "/srv/models/of/the/whole/company/bert-base", "my text.txt"]
    assert announced(words) == f"bertflow fix bert-base 'my text.txt': {COMMANDS['fix'].does}"


def test_passwords_and_long_lines_are_cut():
    words = ["reindex", "pgvector:postgresql://ann:secret@host/db/docs", "lancedb:a", "--calibrator", "whitening"]
    assert announced(words) == f"bertflow reindex pgvector:postgresql://ann:***: {COMMANDS['reindex'].does}"
    long = announced(["embed", *("text.txt",) * 100])
    assert long.startswith("bertflow embed text.txt")
    assert len(long) < 200
    assert announced(["tokens", "\x1b[2J"]).isprintable()

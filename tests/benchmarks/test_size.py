"""The budgets that `make check` compares: what is counted as code, and that only what fell is kept without a reason."""

import sys

import pytest

from .conftest import read_json

CODE = '''"""Counted is not this, nor an import."""
from .other import _hidden
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import a
def require(x) -> None:  # nor this
    """Nor this."""
    if x._y or f"{x} is {x}":
        raise ValueError

def require_all(xs) -> None:
    for x in xs:
        require(x)

def work(self):
    import numpy
    from bertflow import moments
    self._z = import_module("b")
    return self._z
'''


@pytest.fixture
def size(monkeypatch, tmp_path, benchmark):
    """The script, where a package of one file is."""
    module = benchmark("size")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "KEPT", tmp_path / "size.json")
    (tmp_path / "size.json").write_text('{"budgets": {}, "raised": {}}')
    (tmp_path / "bertflow").mkdir()
    (tmp_path / "bertflow/one.py").write_text(CODE)
    return module


def run(size, monkeypatch, capsys, *options):
    monkeypatch.setattr(sys, "argv", ["size.py", *options])
    return size.main(), capsys.readouterr().out.splitlines()[-2:]


def test_what_is_counted(size):
    found, places = size.measured(size.ROOT)
    assert found["bertflow/*.py"] == {"lines": 10, "tokens": 55}
    assert places == {
        "imports under TYPE_CHECKING": ["bertflow/one.py:5"],
        "own imports not at the top": ["bertflow/one.py:17"],
        "other imports not at the top": ["bertflow/one.py:16"],
        "calls of import_module": ["bertflow/one.py:18"],
        "reads of another's _private": ["bertflow/one.py:2", "bertflow/one.py:8"],
        "functions that only raise": ["bertflow/one.py:6", "bertflow/one.py:11"],
    }


def test_a_rise_is_kept_with_a_reason_alone(size, monkeypatch, capsys):
    make, path = [size, monkeypatch, capsys], size.ROOT / "bertflow/one.py"
    assert run(*make, "--raise", "it begins")[0] == 0
    assert run(*make) == (0, [run(*make)[1][0], "size: nothing is above its budget."])
    path.write_text(CODE + "x = 1\n")
    for option in ([], ["--write"]):
        code, (said, what_to_do) = run(*make, *option)
        assert code == 1
        assert said == "size: bertflow/*.py: 11 lines, 1 above the budget of 10; 58 tokens, 3 above the budget of 55."
        assert what_to_do == 'size: shrink it, or say what it buys with --raise "REASON".'
    assert run(*make, "--raise", "x")[0] == 0
    path.write_text("x = 1\n")
    assert run(*make, "--write")[0] == 0
    kept = read_json(size.ROOT / "size.json")
    assert kept["budgets"]["bertflow/*.py"] == {"lines": 1, "tokens": 3}
    assert kept["raised"] == {"bertflow/*.py": "x", "form": "it begins"}

"""The counts that `make check` compares: a rise is one line that says which, by how much, and how to accept it."""

import gc
import sys

import numpy as np
import pytest


@pytest.fixture
def counts(monkeypatch, tmp_path, benchmark):
    """The script, with a file of its own, and what it counts in the place of what takes seconds."""
    module = benchmark("counts")
    monkeypatch.setattr(module, "KEPT", tmp_path / "counts.json")
    for name in ("modules", "operators", "arrays"):
        monkeypatch.setattr(module, name, lambda: iter(()))
    gc.disable()  # as the script does: the garbage of other tests has finalizers, which would be counted
    yield module
    gc.enable()


def run(counts, monkeypatch, capsys, operators, calls, *options):
    work = [("a step", {"operators": operators}), ("an evaluation", {"calls": calls})]
    monkeypatch.setattr(counts, "operators", lambda: iter(work))
    monkeypatch.setattr(sys, "argv", ["counts.py", *options])
    code = counts.main()
    (line,) = capsys.readouterr().out.splitlines()
    return code, line


def test_a_rise_is_one_line_until_it_is_accepted(counts, monkeypatch, capsys):
    count = [counts, monkeypatch, capsys]
    assert run(*count, 100, 1000)[1].startswith("counts: not compared. None are kept for Python 3.")
    assert run(*count, 100, 1000, "--write")[0] == 0
    assert run(*count, 90, 1020) == (0, "counts: none of 2 rose.")
    code, line = run(*count, 101, 1021)
    assert code == 1
    assert line == (
        "counts: a step: 101 operators, 1 more than the 100 that are kept; an evaluation: 1,021 calls, 21 more than "
        "the 1,000 that are kept. Save them, or accept them: python benchmarks/counts.py --write"
    )
    assert run(*count, 101, 1021, "--write")[0] == 0
    assert run(*count, 101, 1021)[0] == 0


def test_what_is_counted_grows_with_the_work(counts):
    x = np.ones(1000)
    assert counts.peak_bytes(lambda: x + 1) - x.nbytes in range(2000)
    few, many = (counts.count_calls(lambda n=n: [abs(k) for k in range(n)]) for n in (10, 110))
    assert many - few == 100

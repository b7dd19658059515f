from dataclasses import replace

import numpy as np
import pytest

from bertflow.cli import main
from bertflow.data import sts
from bertflow.data.pairs import Pairs
from bertflow.studies import verification
from bertflow.studies.verification import CHECKS

from ..texts import TWELVE as WORDS


def pairs_of(task, data_dir):
    """Random pairs in place of a task's."""
    rng = np.random.default_rng(len(task))
    first, second = (tuple(" ".join(rng.choice(WORDS, rng.integers(1, 9))) for _ in range(40)) for _ in range(2))
    subsets = tuple("ab"[at % 2] for at in range(40)) if task.startswith("sts1") else ("all",) * 40
    return Pairs(task, first, second, rng.normal(size=40), split="test", subsets=subsets, source=f"{data_dir}/{task}")


@pytest.fixture
def command(monkeypatch, tiny_bert, capsys):
    monkeypatch.setattr(sts, "load_sts", pairs_of)
    monkeypatch.setattr(sts.StsSource, "__post_init__", lambda _: None)

    def call(*arguments):
        code = main(["verify-paper", str(tiny_bert), "--data_dir", "data", "--max_length", "8", *map(str, arguments)])
        return code, *capsys.readouterr()

    return call


def test_figures_that_are_all_reproduced_are_exit_code_0(command, monkeypatch):
    monkeypatch.setattr(verification, "CHECKS", [replace(check, low=-100.0, high=100.0) for check in CHECKS])
    code, out, err = command()
    assert (code, "error" in err) == (0, False)
    assert out.count("PASS  ") == len(CHECKS)

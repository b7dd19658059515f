from dataclasses import replace

from bertflow.cli import main
from bertflow.studies import verification
from bertflow.studies.verification import CHECKS


def test_figures_that_are_all_reproduced_are_exit_code_0(sts, monkeypatch, capsys):
    monkeypatch.setattr(verification, "CHECKS", [replace(check, low=-100.0, high=100.0) for check in CHECKS])
    code = main(["verify-paper", "BERT", "--data_dir", "sts", "--max_length", "8"])
    out, err = capsys.readouterr()
    assert (code, "error" in err) == (0, False)
    assert out.count("PASS  ") == len(CHECKS)

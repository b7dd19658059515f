import json

import pytest

from bertflow.calibrated import CalibratedEncoder
from bertflow.cli import main
from bertflow.encoder.embedded import RAW_POOLING
from bertflow.runs.demonstration import RAW, SYSTEMS
from bertflow.scoring.scores import ScoreCalibrator


@pytest.mark.slow
@pytest.mark.usefixtures("minilm")
def test_the_demo_shows_every_system_and_saves_one_that_works(tmp_path, capsys):
    assert main(["demo", "--sentences", "600", "--pairs", "60", "--output", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert all(f"\n {name} " in printed for name in SYSTEMS)
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert {row["system"] for row in rows} == set(SYSTEMS)
    assert {row["seen"] for row in rows} == {0.0}
    saved = CalibratedEncoder.load(tmp_path / "encoder")
    assert saved.encode(["Return the number of items.", "Raise an error."]).shape == (2, saved.dim)
    assert saved.calibrator.moments_.n == 600
    assert ScoreCalibrator.load(tmp_path / "encoder", saved).n_ > 200
    (card,) = [json.loads((tmp_path / "geometry" / "report.json").read_text())["card"]]
    assert card["next"] == f"bertflow serve {tmp_path / 'encoder'}"
    assert set(card["numbers"]["directions in use"]) == {"raw", "whitening", "flow", "wanted"}


def test_the_raw_system_is_what_other_commands_calibrate_by_default():
    assert RAW == RAW_POOLING

"""metrics.csv; the second voice is Lightning's own logger, in one go."""

import pytest
from pytorch_lightning.loggers import CSVLogger

from bertflow.errors import DataError
from bertflow.training.trainer import log_again

pytestmark = pytest.mark.filterwarnings("ignore:Experiment logs directory")
ROWS = [({"train/nll": 1.5}, 0), ({"train/nll": 1.25}, 4), ({"val/nll": 1.1}, 4), ({"train/nll": 1.0}, 9)]


def logger(folder, often=1):
    return CSVLogger(folder, name="", version="", flush_logs_every_n_steps=often)


def log(to, rows):
    for metrics, step in rows:
        to.log_metrics(metrics, step)
    return to


@pytest.fixture
def expected(tmp_path):
    folder = tmp_path / "lightning"
    theirs = logger(folder, often=100)
    log(theirs, ROWS[:2]).save()
    log(theirs, ROWS[2:]).finalize("success")
    return (folder / "metrics.csv").read_bytes()


@pytest.mark.parametrize("steps", [0, 1, 4, 5, 10])
def test_a_file_that_is_continued_is_that_of_one_run(steps, tmp_path, expected):
    log(logger(tmp_path / "run"), ROWS)
    again = logger(tmp_path / "run")
    log_again(again, tmp_path / "run" / "metrics.csv", steps)
    log(again, [row for row in ROWS if row[1] >= steps])
    assert (tmp_path / "run" / "metrics.csv").read_bytes() == expected


def test_a_line_that_was_cut_off_is_left_out(tmp_path):
    log(logger(tmp_path), ROWS)
    whole = (tmp_path / "metrics.csv").read_bytes()
    (tmp_path / "metrics.csv").write_bytes(whole + b"1,2")
    log_again(logger(tmp_path), tmp_path / "metrics.csv", 10)
    assert (tmp_path / "metrics.csv").read_bytes() == whole


@pytest.mark.parametrize("content", [b"epoch,loss\n0,1\n", b"epoch,step\n0,one\n", b"step\n1,2,3\n", b"step\n\xff\n"])
def test_a_damaged_file_is_one_line(content, tmp_path):
    (tmp_path / "metrics.csv").write_bytes(content)
    with pytest.raises(DataError, match=r"metrics\.csv should hold the rows that the run has logged, but is damaged: "):
        log_again(logger(tmp_path), tmp_path / "metrics.csv", 10)
    assert (tmp_path / "metrics.csv").read_bytes() == content

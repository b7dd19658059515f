from pathlib import Path

import numpy as np
import pytest

import bertflow
from bertflow.cli import main
from bertflow.export.targets import write_export

from ..encoder.conftest import make
from ..export.conftest import embedding_server
from .test_export import TEXT


@pytest.fixture(scope="module")
def system(tiny_bert):
    encoder = make(tiny_bert, pooling="mean(1,2)", max_length=48)
    return bertflow.CalibratedEncoder(encoder, bertflow.Whitening(15).fit_sentences(encoder, TEXT))


@pytest.fixture(scope="module")
def exported(system, tmp_path_factory):
    return write_export(system, tmp_path_factory.mktemp("exported") / "mine", "sentence-transformers").folder


def doctor(exported, served, *more):
    with served as (url, _):
        return main(["doctor", "--golden", str(exported), "--url", url, *more])


def test_a_server_that_is_right_is_right(system, exported, capsys):
    assert doctor(exported, embedding_server(system.encode)) == 0
    assert "right     The vectors are the golden ones." in capsys.readouterr().out


def test_a_server_that_differs_is_told_apart_with_exit_code_4(system, exported, capsys):
    assert doctor(exported / "golden.json", embedding_server(system.encoder.encode)) == 4
    assert "\nerror: The server differs: it leaves the calibrator out." in capsys.readouterr().err


def test_unit_length_can_be_what_is_wanted(system, exported, capsys):
    def embed(sentences):
        z = system.encode(sentences)
        return z / np.linalg.norm(z, axis=1, keepdims=True)

    assert doctor(exported, embedding_server(embed)) == 4
    assert "it scales vectors to unit length" in capsys.readouterr().err
    assert doctor(exported, embedding_server(embed), "--normalized") == 0


def test_folders_are_run_here(system, exported):
    system.save("calibrated")
    system.encoder.save("raw")
    folders = (exported, Path("calibrated"), Path("raw"))
    codes = [main(["doctor", "--golden", str(exported), "--model", str(folder)]) for folder in folders]
    assert codes == [0, 0, 4]

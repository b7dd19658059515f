"""Golden vectors, and what is found out with them: for every mistake, a server that makes it."""

import numpy as np
import pytest

import bertflow
from bertflow.export.golden import SUSPECT_ROWS, Golden, distances, explain
from bertflow.export.parts import GOLDEN_SENTENCES, Parts, make_golden

from ..test_unit_length import unit


@pytest.fixture(scope="module")
def world(tiny_system, tmp_path_factory):
    """A whitened encoder with a prompt, its golden vectors as read from a file, and what may go wrong with it."""
    system = tiny_system("first-last-avg", "whitening", prompt="the cat : ")
    folder = tmp_path_factory.mktemp("golden")
    make_golden(Parts(system, folder)).write(folder)

    def other(calibrated=True, **options):
        encoder = bertflow.TransformerEncoder(folder, device="cpu", **options)
        x = encoder.encode(GOLDEN_SENTENCES)
        return system.calibrate(x) if calibrated else x

    return system, Golden.read(folder), other


def test_there_are_32_sentences_and_the_right_vectors_are_right(world):
    system, golden, _ = world
    assert len(golden.sentences) == 32
    finding = explain(golden, system.encode(golden.sentences))
    assert (finding.right, finding.text) == (True, "The vectors are the golden ones.")


def test_the_file_holds_what_float32_holds(world):
    system, golden, _ = world
    np.testing.assert_allclose(golden.vectors, system.encode(golden.sentences), rtol=2e-6, atol=1e-6)


# What a server does, and how it is named.
MISTAKES = {
    "drops the calibrator": (lambda w: w[2](calibrated=False), "it leaves the calibrator out"),
    "pools by mean of the last": (lambda w: w[2](pooling="mean"), "it pools by mean over its last block"),
    "pools by cls": (lambda w: w[2](pooling="cls"), "it pools by cls over its last block"),
    "pools by max, no calibrator": (
        lambda w: w[2](pooling="max", calibrated=False),
        "it pools by max over its last block, and leaves the calibrator out",
    ),
    "no prompt": (lambda w: w[2](prompt=""), "it leaves the prompt out"),
    "unit length": (lambda w: unit(w[2]()), "it scales vectors to unit length"),
    "unit length, no calibrator": (
        lambda w: unit(w[2](calibrated=False)),
        "it leaves the calibrator out, and scales vectors to unit length",
    ),
    "bfloat16": (lambda w: w[2](dtype="bfloat16"), "The server computes in lower precision: its vectors are off by"),
    "float16": (lambda w: w[2](dtype="float16"), "The server computes in lower precision: its vectors are off by"),
    "int8": (
        lambda w: w[2]() * (1 + 0.3 * np.random.default_rng(0).normal(size=(32, 15)).astype(np.float32)),
        "The server computes the right embeddings roughly: its vectors are off by",
    ),
    "NaN": (lambda w: np.full((32, 15), np.nan, np.float32), "32 of 32 vectors hold NaN or infinity."),
    "cuts early": (lambda w: w[2](max_length=30), "it cuts long sentences somewhere from"),
    "cuts late": (lambda w: w[2](max_length=64), "it reads more than max_length=48 tokens of a long sentence"),
    "another model": (
        lambda w: np.random.default_rng(0).normal(size=(32, 15)).astype(np.float32),
        "usual mistakes explains it",
    ),
    "another width": (lambda w: np.ones((32, 7), np.float32), "its vectors are 7 wide, 15 were expected"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_every_mistake_is_named(world, mistake):
    make, text = MISTAKES[mistake]
    finding = explain(world[1], make(world))
    assert not finding.right
    assert text in finding.text


@pytest.mark.parametrize("mistake", ["drops the calibrator", "unit length", "another width", "int8", "cuts early"])
def test_without_the_long_sentences_the_mistakes_are_the_same(world, mistake):
    rows = [row for row, tokens in enumerate(world[1].tokens) if tokens <= 40]
    make, text = MISTAKES[mistake]
    finding = explain(world[1], make(world)[rows], rows=rows)
    assert finding.vectors == len(rows) < 32
    assert text in finding.text
    assert not finding.right
    assert explain(world[1], world[0].encode(world[1].sentences)[rows], rows=rows).right


def test_the_precision_that_is_named_is_the_nearest(world):
    assert "bfloat16 costs" in explain(world[1], world[2](dtype="bfloat16")).text


def test_of_an_encoder_in_half_precision_every_machine_s_digits_are_right(tiny_system, tmp_path):
    system = tiny_system("mean", "whitening", dtype="bfloat16")
    golden = make_golden(Parts(system, tmp_path))
    exact = bertflow.TransformerEncoder(tmp_path, dtype="float32", device="cpu").encode(golden.sentences)
    assert golden.precision["float32"] < golden.tolerance
    assert np.median(distances(system.calibrate(exact), np.float32(golden.vectors))) < golden.tolerance
    assert explain(golden, np.float32(golden.vectors)).right


def test_unit_length_is_right_where_it_is_wanted(world):
    assert explain(world[1], unit(world[2]()), normalized=True).right
    finding = explain(world[1], world[2](), normalized=True)
    assert "it leaves vectors at a length of their own" in finding.text
    assert "calibrator out" in explain(world[1], unit(world[2](calibrated=False)), normalized=True).text


def test_long_sentences_are_among_the_suspects(world):
    golden = world[1]
    assert max(golden.tokens[row] for row in SUSPECT_ROWS) == max(golden.tokens) > 200


def test_a_distance_is_a_share_of_a_row_s_length():
    assert distances(np.array([[3.0, 4.5]]), np.array([[3.0, 4.0]])) == pytest.approx(0.1)
    assert distances(np.zeros((1, 3)), np.zeros((1, 2))) == float("inf")
    assert np.isnan(distances(np.full((1, 2), np.nan), np.ones((1, 2))))

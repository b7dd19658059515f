"""The commands that come next: on a card, which is read elsewhere, and where the command ran."""

from pathlib import Path

import pytest

from bertflow.next_steps import Reader, new_place, next_command, option_words, steps_after

HERE = Reader(serves=False, text="e/text.txt", before=("search", "example", "e"), output=("--output", "fixed-2"))


@pytest.mark.parametrize(
    ("model", "how", "expected"),
    [
        (None, {}, "bertflow demo"),
        ("runs/my run", {}, "bertflow serve 'runs/my run'"),
        (
            "bert",
            {"calibrated": False, "text": "a.txt", "options": option_words(pooling="mean(1,2)", max_length=None)},
            "bertflow fix bert a.txt --pooling 'mean(1,2)'",
        ),
        ("bert", {"calibrated": False, "text": ["a"]}, "bertflow fix bert mine.txt"),
        (object(), {}, ""),
    ],
    ids=["own", "calibrated", "raw", "raw-in-memory-text", "in-memory"],
)
def test_a_card_names_nothing_of_the_place_where_it_was_made(model, how, expected):
    assert next_command(model, **how) == expected


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({}, [["inspect", "bert"]]),
        ({"calibrated": False, "text": "a.txt"}, [["fix", "bert", "a.txt", "--output", "fixed-2"]]),
        ({"calibrated": False}, [("search", "example", "e"), ["fix", "bert", "e/text.txt", "--output", "fixed-2"]]),
    ],
    ids=["nothing-serves", "text", "no-text"],
)
def test_where_the_command_ran_there_are_text_and_a_free_place(how, expected):
    assert steps_after("bert", HERE, **how) == expected


def test_a_new_place_is_the_first_name_that_is_free(tmp_path):
    assert new_place(tmp_path / "z.npy") == tmp_path / "z.npy"
    for name in ("z.npy", "z-2.npy"):
        (tmp_path / name).touch()
    assert new_place(tmp_path / "z.npy") == tmp_path / "z-3.npy"


@pytest.mark.parametrize(("taken", "free"), [(".", "out"), ("..", "../out"), ("/", "/out")])
def test_a_place_without_a_name_of_its_own_gets_one(taken, free):
    assert new_place(taken) == Path(free)

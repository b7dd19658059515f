import pytest

from bertflow.errors import UnknownNameError
from bertflow.registry import lookup


def test_a_known_name_gives_its_row():
    assert lookup("pooling", {"mean": 1}, "mean") == 1


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(UnknownNameError) as error:
        lookup("pooling", {"mean": 1, "cls": 2}, "men")
    assert str(error.value) == "Unknown pooling 'men'. Known: mean, cls. Did you mean mean?"


def test_the_closest_name_is_offered():
    with pytest.raises(UnknownNameError) as error:
        lookup("pooling", {"mean": 1, "cls": 2}, "maen")
    assert str(error.value) == "Unknown pooling 'maen'. Known: mean, cls. Did you mean mean?"

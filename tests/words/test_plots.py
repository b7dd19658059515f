import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the plots extra is not installed")

from bertflow.words.encoder import WordEncoder
from bertflow.words.panels import Panel, layer_heatmaps, run_study, similarity_heatmaps
from bertflow.words.study import STATIC, word_study

SENTENCES = ["the man sleeps and the dog eats", "a red dog and a man and the cat"]


@pytest.fixture(scope="module")
def result(tiny_bert):
    return run_study(WordEncoder(tiny_bert), word_study(["man", "dog", "and"], SENTENCES))


@pytest.fixture(scope="module")
def panels(result):
    return result.panels["mean(2)"]


@pytest.fixture
def axes(panels):
    return [axis for axis in similarity_heatmaps(panels, "men: mean(2)").axes if axis.get_title()]


def test_cosine_and_distance_stand_side_by_side_static_and_in_each_context(axes):
    assert [axis.get_title() for axis in axes] == [STATIC, "context 1", "context 2"] * 2


def test_every_number_stands_in_its_cell(axes, panels):
    for axis, panel in zip(axes[3:], panels.values(), strict=True):
        written = {text.get_position(): text.get_text() for text in axis.texts}
        assert written == {(column, row): f"{value:.2f}" for (row, column), value in np.ndenumerate(panel.euclidean)}


def test_static_distances_have_a_scale_of_their_own_and_static_cosines_have_not(axes):
    scales = [axis.images[0].get_clim() for axis in axes]
    assert scales[0] == scales[1] == scales[2]
    assert scales[3] != scales[4] == scales[5]


def test_numbers_that_are_all_equal_can_be_read():
    same = Panel(("bank vault", "river bank"), np.ones((2, 2)), np.zeros((2, 2)), ())
    axes = similarity_heatmaps({STATIC: same, "one": same}, "banks").axes
    # White on the dark end of the scale, whose end it is.
    assert {text.get_color() for axis in axes for text in axis.texts} == {"white"}


def test_layers_follow_the_static_vectors(result):
    figure = layer_heatmaps(result, "cosine")
    first = figure.axes[0]
    assert [label.get_text() for label in first.get_xticklabels()] == [STATIC, *result.panels]
    assert [label.get_text() for label in first.get_yticklabels()] == ["man ~ dog", "man ~ and", "dog ~ and"]
    written = {text.get_position(): text.get_text() for text in first.texts}
    assert written[3, 1] == f"{result.panels['mean(2)']['context 1'].cosine[0, 2]:.2f}"


def test_distances_by_layer_leave_the_static_out(result):
    figure = layer_heatmaps(result, "euclidean")
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == list(result.panels)

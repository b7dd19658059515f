import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the plots extra is not installed")

from bertflow.words.drawing import layer_heatmaps, similarity_heatmaps
from bertflow.words.encoder import WordEncoder
from bertflow.words.panels import Panel, run_study
from bertflow.words.study import STATIC, word_study

from .test_panels import SENTENCES


@pytest.fixture(scope="module")
def result(tiny_bert):
    return run_study(WordEncoder(tiny_bert), word_study(["man", "dog", "and"], SENTENCES))


def written(axis):
    return {text.get_position(): text.get_text() for text in axis.texts}


def test_cosine_and_distance_stand_side_by_side_static_and_in_each_context(result):
    panels = result.panels["mean(2)"]
    axes = [axis for axis in similarity_heatmaps(panels, "men: mean(2)").axes if axis.get_title()]
    assert [axis.get_title() for axis in axes] == [STATIC, "context 1", "context 2"] * 2
    for axis, panel in zip(axes[3:], panels.values(), strict=True):
        assert written(axis) == {(column, row): f"{at:.2f}" for (row, column), at in np.ndenumerate(panel.euclidean)}
    scales = [axis.images[0].get_clim() for axis in axes]
    assert scales[0] == scales[1] == scales[2]
    assert scales[3] != scales[4] == scales[5], "static distances have a scale of their own"


def test_numbers_that_are_all_equal_can_be_read():
    same = Panel(("bank vault", "river bank"), np.ones((2, 2)), np.zeros((2, 2)), ())
    axes = similarity_heatmaps({STATIC: same, "one": same}, "banks").axes
    # White on the dark end of the scale, whose end it is.
    assert {text.get_color() for axis in axes for text in axis.texts} == {"white"}


def test_layers_follow_the_static_vectors(result):
    first, by_distance = (layer_heatmaps(result, measure).axes[0] for measure in ("cosine", "euclidean"))
    assert [label.get_text() for label in first.get_xticklabels()] == [STATIC, *result.panels]
    assert [label.get_text() for label in first.get_yticklabels()] == ["man ~ dog", "man ~ and", "dog ~ and"]
    assert written(first)[3, 1] == f"{result.panels['mean(2)']['context 1'].cosine[0, 2]:.2f}"
    assert [label.get_text() for label in by_distance.get_xticklabels()] == list(result.panels)

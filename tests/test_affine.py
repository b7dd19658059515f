import copy
import pickle

import numpy as np
import pytest
import torch
from scipy import stats

from bertflow.affine import AffineMap, all_but_the_top_map, center_map, standardize_map, whitening_map
from bertflow.errors import NullDirectionWarning, UsageError
from bertflow.moments import Moments

AFFINE_MAPS = {
    "center": center_map,
    "standardize": standardize_map,
    "abtt": all_but_the_top_map,
    "whitening": whitening_map,
}


@pytest.fixture
def x():
    generator = np.random.default_rng(0)
    return generator.normal(size=(300, 6)) @ generator.normal(size=(6, 6)) + generator.normal(size=6)


def test_standardized_coordinates_are_z_scores(x):
    z = standardize_map(Moments.of(x))(torch.tensor(x)).numpy()
    np.testing.assert_allclose(z, stats.zscore(x, axis=0))


def test_reduced_whitening_is_the_first_columns_of_the_full_one(x):
    seen = Moments.of(x)
    torch.testing.assert_close(whitening_map(seen, 2).weight, whitening_map(seen).weight[:, :2])


def test_the_top_directions_are_gone_and_the_rest_is_untouched(x):
    z = all_but_the_top_map(Moments.of(x), 2)(torch.tensor(x)).numpy()
    u, s, vt = np.linalg.svd(x - x.mean(0), full_matrices=False)
    np.testing.assert_allclose(z, (u[:, 2:] * s[2:]) @ vt[2:], atol=1e-10)


@pytest.mark.parametrize("name", ["center", "standardize", "whitening"])
def test_logabsdet_agrees_with_autograd(name, x):
    affine = AFFINE_MAPS[name](Moments.of(x))
    jacobian = torch.autograd.functional.jacobian(lambda row: affine(row[None])[0], torch.tensor(x[0]))
    assert affine.logabsdet == pytest.approx(float(torch.linalg.slogdet(jacobian).logabsdet))


def test_logabsdet_is_that_of_the_numbers_that_were_loaded(x):
    fitted = whitening_map(Moments.of(x))
    loaded = AffineMap.from_spec(fitted.spec())
    before = loaded.logabsdet
    loaded.load_state_dict(fitted.state_dict())
    assert loaded.logabsdet == fitted.logabsdet != before
    assert pickle.loads(pickle.dumps(loaded)).logabsdet == copy.deepcopy(loaded).logabsdet == fitted.logabsdet


def test_a_null_direction_is_dropped_counted_and_said(x):
    x[:, 5] = x[:, 0] + x[:, 1]
    with pytest.warns(NullDirectionWarning) as said:
        affine = whitening_map(Moments.of(x))
    assert affine.dim_out == 5
    assert str(said[0].message) == (
        "1 of 6 directions hold no variance (standard deviation below 1e-05 of the root mean square norm) "
        "and were left out."
    )


def test_a_constant_coordinate_becomes_zero_and_comes_back_as_its_mean(x):
    x[:, 2] = 7.0
    with pytest.warns(NullDirectionWarning):
        affine = standardize_map(Moments.of(x))
    z = affine(torch.tensor(x))
    assert not z[:, 2].any()
    torch.testing.assert_close(affine.inverse(z), torch.tensor(x))


def test_fewer_rows_than_dimensions_say_what_they_span():
    x = np.random.default_rng(0).normal(size=(4, 10))
    with pytest.warns(NullDirectionWarning, match="4 rows span at most 3") as said:
        affine = whitening_map(Moments.of(x))
    assert len(said) == 1
    assert affine.dim_out == 3
    assert torch.isfinite(affine(torch.tensor(x))).all()


def test_more_directions_than_the_rank_are_refused(x, refusal):
    assert refusal(lambda: whitening_map(Moments.of(x), 7)) == (
        "Whitening to 7 directions was asked for, but 300 rows of dimension 6 have rank 6. "
        "Choose 1 to 6, or fit on more sentences."
    )


def test_taking_out_every_direction_leaves_one_and_says_so(x):
    with pytest.warns(UserWarning, match=r"^Only 5 of the k=6 directions can be taken out of 6; one is left\.$"):
        affine = all_but_the_top_map(Moments.of(x), 6)
    assert torch.linalg.matrix_rank(affine.weight) == 1


def test_taking_out_less_than_nothing_is_refused(x, refusal):
    assert refusal(lambda: all_but_the_top_map(Moments.of(x), -1), error=UsageError) == (
        "All-but-the-top takes out k directions, k >= 0; got k=-1."
    )


@pytest.mark.parametrize("name", AFFINE_MAPS)
def test_rows_are_mapped_in_their_own_precision(name, x):
    affine = AFFINE_MAPS[name](Moments.of(x))
    assert affine(torch.tensor(x, dtype=torch.float32)).dtype == torch.float32
    assert affine(torch.tensor(x, dtype=torch.float16)).dtype == torch.float32
    assert affine(torch.tensor(x)).dtype == torch.float64


def test_signs_do_not_depend_on_the_solver(x):
    # eigh may return u or -u; the rule is that the largest entry of each column is positive.
    weight = whitening_map(Moments.of(x)).weight
    assert (weight.gather(0, weight.abs().argmax(0, keepdim=True)) > 0).all()

"""Every transform, one table: inverse, log-det against autograd, rows apart; then what each alone claims."""

from functools import partial

import pytest
import torch
from nflows.transforms import CompositeTransform, InverseTransform, MaskedAffineAutoregressiveTransform, Sigmoid
from nflows.transforms.base import Transform
from nflows.transforms.permutations import ReversePermutation
from torch.func import jacrev, vmap

from bertflow.errors import DataError, UnknownNameError, UsageError
from bertflow.flow import GlowConfig
from bertflow.flow.actnorm import ActNorm, initialize
from bertflow.flow.coupling import AdditiveCoupling, AffineCoupling, Network
from bertflow.flow.glow import build_glow
from bertflow.flow.transforms import MIXINGS, AbstractPart, Chain, LULinear, Split, of_rows

EXACT = {"rtol": 1e-10, "atol": 1e-10}
DIMS = (2, 3, 65)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def rows(n, dim, dtype=torch.float64, seed=7):
    return torch.randn(n, dim, generator=seeded(seed), dtype=torch.float64).to(dtype)


def network(kind="mlp", activation="relu"):
    return partial(
        Network, hidden=8, kind=kind, activation=activation, factor=1.0, start="identity", generator=seeded()
    )


def glow(**changes):
    return lambda dim: build_glow(dim, GlowConfig(hidden=8, **changes))


def mixing(name):
    return lambda dim: MIXINGS[name](dim, seeded())[0]


TRANSFORMS = {
    "actnorm": ActNorm,
    "actnorm, factor 3": lambda dim: ActNorm(dim, factor=3.0),
    "actnorm, glorot": lambda dim: ActNorm(dim, start="glorot", generator=seeded()),
    "reversal": mixing("reversal"),
    "random": mixing("random"),
    "lu": mixing("lu"),
    "lu-rotation": mixing("lu-rotation"),
    "additive": lambda dim: AdditiveCoupling(dim, network()),
    "additive, conv-stack": lambda dim: AdditiveCoupling(dim, network("conv-stack")),
    "additive, gatu": lambda dim: AdditiveCoupling(dim, network(activation="gatu")),
    "affine": lambda dim: AffineCoupling(dim, network()),
    "split": lambda dim: Split(ActNorm(dim // 2), dim // 2, factored_first=False),
    "split, factored first": lambda dim: Split(ActNorm(dim // 2), dim // 2, factored_first=True),
    "chain": lambda dim: Chain({"scale": ActNorm(dim), "mix": mixing("lu")(dim)}),
    "glow": glow(),
    "glow, released": glow(
        levels=3,
        permutation="reversal",
        network="conv-stack",
        actnorm_factor=3.0,
        restore_order=False,
        factored_first=True,
    ),
    "glow, affine": glow(coupling="affine", permutation="lu-rotation"),
}


class ConditionalShift(Transform):
    """One of nflows' kind, as a user may write it: the rows move by their context."""

    def forward(self, inputs, context=None):
        return inputs + context, inputs.new_zeros(inputs.shape[0])

    def inverse(self, inputs, context=None):
        return inputs - context, inputs.new_zeros(inputs.shape[0])


IDENTITY_AT_START = ("actnorm", "additive", "additive, conv-stack", "additive, gatu", "split", "glow")


def pushed(transform, seed=3):
    """The transform with every parameter moved a little, so that nothing is tested on zeros."""
    generator = seeded(seed)
    with torch.no_grad():
        for parameter in transform.parameters():
            scale = 0.1 / parameter.shape[-1] ** 0.5
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))
    return transform


@pytest.fixture(params=DIMS)
def dim(request):
    return request.param


@pytest.fixture(params=TRANSFORMS)
def transform(request, dim):
    return pushed(TRANSFORMS[request.param](dim)).double()


def test_inverse_undoes_forward(transform, dim):
    x = rows(9, dim)
    torch.testing.assert_close(transform.inverse(transform(x)[0])[0], x, **EXACT)


def test_inverse_undoes_forward_in_single_precision(transform, dim):
    x = rows(9, dim, torch.float32)
    x_again = transform.float().inverse(transform(x)[0])[0]
    # 1e-6 of the largest number for each map on the way; a W = P L U is two.
    maps = {AdditiveCoupling: 1, AffineCoupling: 1, LULinear: 2}
    on_the_way = sum(maps.get(type(part), 0) for part in transform.modules())
    assert (x_again - x).abs().max() <= 1e-6 * max(1, on_the_way) * x.abs().max()


def test_logabsdet_is_that_of_the_jacobian(transform, dim):
    x = rows(2, dim)
    for direction in (transform, transform.inverse):
        jacobian = vmap(jacrev(lambda row, direction=direction: direction(row[None])[0][0]))(x)
        torch.testing.assert_close(direction(x)[1], torch.linalg.slogdet(jacobian).logabsdet, **EXACT)


@pytest.mark.parametrize("n", [0, 1, 5])
def test_there_is_a_log_determinant_a_row_both_ways_and_with_a_context(transform, dim, n):
    x = rows(n, dim)
    for direction in (transform, transform.inverse):
        for context in ((), (None,), (torch.zeros(n, 2),)):
            outputs, logabsdet = direction(x, *context)
            assert outputs.shape == x.shape
            assert logabsdet.shape == (n,)
            assert logabsdet.dtype == x.dtype


def test_the_smallest_form_is_the_same_number(transform, dim):
    x = rows(5, dim)
    if not isinstance(transform, AbstractPart):  # a whole flow: its chain
        transform = transform.flow
    for direction in (transform, transform.inverse):
        outputs, logabsdet = direction(x)
        again, smallest = direction(x, smallest=True)
        assert torch.equal(again, outputs)
        assert torch.equal(of_rows(smallest, x), logabsdet)


def test_it_passes_the_checks_of_nflows_own_tests_among_nflows_own_parts(transform, dim):
    # Source: bayesiains/nflows tests/transforms/transform_test.py, assert_forward_inverse_are_consistent.
    sigmoid = Sigmoid()
    mixed = CompositeTransform([transform, sigmoid, ReversePermutation(dim), InverseTransform(sigmoid)])
    x = rows(9, dim)
    identity = CompositeTransform([InverseTransform(mixed), mixed])
    outputs, logabsdet = identity(mixed(x)[0])
    torch.testing.assert_close(outputs, mixed(x)[0], rtol=0, atol=1e-6)
    torch.testing.assert_close(logabsdet, torch.zeros(9, dtype=x.dtype), rtol=0, atol=1e-6)
    torch.testing.assert_close(mixed(x)[1], transform(x)[1], rtol=0, atol=1e-6)


def test_a_chain_gives_nflows_own_parts_their_context():
    context = rows(4, 3)
    conditional = MaskedAffineAutoregressiveTransform(6, 8, context_features=3).double()
    inner = Split(ConditionalShift(), 3, factored_first=False)
    chain = Chain({"ours": ActNorm(6).double(), "theirs": conditional, "split": inner})
    x = rows(4, 6)
    z, logabsdet = chain(x, context)
    assert torch.equal(logabsdet, conditional(x, context)[1])
    assert not torch.equal(z, chain(x, context + 1)[0])
    torch.testing.assert_close(chain.inverse(z, context)[0], x, rtol=0, atol=1e-6)


def test_rows_do_not_see_each_other(transform, dim):
    x = rows(5, dim)
    one_by_one = torch.cat([transform(row[None])[0] for row in x])
    torch.testing.assert_close(transform(x)[0], one_by_one, **EXACT)


def test_a_state_dict_is_all_there_is_to_a_transform(transform, dim, request):
    name = request.node.callspec.params["transform"]
    again = TRANSFORMS[name](dim).double()
    again.load_state_dict(transform.state_dict())
    assert torch.equal(again(rows(4, dim))[0], transform(rows(4, dim))[0])


@pytest.mark.parametrize("name", IDENTITY_AT_START)
def test_it_starts_as_the_identity_where_claimed(name, dim):
    x = rows(4, dim, torch.float32)
    z, logabsdet = TRANSFORMS[name](dim)(x)
    assert torch.equal(z, x)
    assert torch.equal(logabsdet, torch.zeros(4))


def test_lu_starts_as_its_permutation(dim):
    linear, order = MIXINGS["lu"](dim, seeded())
    x = rows(4, dim, torch.float32)
    assert torch.equal(linear(x)[0], x[:, order])


def test_lu_rotation_starts_as_a_rotation(dim):
    weight = MIXINGS["lu-rotation"](dim, seeded())[0](torch.eye(dim))[0]
    torch.testing.assert_close(weight @ weight.T, torch.eye(dim), rtol=0, atol=1e-5)


def test_in_an_odd_dimension_the_half_that_stays_has_one_more():
    coupling, x = pushed(AdditiveCoupling(5, network())).double(), rows(4, 5)
    assert torch.equal(coupling(x)[0][:, :3], x[:, :3])


@pytest.mark.parametrize("name", ["additive", "random", "reversal"])
def test_what_keeps_volume_costs_a_chain_no_tensor(name, dim):
    assert isinstance(TRANSFORMS[name](dim)(rows(4, dim, torch.float32), smallest=True)[1], float)


# ActNorm and its start


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_initialize_gives_mean_zero_and_variance_one(factor):
    actnorm = ActNorm(4, factor, start="data")
    x = 5 + 3 * rows(50, 4, torch.float32)
    initialize(actnorm, x)
    z = actnorm(x)[0]
    torch.testing.assert_close(z.mean(0), torch.zeros(4), rtol=0, atol=1e-5)
    torch.testing.assert_close(z.square().mean(0), torch.ones(4), rtol=0, atol=1e-5)


def test_initialize_reaches_every_actnorm_also_inside_the_networks():
    flow = build_glow(6, GlowConfig(hidden=4, network="conv-stack", initialization="data"))
    initialize(flow, rows(20, 6))
    waiting = [part for part in flow.modules() if isinstance(part, ActNorm) and not part.initialized]
    assert waiting == []


def test_initialize_starts_each_actnorm_from_what_reaches_it():
    chain = Chain(
        {"first": ActNorm(3, start="data"), "mix": mixing("lu-rotation")(3), "second": ActNorm(3, start="data")}
    )
    x = rows(40, 3, torch.float32) * torch.tensor([1.0, 10.0, 0.1])
    initialize(chain, x)
    torch.testing.assert_close(chain(x)[0].square().mean(0), torch.ones(3), rtol=0, atol=1e-4)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e4])
def test_a_constant_coordinate_is_centered_and_left_unscaled(value):
    actnorm, x = ActNorm(3, start="data"), rows(50, 3, torch.float32)
    x[:, 1] = value
    initialize(actnorm, x)
    z, logabsdet = actnorm(x)
    assert logabsdet.isfinite().all()
    assert actnorm.log_scale[1].item() == 0.0
    torch.testing.assert_close(z[:, 1], torch.zeros(50), rtol=0, atol=1e-3)


def test_one_row_is_not_enough_to_start(refusal):
    assert refusal(lambda: initialize(ActNorm(3, start="data"), rows(1, 3))) == (
        "A flow starts from at least 2 rows, got 1. Give it more sentences."
    )


def test_a_row_that_is_not_finite_cannot_start_a_flow(refusal):
    x = rows(5, 3)
    x[3, 1] = float("nan")
    assert refusal(lambda: initialize(ActNorm(3, start="data"), x)) == (
        "A flow starts from finite rows, but row 3 holds a NaN or infinity. Leave it out."
    )


def test_a_flow_is_started_from_data_once(refusal):
    actnorm = ActNorm(3, start="data")
    initialize(actnorm, rows(5, 3))
    assert refusal(lambda: initialize(actnorm, rows(5, 3)), error=UsageError) == (
        "This flow was started from data before, and that is done once. Build a new one."
    )


def test_a_failed_start_leaves_the_flow_waiting():
    flow = build_glow(4, GlowConfig(hidden=4, initialization="data"))
    with pytest.raises(DataError):
        initialize(flow, rows(1, 4))
    initialize(flow, rows(5, 4))


def test_a_forward_pass_never_starts_a_flow():
    actnorm = ActNorm(3, start="data").train()
    x = 5 + rows(9, 3, torch.float32)
    assert torch.equal(actnorm(x)[0], x)
    assert not actnorm.initialized


@pytest.mark.parametrize("start", ["identity", "glorot"])
def test_a_start_that_needs_no_data_is_left_alone(start):
    actnorm = ActNorm(3, start=start, generator=seeded())
    before = actnorm.shift.clone()
    initialize(actnorm, 5 + rows(9, 3))
    assert torch.equal(actnorm.shift, before)


def test_the_glorot_start_has_the_spread_of_the_released_code():
    actnorm = ActNorm(768, start="glorot", generator=seeded())
    bound = (6 / 769) ** 0.5
    assert actnorm.log_scale.abs().max() <= bound
    assert actnorm.log_scale.std().item() == pytest.approx(bound / 3**0.5, rel=0.1)


def test_half_precision_rows_can_start_a_flow():
    actnorm = ActNorm(3, start="data")
    initialize(actnorm, rows(50, 3, torch.float16))
    assert actnorm.shift.dtype == torch.float32


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("coupling", "cubic", "Unknown coupling 'cubic'. Known: additive, affine."),
        ("activation", "gelu", "Unknown activation 'gelu'. Known: relu, gatu. Did you mean relu?"),
        ("permutation", "shuffle", "Unknown permutation 'shuffle'. Known: reversal, random, lu, lu-rotation."),
        ("network", "cnn", "Unknown network 'cnn'. Known: conv-stack, mlp."),
        ("initialization", "zero", "Unknown initialization 'zero'. Known: identity, glorot, data."),
    ],
)
def test_an_unknown_name_lists_the_known_ones(field, value, message, refusal):
    assert refusal(lambda: build_glow(4, GlowConfig(**{field: value})), error=UnknownNameError) == (message)

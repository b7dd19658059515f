import pytest
import torch
from torch.nn.functional import pad
from torch.testing import assert_close

from bertflow.encoder.pooling import (
    COUNTED,
    POOLINGS,
    TEMPLATED,
    TOKEN_REDUCTIONS,
    Pooling,
    TokenViews,
    parse_pooling,
    pool,
    uncalibrated,
)
from bertflow.errors import UnknownNameError, UsageError

BLOCKS = 6
MASK = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0]], dtype=torch.bool)
SPECIAL = torch.tensor([[1, 0, 0, 1, 0, 0], [1, 0, 0, 0, 0, 1], [1, 1, 0, 0, 0, 0]], dtype=torch.bool)
ROWS = [*(name for name in POOLINGS if name != "pooler"), *(f"{tokens}(1,3)" for tokens in TOKEN_REDUCTIONS)]
ROWS += ["sum(2,4)", "concat(0,3)", "concat-sif(0,3)", "sum-cls(5)"]


def views(mask=MASK, special=SPECIAL):
    content = mask & ~special
    content = torch.where(content.any(1, keepdim=True), content, mask)  # a sentence of special tokens only
    return TokenViews(mask, content, {name: content * torch.rand(mask.shape) for name in COUNTED}, mask_at=-2)


def states(tokens=6, dim=4):
    return [torch.randn(3, tokens, dim) for _ in range(BLOCKS + 1)]


def read(layers, spelling, seen):
    pooling = parse_pooling(spelling)
    return pool([layers[k] for k in pooling.resolve(BLOCKS)], seen, pooling)


LEVELS = {
    "mean": 6,
    "second-to-last": 5,
    "last-2-avg": 5.5,
    "first-last-avg": 3.5,
    "emb-last-avg": 3,
    "sum-last-4": 18,
    "mean(1,2)": 1.5,
    "cls(3)": 3,
    "sif(0)": 0,
    "content(1,-1)": 3.5,
    "sum(1,2,3)": 6,
    "sum-max(-7,-6)": 1,
}


@pytest.mark.parametrize(("spelling", "expected"), LEVELS.items())
def test_each_row_reads_its_layers(spelling, expected):
    # Layer k of six is filled with the number k, so the result says which layers were read.
    layers = [torch.full((3, 6, 4), float(k)) for k in range(BLOCKS + 1)]
    assert_close(read(layers, spelling, views()), torch.full((3, 4), float(expected)))


def test_concatenation_keeps_the_order_of_the_layers():
    layers = [torch.full((3, 6, 2), float(k)) for k in range(BLOCKS + 1)]
    assert read(layers, "concat(3,0)", views())[0].tolist() == [3, 3, 0, 0]


@pytest.mark.parametrize("spelling", ROWS)
def test_the_width_is_the_one_announced(spelling):
    assert read(states(), spelling, views()).shape == (3, parse_pooling(spelling).width(4))


@pytest.mark.parametrize("spelling", ROWS)
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("garbage", [1e30, torch.inf, torch.nan])
def test_padding_never_counts(spelling, side, garbage):
    layers, seen = states(), views()
    plain = read(layers, spelling, seen)
    more = (0, 3) if side == "right" else (3, 0)
    wide = [pad(layer.where(MASK.unsqueeze(-1), garbage), (0, 0, *more), value=garbage) for layer in layers]
    mask, content, *counted = (pad(view, more) for view in (seen.mask, seen.content, *seen.counted.values()))
    padded = TokenViews(mask, content, dict(zip(seen.counted, counted, strict=True)), seen.mask_at)
    assert_close(read(wide, spelling, padded), plain)


def slow_reduction(tokens, states, mask, special, weights):
    """One sentence at a time, token by token."""
    rows = []
    for sentence, used, extra, weight in zip(states, mask, special, weights, strict=True):
        there = [t for t in range(len(used)) if used[t]]
        text = [t for t in there if not extra[t]] or there
        if tokens in COUNTED:
            rows.append(sum(weight[t] * sentence[t] for t in text) / sum(weight[t] for t in text))
        elif tokens in ("mean", "content"):
            read = there if tokens == "mean" else text
            rows.append(sum(sentence[t] for t in read) / len(read))
        elif tokens == "max":
            rows.append(torch.stack([sentence[t] for t in there]).max(0).values)
        else:
            at = {"cls": 0, "last-token": -1, **dict.fromkeys(TEMPLATED, -2)}[tokens]
            rows.append(sentence[there[at]])
    return torch.stack(rows)


@pytest.mark.parametrize("tokens", TOKEN_REDUCTIONS)
def test_each_reduction_equals_a_loop_over_tokens(tokens):
    layers, seen = states(), views()
    expected = slow_reduction(tokens, layers[2], MASK, SPECIAL, seen.counted.get(tokens, MASK))
    assert_close(read(layers, f"{tokens}(2)", seen), expected)


def test_tokens_are_reduced_before_layers_are_joined():
    layers, seen = states(), views()
    maxima = [slow_reduction("max", layers[k], MASK, SPECIAL, MASK) for k in (1, 2)]
    assert_close(read(layers, "max(1,2)", seen), (maxima[0] + maxima[1]) / 2)


def test_half_precision_states_are_pooled_in_float32():
    # The sum of 4096 times 32 overflows float16.
    layer = torch.full((1, 4096, 2), 32.0, dtype=torch.float16)
    mask = torch.ones(1, 4096, dtype=torch.bool)
    found = pool([layer], TokenViews(mask, mask), POOLINGS["mean"])
    assert found.dtype == torch.float32
    assert found.tolist() == [[32, 32]]


@pytest.mark.parametrize("spelling", [*ROWS, "pooler"])
def test_every_spelling_comes_back(spelling):
    assert str(parse_pooling(spelling)) == spelling


SPELLINGS = {
    " mean( 1, 2 ) ": "mean(1,2)",
    "mean(-1)": "mean",
    "mean(1,-1)": "first-last-avg",
    "concat-mean(0,3)": "concat(0,3)",
    "sif(-1)": "sif",
}


@pytest.mark.parametrize(("spelling", "canonical"), SPELLINGS.items())
def test_equal_rows_have_one_spelling(spelling, canonical):
    assert str(parse_pooling(spelling)) == canonical


@pytest.mark.parametrize(
    "spelling",
    ["men", "", "(1)", "mean()", "mean(1,)", "mean(a)", "mean(1.5)", "pooler(3)", "avg(1)", "sumcls(1)", "concat"],
)
def test_an_unknown_pooling_lists_the_known_ones(refusal, spelling):
    message = (
        f"Unknown pooling {spelling!r}. Known: mean, content, sif, soft-sif, faint-sif, max, cls, pooler, last-token, "
        "mask, denoised-mask, second-to-last, last-2-avg, first-last-avg, emb-last-avg, sum-last-4, concat-last-4; or "
        "a row of your own such as mean(1,2), cls(3), sif(3), sum(3,4), concat(0,3), concat-sif(0,3), with any of "
        "mean, content, sif, soft-sif, faint-sif, max, cls, last-token, mask, denoised-mask."
    )
    meant = {"men": " Did you mean mean?", "concat": " Did you mean concat-last-4?"}.get(spelling, "")
    assert refusal(parse_pooling, spelling, error=UnknownNameError) == message + meant


@pytest.mark.parametrize("layer", [7, -8])
def test_a_layer_out_of_range_gives_the_range(refusal, layer):
    assert refusal(lambda: Pooling(layers=(layer,)).resolve(BLOCKS), error=UsageError) == (
        f"Pooling mean({layer}) reads layer {layer}, but the encoder has 6 blocks. "
        "Layers go from 0 (embedding layer) to 6, or from -1 (last) to -7."
    )


def test_sif_without_counts_says_what_to_do(refusal):
    said = refusal(pool, [torch.ones(3, 6, 4)], TokenViews(MASK, MASK), POOLINGS["sif"], error=UsageError)
    assert said == "The pooling sif needs token counts. Call count_tokens(sentences), or give token_counts."


def test_an_encoder_without_a_calibrator_is_called_by_what_it_does():
    found = [uncalibrated(pooling) for pooling in ("soft-sif(1,2)", "mean", None)]
    assert found == ["weights tokens, no calibrator", "no calibrator", "no calibrator"]

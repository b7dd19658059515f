"""Claims about words: static vectors by frequency, vectors in contexts, and what a masked head multiplies."""

import functools
from collections.abc import Mapping

import numpy as np
from claims_bench import GROUPS, IN_GROUP, Bench, Float64, certain, estimated
from claims_rules import Measured, Result, Untested
from claims_systems import PARTS
from numpy.typing import NDArray
from scipy.stats import t as student

from bertflow.geometry.cloud import nearest
from bertflow.geometry.contexts import LayerGeometry
from bertflow.geometry.frequency import LOOKED_AT, RANKS
from bertflow.geometry.masked import DotProductParts, MaskedWords, dot_product_parts, read_masked_words
from bertflow.training.batches import seeded_order
from bertflow.words.study import STATIC

NEIGHBORS = 5
CONTEXTS = 1_000
"""Sentences whose masked word is looked at."""
BELOW_ALL = Untested("an encoder has one matrix of word embeddings, below all its layers: see its inner layers")
ROYAL, LEVEL = ("king", "queen"), "mean(0)"


def words_by_frequency(bench: Bench, part: str) -> dict[str, NDArray[np.int64]]:
    """Rows of the vocabulary by the paper's bins of frequency rank."""
    words, _ = bench.vocabulary(PARTS[part].encoder)
    known = [row for row, word in enumerate(words) if bench.counts.get(word)]
    ranked = np.array(sorted(known, key=lambda row: -bench.counts[words[row]]))
    return {f"{first:,} to {last - 1:,}": ranked[first:last] for first, last in RANKS if len(ranked) > first}


def _lengths(bench: Bench, part: str) -> dict[str, Float64]:
    lengths = np.linalg.norm(bench.vocabulary(PARTS[part].encoder)[1].astype(np.float64), axis=1)
    return {name: lengths[rows] for name, rows in words_by_frequency(bench, part).items()}


def _neighborhood(bench: Bench, part: str, by: str) -> dict[str, Float64]:
    """Mean closeness of each of some words of a bin to its nearest, among all words."""
    x = bench.vocabulary(PARTS[part].encoder)[1].astype(np.float64)
    found = {}
    for name, rows in words_by_frequency(bench, part).items():
        chosen = rows[np.sort(seeded_order(len(rows), bench.seed)[:LOOKED_AT])]
        near = nearest(x, NEIGHBORS, by, chosen)[1]
        found[name] = (-near if by == "euclidean" else near).mean(1)
    return found


def _smallest_step(bench: Bench, bins: Mapping[str, Float64]) -> Measured:
    """How much the mean rises from bin to bin, at least."""
    drawn = np.stack([bench.means(name, values) for name, values in bins.items()])
    means = {name: values.mean() for name, values in bins.items()}
    n = sum(map(len, bins.values()))
    return estimated(np.diff(list(means.values())).min(), np.diff(drawn, axis=0).min(0), n, "words", means)


def frequent_words_nearer(bench: Bench, part: str) -> Result:
    """Mean length of all other words minus that of the most frequent."""
    if part == "last":
        return BELOW_ALL
    frequent, *others = _lengths(bench, part).values()
    rest = np.concatenate(others)
    drawn = bench.means("rest", rest) - bench.means("frequent", frequent)
    numbers = {"most frequent": frequent.mean(), "others": rest.mean()}
    return estimated(rest.mean() - frequent.mean(), drawn, len(rest) + len(frequent), "words", numbers)


def rarer_words_farther(bench: Bench, part: str) -> Result:
    """Length by frequency."""
    return BELOW_ALL if part == "last" else _smallest_step(bench, _lengths(bench, part))


def rarer_words_sparser(bench: Bench, part: str) -> Result:
    """Distance to the nearest by frequency."""
    return BELOW_ALL if part == "last" else _smallest_step(bench, _neighborhood(bench, part, "euclidean"))


def rarer_words_larger_products(bench: Bench, part: str) -> Result:
    """Largest dot products by frequency."""
    return BELOW_ALL if part == "last" else _smallest_step(bench, _neighborhood(bench, part, "dot"))


def _over_groups(bench: Bench, part: str, what: str, less: str | None = None) -> Float64:
    """A measure of the subject's layers in each group (groups, layers), minus its baseline."""
    layers = PARTS[part].layers

    def value(layer: LayerGeometry) -> float:
        return getattr(layer, what) - (getattr(layer, less) if less else 0.0)

    return np.array([[value(group[layer]) for layer in layers] for group in bench.geometry(PARTS[part].encoder)])


def _of_groups(by_group: Float64, numbers: Mapping[str, float]) -> Measured:
    """The mean over groups with Student's interval."""
    half = student.ppf(0.975, GROUPS - 1) * by_group.std(ddof=1) / np.sqrt(GROUPS)
    mean = float(by_group.mean())
    kept = {name: round(float(value), 4) for name, value in numbers.items()}
    return Measured(mean, mean - float(half), mean + float(half), GROUPS * IN_GROUP, "sentences", kept)


def _by_layer(part: str, found: Float64) -> dict[str, float]:
    return {f"layer {layer}": value for layer, value in zip(PARTS[part].layers, found.mean(0), strict=True)}


def cone_narrows(bench: Bench, part: str) -> Measured:
    """How much the mean cosine of different words rises from layer to layer, at least."""
    found = _over_groups(bench, part, "baseline")
    return _of_groups(np.diff(found, axis=1).min(1), _by_layer(part, found))


def self_similarity_falls(bench: Bench, part: str) -> Measured:
    """Self-similarity over its baseline, first layer minus last."""
    found = _over_groups(bench, part, "self_similarity", "baseline")
    return _of_groups(found[:, 0] - found[:, -1], _by_layer(part, found))


def sentences_draw_together(bench: Bench, part: str) -> Measured:
    """Intra-sentence similarity over the baseline, last layer minus first."""
    found = _over_groups(bench, part, "intra_sentence", "baseline")
    return _of_groups(found[:, -1] - found[:, 0], _by_layer(part, found))


def one_vector_explains_little(bench: Bench, part: str) -> Measured:
    """MEV over its baseline in the uppermost layer."""
    found = _over_groups(bench, part, "mev", "mev_baseline")
    return _of_groups(found[:, -1], _by_layer(part, found))


def _contextual_layers(part: str) -> list[str]:
    return [f"mean({layer})" for layer in PARTS[part].layers if layer]


def _at_every_layer(found: Mapping[str, float]) -> Measured:
    """The smallest of the differences of the layers; one study, so no sample."""
    return certain(min(found.values()), len(found), "layers", found)


def offsets_point_one_way(bench: Bench, part: str) -> Result:
    """Cosine of king - man and queen - woman, static."""
    if part == "last":
        return BELOW_ALL
    result = bench.study(PARTS[part].encoder, "king-queen")
    static = result.panels[LEVEL][STATIC].offsets[0]
    assert static.cosine is not None, "different words have different vectors"
    court = {f"court, {name}": result.panels[name]["court"].offsets[0].cosine for name in _contextual_layers(part)}
    known = {name: cosine for name, cosine in court.items() if cosine is not None}
    return certain(static.cosine, 1, "analogy", {"static": static.cosine, **known})


def offsets_equally_long(bench: Bench, part: str) -> Result:
    """Ratio of the lengths of king - man and queen - woman, static."""
    if part == "last":
        return BELOW_ALL
    static = bench.study(PARTS[part].encoder, "king-queen").panels[LEVEL][STATIC].offsets[0]
    assert static.ratio is not None, "different words have different vectors"
    return certain(static.ratio, 1, "analogy", dict(zip(static.of, static.lengths, strict=True)))


def _band_against(bench: Bench, part: str, context: str) -> Measured:
    panels = bench.study(PARTS[part].encoder, "king-queen").panels
    return _at_every_layer(
        {
            name: panels[name]["band"].of("cosine", ROYAL) - panels[name][context].of("cosine", ROYAL)
            for name in _contextual_layers(part)
        }
    )


def band_against_static(bench: Bench, part: str) -> Measured:
    """Cosine of king and queen in the band context minus that of their static vectors."""
    return _band_against(bench, part, STATIC)


def band_against_court(bench: Bench, part: str) -> Measured:
    """Cosine of king and queen in the band context minus that at the court."""
    return _band_against(bench, part, "court")


def _banks(bench: Bench, part: str, study: str, context: str) -> Measured:
    panels = bench.study(PARTS[part].encoder, study).panels
    return _at_every_layer(
        {
            name: panels[name][context].of("cosine", ("bank robber", "bank vault"))
            - panels[name][context].of("cosine", ("bank robber", "river bank"))
            for name in _contextual_layers(part)
        }
    )


def banks_in_one_sentence(bench: Bench, part: str) -> Measured:
    """Bank robber with bank vault minus bank robber with river bank."""
    return _banks(bench, part, "bank", "one sentence")


def banks_apart(bench: Bench, part: str) -> Measured:
    """The same in three sentences."""
    return _banks(bench, part, "bank-separate", "apart")


def banks_in_one_place(bench: Bench, part: str) -> Measured:
    """The same in three sentences that have the word in the same place."""
    return _banks(bench, part, "bank-separate", "same place")


@functools.cache
def _products(bench: Bench) -> tuple[DotProductParts, list[DotProductParts]]:
    """What MLM4's dot products are made of, over all contexts and over each of some groups of them."""
    chosen = bench.rows("masked", len(bench.material.sentences), CONTEXTS)
    sentences = [bench.material.sentences[row] for row in chosen]
    masked = read_masked_words(bench.folders["mlm4"], sentences, seed=bench.seed)
    groups = [
        dot_product_parts(MaskedWords(contexts, masked.vectors, masked.bias, masked.words), {})
        for contexts in np.array_split(masked.contexts, GROUPS)
    ]
    return dot_product_parts(masked, bench.counts), groups


def _part_of_product(bench: Bench, part: str, what: str) -> Result:
    if part != "mlm4":
        return Untested("the encoder has no masked-language-model head")
    whole, groups = _products(bench)
    half = student.ppf(0.975, GROUPS - 1) * np.std([getattr(one, what) for one in groups], ddof=1) / np.sqrt(GROUPS)
    value = getattr(whole, what)
    numbers = {"PMI": whole.pmi, "log frequency": whole.log_frequency, "bias": whole.bias}
    if whole.corpus is not None:
        numbers["model's log frequency against counts, Pearson"] = whole.corpus
    return Measured(value, value - float(half), value + float(half), whole.contexts, "contexts", numbers)


def frequency_in_products(bench: Bench, part: str) -> Result:
    """Share of the context-word dot product's variance that is log frequency."""
    return _part_of_product(bench, part, "log_frequency")


def meaning_in_products(bench: Bench, part: str) -> Result:
    """Share that is PMI."""
    return _part_of_product(bench, part, "pmi")

"""Sections on the space as a whole: its measures, its spectrum, its hubs; its layers; its latent; its training."""

from collections.abc import Mapping

import numpy as np

from bertflow.geometry.material import Material
from bertflow.geometry.measures import MEASURES, measured, of_gaussian
from bertflow.geometry.neighbors import hubness
from bertflow.geometry.report import Grid, Section, number
from bertflow.geometry.spectrum import participation, singular_spectrum

NULL = 1e-5
"""Singular values below this share of the largest are not drawn."""

DEPARTURES: Mapping[str, str] = {
    "mean": "means",
    "covariance": "covariances",
    "sampling": "of them, by chance",
    "variance": "variances",
    "skewness": "skewness",
    "kurtosis": "excess kurtosis",
    "norm_ks": "lengths (KS)",
}
"""Departures of a latent from N(0, I), 0 for none, and their column titles."""


def listed(values: Mapping[str, float], decimals: int = 2, unit: str = "") -> str:
    """Values of the systems in a sentence: "0.60 raw, 0.01 whitening"."""
    return ", ".join(f"{number(value, decimals)}{unit} {name}" for name, value in values.items())


def measures(material: Material) -> Section:
    """Every measure, by system, beside that of a Gaussian of the last system's width."""
    found = {name: measured(cloud) for name, cloud in material.clouds.items()}
    last = list(material.clouds.values())[-1]
    gaussian = of_gaussian(last.n, last.dim)
    lines = tuple(
        (row.title, *(number(found[name][key], 3) for name in found), number(gaussian[key], 3), row.says)
        for key, row in MEASURES.items()
    )
    return Section(
        f"Two sentences that have nothing to do with each other have a mean cosine of "
        f"{listed({name: row['mean_cosine'] for name, row in found.items()})}; the column Gaussian is what {last.n:,} "
        f"rows of an isotropic Gaussian of {last.dim} dimensions would have, or nearly.",
        {"values": found, "gaussian": gaussian, "n": last.n},
        grid=Grid(("measure", *found, "Gaussian", "what it says"), lines, frozenset({len(found) + 2})),
    )


def spectrum(material: Material) -> Section:
    """Singular values of the centered rows, over the largest."""
    spectra = {name: singular_spectrum(cloud.moments) for name, cloud in material.clouds.items()}
    ratios = {name: participation(cloud) for name, cloud in material.clouds.items()}
    drawn = {name: values[values > NULL] for name, values in spectra.items()}
    return Section(
        "The flatter a line, the more directions carry the variance; it is spread over as many as "
        f"{listed(ratios, 0)} (participation ratio).",
        {"participation_ratio": ratios, "singular_values": {name: row.tolist() for name, row in spectra.items()}},
        lambda plots: plots.curves(
            {name: (np.arange(1.0, len(values) + 1), values) for name, values in drawn.items()},
            plots.Axis("direction"),
            plots.Axis("singular value over the largest", log=True),
        ),
        f"Singular values by direction on a logarithmic scale, a line for each of {', '.join(spectra)}.",
    )


def hubs(material: Material) -> Section:
    """How often each sentence is among the nearest of others."""
    found = {name: hubness(cloud) for name, cloud in material.clouds.items()}
    first = next(iter(found.values()))
    steps = {
        name: (np.arange(1.0, row.most + 1), np.array([(row.counts >= at).mean() for at in range(1, row.most + 1)]))
        for name, row in found.items()
    }
    return Section(
        f"A line that reaches far to the right has hubs, sentences that are neighbors of very many: the largest is "
        f"among the {first.k} nearest of {', '.join(f'{row.most} ({name})' for name, row in found.items())} of "
        f"{first.n:,} sentences, and the share that is nobody's neighbor is "
        f"{listed({name: row.orphans for name, row in found.items()}, 3)}.",
        {
            name: {
                "k": row.k,
                "n": row.n,
                "skewness": row.skewness,
                "orphans": row.orphans,
                "hub_share": row.hub_share,
                "robin_hood": row.robin_hood,
                "most": row.most,
            }
            for name, row in found.items()
        },
        lambda plots: plots.curves(
            steps,
            plots.Axis(f"at least so often among the {first.k} nearest of others", log=True),
            plots.Axis("share of sentences", log=True),
        ),
        "Share of the sentences that are at least so often among the nearest of others, on logarithmic scales, a line "
        f"for each of {', '.join(found)}.",
    )


def layers(material: Material) -> Section:
    """Anisotropy and contextuality of every layer."""
    rows = material.layers
    assert rows is not None, "the section needs them"
    most, last = max(rows, key=lambda row: row.baseline), rows[-1]
    lines = {
        "different words (baseline)": [row.baseline for row in rows],
        "one word in different sentences": [row.self_similarity for row in rows],
        "a word and its sentence": [row.intra_sentence for row in rows],
        "MEV": [row.mev for row in rows],
        "MEV, baseline": [row.mev_baseline for row in rows],
    }
    return Section(
        f"Where the baseline is high the layer is anisotropic: it is highest, {most.baseline:.2f}, in layer "
        f"{most.layer}; what counts is by how much a word's similarity with itself exceeds it, in layer {last.layer} "
        f"by {last.self_similarity - last.baseline:.2f} ({last.words} words in {last.sentences:,} sentences).",
        {"layers": [vars(row) for row in rows]},
        lambda plots: plots.curves(
            {name: (np.array([float(row.layer) for row in rows]), np.array(values)) for name, values in lines.items()},
            plots.Axis("layer (0: embeddings)", ticks=tuple(str(row.layer) for row in rows)),
            plots.Axis("mean cosine, or share"),
        ),
        "Mean cosines of word vectors by layer: of different words, of one word in different sentences, of words with "
        "their sentence's mean; and MEV with its baseline.",
    )


def latent(material: Material) -> Section:
    """Quantiles of the squared length of the latent, and the departures of its moments."""
    found = material.latents
    assert found is not None, "the section needs them"
    header = ("system", *DEPARTURES.values())
    lines = tuple((name, *(f"{getattr(row.departures, key):.3f}" for key in DEPARTURES)) for name, row in found.items())
    spreads = {name: row.spread for name, row in found.items()}
    return Section(
        "For a Gaussian latent the points lie on the grey line; the middle 90 % of the squared lengths are "
        f"{listed(spreads, 1)} times as wide as those of chi-square.",
        {
            name: {
                "spread": row.spread,
                "expected": row.expected.tolist(),
                "observed": row.observed.tolist(),
                "departures": vars(row.departures),
            }
            for name, row in found.items()
        },
        lambda plots: plots.curves(
            {name: (row.expected, row.observed) for name, row in found.items()},
            plots.Axis("quantile of chi-square, over its degrees of freedom"),
            plots.Axis("of the squared length, over dim"),
            reference="a Gaussian",
            order=tuple(material.embeddings),
        ),
        f"Quantiles of the squared length of the latent against those of chi-square, for {', '.join(found)}.",
        Grid(header, lines),
    )


def training(material: Material) -> Section:
    """Bits per dimension over the steps of the training."""
    history = material.history
    assert history is not None, "the section needs it"
    ends = {name: (float(bits[0]), float(bits[-1]), float(bits.min())) for name, (_, bits) in history.items()}
    told = "; ".join(f"{name} from {first:.3f} to {last:.3f}" for name, (first, last, _) in ends.items())
    return Section(
        f"Falling lines are a better density: bits per dimension go, {told}. A better density is not yet a better "
        "similarity.",
        {name: {"first": first, "last": last, "least": least} for name, (first, last, least) in ends.items()},
        lambda plots: plots.curves(
            dict(history), plots.Axis("step of the optimizer"), plots.Axis("bits per dimension")
        ),
        f"Bits per dimension over the steps of the training: {', '.join(history)}.",
    )


def masked_words(material: Material) -> Section:
    """The split of the context-word dot product."""
    parts = material.masked
    assert parts is not None, "the section needs it"
    corpus = (
        "" if parts.corpus is None else f"; the model's log frequency and that of the list correlate {parts.corpus:.2f}"
    )
    lines = (
        ("PMI: what the context says about the word", f"{100 * parts.pmi:.1f}"),
        ("log frequency: how common the word is", f"{100 * parts.log_frequency:.1f}"),
        ("less the head's own bias", f"{100 * parts.bias:.1f}"),
    )
    return Section(
        "The theory behind BERT-flow: a masked language model's dot product of context and word holds log frequency "
        f"beside meaning; here {100 * parts.log_frequency:.0f} % of its variance over {parts.words:,} words is log "
        f"frequency and {100 * parts.pmi:.0f} % PMI ({parts.contexts} contexts{corpus}).",
        vars(parts),
        grid=Grid(("part", "% of the variance"), lines),
    )

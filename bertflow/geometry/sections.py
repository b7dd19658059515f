"""The sections of a report: what each needs, and the function that makes it from the material.

Whatever a section needs and the material lacks, or cannot give, is listed as left out, with the reason.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bertflow.errors import DataError
from bertflow.geometry.frequency_sections import frequency_plane, sentences_by_frequency, words_by_frequency
from bertflow.geometry.material import Material
from bertflow.geometry.pair_sections import cosine_histograms, edit_distances, pair_measures, score_curve, scores
from bertflow.geometry.report import Section
from bertflow.geometry.space_sections import hubs, latent, layers, masked_words, measures, spectrum, training


@dataclass(frozen=True)
class Row:
    """A section: which parts of the material it cannot do without, and what makes it."""

    make: Callable[[Material], Section]
    needs: tuple[str, ...] = ()


SECTIONS: Mapping[str, Row] = {
    "Measures": Row(measures),
    "Spectrum": Row(spectrum),
    "Cosines": Row(cosine_histograms),
    "Paraphrases": Row(pair_measures, ("pairs",)),
    "Word frequency in the plane": Row(frequency_plane),
    "Sentences by word frequency": Row(sentences_by_frequency),
    "Words by frequency": Row(words_by_frequency, ("words",)),
    "Layers": Row(layers, ("layers",)),
    "Hubs": Row(hubs),
    "Edit distance": Row(edit_distances, ("pairs",)),
    "What a score means": Row(score_curve, ("pairs",)),
    "Scores": Row(scores, ("scores",)),
    "Latent": Row(latent, ("latents",)),
    "Training": Row(training, ("history",)),
    "Masked words": Row(masked_words, ("masked",)),
}
"""By title, in the order of the report."""


def build_sections(material: Material) -> tuple[dict[str, Section], dict[str, str]]:
    """All sections that the material allows, and why the others are left out; both by title."""
    made, left_out = {}, {}
    for title, row in SECTIONS.items():
        missing = [need for need in row.needs if getattr(material, need) is None]
        if missing:
            left_out[title] = material.reasons[missing[0]]
            continue
        try:
            made[title] = row.make(material)
        except DataError as error:
            left_out[title] = str(error)
    return made, left_out

import html.parser
import json
import re
import subprocess
import sys

import numpy as np
import pytest

import bertflow
from bertflow.data.pairs import Pairs
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import DataError
from bertflow.geometry.contexts import LayerGeometry
from bertflow.geometry.frequency import Bin
from bertflow.geometry.masked import DotProductParts
from bertflow.geometry.pairs import (
    PairCosines,
    PairScores,
    calibration_curve,
    crossing,
    overlap,
    scores_of_pairs,
    show_scores,
)
from bertflow.geometry.sections import SECTIONS, VERDICTS, Material, make_report, verdict_of
from bertflow.policy import content_hash

WORDS = ["the", "dog", "cat", "bird", "sings", "sleeps", "garden", "red", "big", "eats"]
NAMES = ("raw", "<whitening>")
VOID = {"meta", "img", "link", "br"}
PARTS = {
    "pairs.cosines_of_pairs": ("Cosines", "Paraphrases", "Edit distance", "What a score means"),
    "pairs.scores_of_pairs": ("Scores",),
    "frequency.words_by_rank": ("Words by frequency",),
    "contexts.contextuality": ("Layers",),
    "masked.dot_product_parts": ("Masked words",),
    "fitted.length_quantiles": ("Latent",),
    "fitted.read_history": ("Training",),
}
"""What may fail, and the sections that need it."""


class Encoder:
    """A system that is described, and encodes nothing."""

    def __init__(self, calibrator=None):
        self.calibrator = calibrator

    def describe(self):
        return {"encoder": "made up", "pooling": "mean"}

    def fitted_hashes(self):
        return None


def material(**changes):
    """Rows and sentences, made up; the name of a system would break a page that does not escape."""
    rng = np.random.default_rng(0)
    raw = rng.normal(size=(40, 6)) * [3, 2, 1, 1, 1, 1] + 4
    given = {
        "systems": dict(zip(NAMES, (Encoder(), Encoder(bertflow.Whitening())), strict=True)),
        "sentences": tuple(" ".join(rng.choice(WORDS, 5)) + f" {at}" for at in range(40)),
        "embeddings": dict(zip(NAMES, (raw, rng.normal(size=(40, 6))), strict=True)),
        "counts": {word: 50 - at for at, word in enumerate(WORDS)},
        "given_pairs": "some",
        "recipe": {"model": "made up"},
    }
    return Material(**{**given, **changes})


@pytest.fixture(scope="module", autouse=True)
def _made_up():
    """What is read from encoders and runs is made up."""
    rng = np.random.default_rng(0)
    cosines = {name: rng.uniform(low, 1, 30) for name, low in zip(NAMES, (0.5, -1), strict=True)}
    edits = np.arange(30.0) % 7
    found = {
        "pairs.cosines_of_pairs": PairCosines("news", cosines, np.arange(30) > 15, "human score of at least 4", edits),
        "pairs.scores_of_pairs": PairScores(
            "Spearman on news", dict.fromkeys(NAMES, (0.5, 0.4, 0.6)), {NAMES[1]: False}
        ),
        "sections.read_static_words": (WORDS, rng.normal(size=(10, 6))),
        "frequency.words_by_rank": [
            Bin(f"{at} to {at + 1}", 9, -at, 1 + at, {3: 1, 5: 1, 7: 1}, {3: 2, 5: 2, 7: 2}) for at in range(4)
        ],
        "contexts.read_token_states": (),
        "contexts.contextuality": [LayerGeometry(at, 0.1 * at, 0.9, 0.5, 0.8, 0.3, 7, 20) for at in range(3)],
        "masked.read_masked_words": None,
        "masked.dot_product_parts": DotProductParts(0.3, 0.9, -0.2, 0.7, 20, 100),
        "fitted.read_history": {"held out": (np.array([1.0, 2.0]), np.array([1.5, 1.2]))},
    }
    with pytest.MonkeyPatch.context() as patch:
        for place, value in found.items():
            patch.setattr(f"bertflow.geometry.{place}", lambda *_, value=value, **__: value)
        yield


def report(**changes):
    return make_report("A & B", material(**changes), {"text": "1 < 2"})


class Page(html.parser.HTMLParser):
    """What stands in a page; refuses tags that are not closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text = [], [], []
        self.source = text
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def of(self, name):
        """The attributes of all tags of one name."""
        return [attributes for tag, attributes in self.tags if tag == name]


@pytest.fixture(scope="module")
def page():
    pytest.importorskip("matplotlib", reason="the plots extra is not installed")
    return Page(report().to_html())


def test_with_everything_given_every_section_is_made():
    made = report()
    assert list(made.sections) == list(SECTIONS)
    assert made.left_out == {}
    for section in made.sections.values():
        assert re.search(r"\d.*\.$", section.sees)
        assert section.numbers
    twin = json.loads(made.to_json())
    assert list(twin["sections"]) == sorted(SECTIONS)
    assert twin["sections"]["Measures"]["values"]["raw"]["mean_cosine"] > 0.5


@pytest.mark.parametrize("part", PARTS)
def test_a_section_without_its_part_is_left_out_with_the_reason(part, monkeypatch):
    def fails(*_, **__):
        raise DataError("no part & nothing else.")

    monkeypatch.setattr(f"bertflow.geometry.{part}", fails)
    found = report()
    assert found.left_out == dict.fromkeys(PARTS[part], "no part & nothing else.")
    assert list(found.sections) == [title for title in SECTIONS if title not in PARTS[part]]


def test_without_pairs_there_are_still_the_cosines_of_random_ones():
    found = report(given_pairs=None)
    assert list(found.left_out) == ["Paraphrases", "Edit distance", "What a score means", "Scores"]


def test_every_picture_has_an_alternative_text(page):
    sections = report().sections.values()
    texts = [image["alt"] for image in page.of("img")]
    assert texts == [part.alt for part in sections if part.draw]
    assert min(map(len, texts)) > 30


def test_the_page_needs_nothing_but_itself(page):
    assert all(image["src"].startswith("data:image/svg+xml;base64,") for image in page.of("img"))
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in page.tags}
    given = [one for _, attributes in page.tags for one in attributes.items()]
    assert not any(name.startswith("on") or name == "style" for name, _ in given)
    policy = [attributes["content"] for attributes in page.of("meta") if "http-equiv" in attributes]
    assert policy == [f"default-src 'none'; img-src data:; style-src {content_hash(page.source, 'style')}"]


def test_the_contents_lead_to_every_section(page):
    wanted = [link["href"] for link in page.of("a")]
    assert wanted == [f"#{section['id']}" for section in page.of("section")]
    assert len(wanted) == len(SECTIONS) + 1


def test_every_measure_is_explained_in_two_sentences():
    explained = {name: says for section in report().sections.values() for name, says in section.explained.items()}
    assert {"mean cosine", "alignment", "MEV", "kurtosis", "Spearman"} <= set(explained)
    assert {name for name, says in explained.items() if len(re.findall(r"[.](?= |$)", says)) != 2} == set()


def test_the_card_comes_first_with_three_numbers_before_and_after(page):
    text = "".join(page.text)
    verdict = "A narrow cone, but no calibration ranks the pairs of news better than chance can explain."
    assert text.index(verdict) < text.index("Contents") < text.index("IsoScore")
    made = make_report("T", material(), then="bertflow serve 'my run'")
    assert [line[0] for line in made.card.numbers.lines] == [
        "cosine of two unrelated sentences",
        "directions in use",
        "Spearman on news, x 100",
    ]
    assert made.card.numbers.header == ("", *NAMES, "wanted")
    assert next(iter(made.parts())) == verdict
    assert "Next <code>bertflow serve &#x27;my run&#x27;</code>" in made.to_html()
    assert json.loads(made.to_json())["card"]["numbers"]["directions in use"]["raw"].endswith(" of 6")
    assert make_report("T", material(), verdict="whiten").card.verdict == "whiten"


def test_without_pairs_the_card_counts_what_no_search_finds():
    card = report(given_pairs=None).card
    assert card.numbers.lines[2][0] == "sentences among the 10 nearest of none"
    assert card.verdict == "A narrow cone. Whether calibration ranks better, only pairs can say."


def test_without_a_cloud_that_can_be_measured_there_is_no_card(monkeypatch):
    def fails(*_):
        raise DataError("All 40 rows are equal.")

    monkeypatch.setattr("bertflow.geometry.sections.card_of", fails)
    found = report()
    assert found.card is None
    assert found.left_out == {"The card": "All 40 rows are equal."}
    assert Page(found.to_html())
    assert found.to_markdown().startswith("# A & B\n\n* ")


def scores(best, known):
    return PairScores(
        "hit@1 on faq", {"raw": (0.5, 0.4, 0.6), "flow": (0.1, 0, 0.2), "best": (best, 0, 1)}, {"best": known}
    )


@pytest.mark.parametrize(
    ("cosines", "given", "expected"),
    [
        ((0.9, 0, 0), scores(0.7, True), (True, "better")),
        ((0.1, 0, 0), scores(0.2, True), (False, "worse")),
        ((0.9, 0, 0), scores(0.7, False), (True, "level")),
        ((0.2, 0, 0), None, (False, "unknown")),
        ((0.9,), scores(0.7, True), (True, "alone")),
    ],
)
def test_the_verdict_follows_from_the_cone_and_from_what_the_best_system_gains(cosines, given, expected):
    found = verdict_of(dict(zip(("raw", "flow", "best"), cosines, strict=False)), given)
    assert found == VERDICTS[expected].format(best="best", pairs="faq")


def test_pairs_of_other_text_recommend_no_map_for_a_narrow_text():
    said = [verdict_of({"raw": 0.9, "flow": 0, "best": 0}, scores(best, True), "Narrow.") for best in (0.7, 0.2)]
    assert said == ["A narrow cone. Narrow.", VERDICTS[True, "worse"].format(pairs="faq")]


def test_words_in_common_stand_beside_the_hits_of_queries(tiny_bert):
    asked = Pairs("faq", ("the dog", "a cat", "it"), ("a dog", "the bird", "the cat"), kind="retrieval")
    found = scores_of_pairs({"raw": TransformerEncoder(tiny_bert, device="cpu")}, asked)
    assert found.bm25 == pytest.approx(1 / 3)  # dog alone is in its own text and in no other
    assert ", 33.3 bm25 (words in common)" in show_scores(found).sees


def test_samples_share_all_or_none_of_their_histograms():
    rng = np.random.default_rng(0)
    a = rng.normal(size=500)
    assert overlap(a, a) == pytest.approx(1)
    assert overlap(a, a + 100) == 0
    assert 0.5 < overlap(rng.normal(size=5000), rng.normal(0.5, size=5000)) < 0.9


def test_a_sentence_speaks_of_what_is_in_its_picture():
    alone, both = (report(given_pairs=pairs).sections["Cosines"].sees for pairs in (None, "some"))
    assert "hill" not in alone
    assert "The two hills of a panel have" in both
    never = report(given_pairs="some").sections["What a score means"].sees
    assert "none" not in never
    assert "raw lies beside it and <whitening> lies around it" in report().sections["Word frequency in the plane"].sees


def test_everything_is_escaped(page):
    assert "<whitening>" in "".join(page.text)
    assert not page.of("whitening")
    assert "A & B" in page.text
    assert "1 < 2" in page.text


def test_without_matplotlib_the_page_has_its_tables_and_one_note_with_the_pip_line():
    script = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from bertflow.geometry.report import *\n"
        "table = Table(('a', 'b'), (('1', 'x'),))\n"
        "part = GeometrySection('See 1.', {'a': 1}, lambda plots: plots.curves(), 'alt', table)\n"
        "print(GeometryReport('T', {}, {'S': part}, {'Training': 'no < history.'}).to_html())"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert found.stdout.count("pip install &#x27;bertflow[plots]&#x27;") == 1
    assert "<img" not in found.stdout
    assert '<td>1</td><td class="words">x</td>' in found.stdout
    assert "<li>Training: no &lt; history.</li>" in found.stdout


def test_the_calibration_curve_is_the_mean_of_each_bin(monkeypatch):
    monkeypatch.setattr("bertflow.geometry.pairs.BINS", 7)
    rng = np.random.default_rng(0)
    scores, target = rng.normal(size=100), rng.integers(0, 2, 100).astype(float)
    found = calibration_curve(scores, target)
    ranked = sorted(zip(scores, target, strict=True))
    sizes = [15, 15, 14, 14, 14, 14, 14]
    starts = np.cumsum([0, *sizes])
    slow = [np.mean(ranked[start : start + size], axis=0) for start, size in zip(starts, sizes, strict=False)]
    np.testing.assert_allclose(np.transpose(found), slow)


@pytest.mark.parametrize(
    ("meaning", "expected"), [([0.0, 0.4, 0.8], 1.25), ([0.0, 0.2, 0.4], None), ([0.4, 0.5, 0.3], 1.0)]
)
def test_the_score_to_decide_by_lies_where_the_curve_rises_through_one_half(meaning, expected):
    found = crossing(np.array([0.0, 1.0, 2.0]), np.array(meaning))
    assert found == (None if expected is None else pytest.approx(expected))

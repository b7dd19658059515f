"""The texts of the harm suite: the same for a seed, halves with nothing in common, queries in other words."""

import itertools
import re
from statistics import median

import pytest

from .conftest import FOLDER, imported

HALVES = ("choosing", "reporting", "confirming", "closing", "final")
SMALL = {("captions", "closing"): 250, ("tickets", "closing"): 700}
"""Texts of a size of their own."""
GENERATED = sorted(path.stem for path in (FOLDER / "harm_words").glob("*.toml"))
ROWS = sorted([*GENERATED, "catalogue-table"])
FUNCTIONAL = """
    about above across after again against ago all along although always amid among and another any anyone are
    around away back because been before behind below beneath beside between beyond both but came can cannot
    come comes could did does doing done down due during each every everything far few first five for four
    free from get gets give given gives goes going good had half has have her here his how inside into its
    itself keep keeps later let long made make many may moment more most much must near need needs never next
    nobody none not nothing now off old once one only other our out over own per please put said same see
    seven she should since six some somebody someone something such take taken takes taking ten than that the
    their them then there these they thing this those though three through thus time times today together too
    took twelve two under until upon use used was were what when where which while who why will with within
    without would yet you your new eight nine eleven like find look show shows start stop side part der die
    das den dem des ein eine einen einer eines und oder auf auch aus bei bis für gegen ins ist mit nach nicht
    sich sind über unter von vor wird werden wie wir zum zur sein hat haben zwei sieben unsere ihre wurde
    """
FUNCTION_WORDS = frozenset(FUNCTIONAL.split())


harm_texts = imported("harm_texts", "module")


@pytest.fixture(scope="module")
def drawn(harm_texts):
    return {(name, half): harm_texts.TEXTS[name](half, 0) for name in ROWS for half in HALVES}


def test_every_text_of_the_suite_is_there(harm_texts):
    real = {"broad", "docstrings", "packages", "commands", "messages"}
    assert set(harm_texts.TEXTS) == real | set(ROWS)
    assert harm_texts.HALVES == HALVES


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("half", HALVES)
def test_a_seed_gives_one_text(harm_texts, drawn, name, half):
    assert harm_texts.TEXTS[name](half, 0) == drawn[name, half]
    assert harm_texts.TEXTS[name](half, 1) != drawn[name, half]


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("half", HALVES)
def test_a_text_has_its_sizes_and_every_query_its_answer(drawn, name, half):
    text = drawn[name, half]
    small = SMALL.get((name, half))
    assert len(text.documents) == small if small else 1_500 <= len(text.documents) <= 3_000
    assert len(set(text.documents)) == len(text.documents)
    assert len(text.right) == len(text.queries) == len(set(text.queries))
    assert len(text.queries) == (0 if name in {"captions", "words"} else 700)
    assert len(text.pairs) == (800 if name in {"captions", "tickets"} else 0)
    assert [score for _, _, score in text.pairs] == [1.0, 0.0] * (len(text.pairs) // 2)
    assert len(text.columns) == (len(text.documents) if name == "catalogue-table" else 0)
    if name == "questions":
        assert set(text.right) <= set(range(len(text.documents)))
    else:
        assert set(text.right) <= set(text.kinds)
        assert len(text.kinds) == len(text.documents)
        assert len(set(text.kinds)) >= (10 if name == "words" else 12)


@pytest.mark.parametrize("name", sorted(set(ROWS) - {"captions", "words"}))
@pytest.mark.parametrize("half", HALVES)
def test_queries_are_short_and_in_other_words(drawn, name, half):
    text = drawn[name, half]
    assert 2 <= median(len(query.split()) for query in text.queries) <= 7
    assert median(text.overlaps) <= 0.2


@pytest.mark.parametrize("name", GENERATED)
def test_the_halves_share_no_content_words(drawn, name):
    of_half = []
    for half in HALVES:
        text = drawn[name, half]
        said = [*text.documents, *text.queries, *text.columns, *(side for pair in text.pairs for side in pair[:2])]
        plain = (
            re.sub(r"host-\w+|\b(req=|snap-|pi_|0x|cert |key |trace=|Ref |Class \d+)[0-9a-f]+", "", line)
            for line in said
        )
        of_half.append({word for line in plain for word in re.findall(r"[^\W\d_]{3,}", line.lower())})
    assert min(map(len, of_half)) > 150
    for one, other in itertools.combinations(of_half, 2):
        assert one & other <= FUNCTION_WORDS


@pytest.mark.parametrize("name", sorted(set(GENERATED) - {"questions"}))
def test_the_halves_share_no_kind(harm_texts, name):
    kinds = [set(harm_texts.grammar(name, half).kinds) for half in HALVES]
    for number in (2, 3, 4):
        assert not kinds[number] & set().union(*kinds[:number])
    assert len({*map(len, kinds)}) == 1


def test_a_long_text_has_sixty_to_a_hundred_and_twenty_words(drawn):
    for half in HALVES:
        lengths = [len(document.split()) for document in drawn["long-and-short", half].documents]
        long = [length for length in lengths if length > 12]
        assert 0.25 < len(long) / len(lengths) < 0.75
        assert 60 <= min(long) <= max(long) <= 120


@pytest.mark.parametrize("name", ["packages", "commands", "messages"])
def test_what_the_machine_has_is_halved(harm_texts, name):
    texts = [harm_texts.TEXTS[name](half, 0) for half in HALVES if half != "final" or name == "messages"]
    if None in texts:
        pytest.skip(f"too few {name} on this machine")
    for one, other in itertools.combinations(texts, 2):
        assert not set(one.documents) & set(other.documents)
    for text in texts:
        assert len(text.kinds) == len(set(text.documents)) == len(text.documents) <= 3_000
        assert text.right == tuple(range(len(text.documents) if name == "packages" else 0))

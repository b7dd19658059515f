import sys
import unicodedata

import numpy as np
import pytest

from bertflow.text_keys import digest, hash_texts, seen_share, text_key


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("A man's hat.", "a man 's hat ."),
        ("The café", "the cafe\u0301"),
        ("STRASSE", "straße"),
        ("ﬁne", "fine"),
        ("two  words", "two words"),
        ("for you ❤️", "for you ❤"),
        ("3️⃣ cats", "3 cats"),
    ],
)
def test_spelling_of_one_text_has_one_key(one, other):
    assert text_key(one) == text_key(other)


@pytest.mark.parametrize(
    ("one", "other"), [("a man", "a woman"), ("3 cats", "4 cats"), ("!", "?"), ("东", "西"), ("दिन", "दीन"), ("❤️", "✌️")]
)
def test_different_texts_have_different_keys(one, other):
    assert text_key(one) != text_key(other)


@pytest.mark.parametrize("start", range(0, sys.maxunicode, 2**16))
def test_every_character_of_unicode_is_kept_if_it_is_a_letter_or_a_digit(start):
    known = (one for one in map(chr, range(start, start + 2**16)) if unicodedata.category(one) != "Cn")
    text = " ".join(known)  # marks stand alone
    folded = unicodedata.normalize("NFKC", text).casefold()
    kept = "".join(filter(str.isalnum, folded))
    assert "".join(filter(str.isalnum, text_key(text))) == kept or not kept


def test_the_digest_does_not_depend_on_order_or_repeats():
    assert digest(hash_texts(["a", "b", "a"])) == digest(hash_texts(["b", "a"]))


def test_seen_counts_distinct_sentences_by_key():
    corpus = hash_texts(["A dog.", "A cat."])
    assert seen_share(["a dog", "A DOG!", "a bird", "a fish"], corpus) == pytest.approx(1 / 3)


def test_nothing_fitted_is_nothing_seen():
    assert seen_share(["a dog"], np.empty(0, dtype=np.uint64)) == 0.0

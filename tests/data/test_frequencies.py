import gzip

import pytest

from bertflow.data.corpus import count_words, read_frequencies


@pytest.mark.parametrize("name", ["words.txt", "words.txt.gz"])
def test_words_and_counts_are_read_in_order(write, name):
    content = b"you 28\n's 14\nna\xc3\xafve\t3\n"
    path = write(name, gzip.compress(content) if name.endswith(".gz") else content)
    assert list(read_frequencies(path).items()) == [("you", 28), ("'s", 14), ("naïve", 3)]


REFUSED = {
    "no count": ("you 2\nme\n", "{}, line 2: a word and its count, of up to 15 digits, are wanted, got 'me'. Repair "
                 "the line."),
    "fraction": ("you 2.5\n", "{}, line 1: a word and its count, of up to 15 digits, are wanted, got 'you 2.5'. Repair "
                 "the line."),
    "digits": ("you " + "9" * 5000, "{}, line 1: a word and its count, of up to 15 digits, are wanted, got "
               "'you 99999999999999999999999...9999999999999999999999999999'. Repair the line."),
    "twice": ("you 2\nyou 1\n", "{}, line 2: the word 'you' stood before. Add its counts up."),
    "empty": ("\n", "{} should hold words and counts, but holds none above zero. Give a list of words."),
    "zeros": ("you 0\n", "{} should hold words and counts, but holds none above zero. Give a list of words."),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_list_that_cannot_be_read_is_refused(write, case, refusal):
    content, message = REFUSED[case]
    path = write("words.txt", content)
    assert refusal(read_frequencies, path) == message.format(path)


def test_words_are_counted_lower_case_with_contractions_split():
    counted = count_words(["Don't, don\u2019t: DON'T!", "It's 'quoted' text."])
    assert counted == {"'t": 3, "don": 3, "'s": 1, "it": 1, "quoted": 1, "text": 1}
    assert list(counted) == ["'t", "don", "'s", "it", "quoted", "text"]


def test_counted_words_meet_those_of_a_real_list(shared_data):
    listed = read_frequencies(shared_data / "text/en_50k.txt.gz")
    assert len(listed) == 50_000
    assert list(listed.items())[:2] == [("you", 28787591), ("i", 27086011)]
    assert set(count_words(["I don't think we're there, it's what you said we'll do."])) <= set(listed)

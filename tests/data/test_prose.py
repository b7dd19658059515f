import pytest

from bertflow.data.docstrings import is_summary, paragraphs, plain, sentences

DOCSTRING = """Compute the mean of the rows.

    The mean is taken in float64, e.g. for ``float16`` rows. It is exact
    for whole numbers (see :func:`~package.module.total`).

    >>> mean([1, 2])
    1.5

    Args:
        rows: A sequence of rows. It may be empty.

    Parameters
    ----------
    rows : sequence
        The rows of a table.

    Notes
    -----
    Rows are read once, from the first to the last.

    .. versionadded:: 3.2

    * A list has items that are not prose.

    ===  =====
    one  two
    ===  =====

    The following is code::

        mean(rows)

    :param rows: The rows of a table.
    """


def test_prose_is_what_remains_without_code_lists_tables_and_fields():
    assert list(paragraphs(DOCSTRING)) == [
        "Compute the mean of the rows.",
        "The mean is taken in float64, e.g. for float16 rows. It is exact for whole numbers (see total).",
        "Rows are read once, from the first to the last.",
    ]


MARKUP = {
    ":class:`~torch.nn.Module` and :func:`sum`": "Module and sum",
    ":ref:`the guide <guide>`": "the guide",
    "`the page <https://example.org>`_": "the page",
    "[the page](https://example.org) of [`~utils.Name`]": "the page of Name",
    "``None`` or `None`": "None or None",
    "**very** *important*, a * b * c": "very important, a * b * c",
    "a  b\n c": "a b c",
}


@pytest.mark.parametrize(("marked", "text"), MARKUP.items())
def test_markup_is_taken_off(marked, text):
    assert plain(marked) == text


SENTENCES = {
    "This is the first one. This is the second one!": ["This is the first one.", "This is the second one!"],
    'He said "this is it." Then he left the room.': ['He said "this is it."', "Then he left the room."],
    "See Fig. Two and also Dr. Who on this.": ["See Fig. Two and also Dr. Who on this."],
    "One is kept, i.e. This one here. Too short.": ["One is kept, i.e. This one here."],
    "lower case is no sentence here.": [],
    "This one has no stop": [],
    "This is f(x, y)[0] * (a + b) / 3.": [],
    " ".join(["Word"] * 61) + ".": [],
}


@pytest.mark.parametrize(("paragraph", "expected"), SENTENCES.items())
def test_sentences_are_complete(paragraph, expected):
    assert sentences(paragraph) == expected


SUMMARIES = {
    "Return the mean.": True,
    "Return the mean": True,
    "Return it.": False,
    "Return the mean. Then return it again.": False,
    "return the mean.": False,
}


@pytest.mark.parametrize(("paragraph", "expected"), SUMMARIES.items())
def test_a_summary_is_one_sentence(paragraph, expected):
    assert is_summary(paragraph) is expected

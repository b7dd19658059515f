import ast
import sysconfig
import warnings
from pathlib import Path

import pytest

from bertflow.data import docstrings
from bertflow.data.docstrings import docstring_corpus, docstring_pairs, docstring_sentences, read_docstrings, sentences
from bertflow.text_keys import text_key

ALL_PACKAGES = docstrings.PACKAGES

SOURCE = '''"""The module."""
import no_such_module
if True:
    def function():
        """The function."""
        async def inner():
            """The inner one."""
try:
    class Thing:
        """The class."""
        def method(
            self,
        ):  # with a comment
            r"""The \\d method."""
        def bare(self): pass
        def escaped(self):
            # A comment.

            """The \\tescaped one, with \\"""quotes\\"""."""
except ImportError:
    def spare():
        """The spare one."""
text = """No docstring."""
'''


@pytest.fixture
def from_files(write, monkeypatch):
    """Read these files in place of the installed packages."""

    def use(**files):
        paths = [write(f"{name}.py", content) for name, content in files.items()]
        monkeypatch.setattr(docstrings, "_source_files", lambda: iter(paths))
        docstrings._read_prose.cache_clear()

    yield use
    docstrings._read_prose.cache_clear()


@pytest.fixture(scope="module")
def few_packages():
    """The standard library and one small package: read in two seconds, where all take ten."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(docstrings, "PACKAGES", {"nflows": "nflows"})
        docstrings._read_prose.cache_clear()
        yield
    docstrings._read_prose.cache_clear()


def documented(*texts):
    return "\n".join(f'def f():\n    """{text}"""' for text in texts)


def parsed(source):
    """Docstrings as Python's own parser finds them."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, documented))
    return {ast.get_docstring(node, clean=False) for node in nodes} - {None}


def test_docstrings_are_read_without_importing(write):
    path = write("a.py", SOURCE)
    found = list(read_docstrings(path))
    assert set(found) == parsed(SOURCE)
    assert found[:3] == ["The module.", "The function.", "The inner one."]


def test_docstrings_are_those_that_the_parser_finds():
    found, expected = set(), set()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        found |= set(read_docstrings(path))
        # Those in single quotes are left out: most are of one line, and a table's texts stand after colons too.
        expected |= {text for text in parsed(path.read_bytes()) if "\n\n" in text}
    assert len(expected) > 1000
    assert len(expected - found) <= 0.002 * len(expected)
    assert len({text for text in found if "\n\n" in text} - expected) <= 0.002 * len(expected)


def test_a_summary_line_is_paired_with_the_paragraph_that_follows(from_files):
    from_files(
        a=documented(
            "Sort the list in place.\n\n    Sorting is stable. It takes a key.\n\n    A third paragraph follows here.",
            "A summary line alone.",
            "Two sentences are here. No summary line.\n\n    This is what follows it.",
        )
    )
    pairs = docstring_pairs()
    assert (pairs.first, pairs.second) == (("Sort the list in place.",), ("Sorting is stable. It takes a key.",))


def test_a_query_or_text_that_comes_again_is_left_out(from_files):
    from_files(
        a=documented("Sort the list.\n\n    It takes a key.", "Sort the list.\n\n    It takes another key."),
        b=documented("Sort a tuple.\n\n    It takes a key."),
    )
    assert docstring_pairs().first == ("Sort the list.",)


def test_files_that_cannot_be_read_are_counted(from_files, caplog):
    from_files(
        a=documented("This one can be read."), b=b"# coding: utf-8\n'''\xff'''\n", c='# coding: no-such\n"""Text."""'
    )
    caplog.set_level("INFO")
    assert docstring_sentences() == ["This one can be read."]
    assert caplog.messages == ["Docstrings: 2 files could not be read and are left out."]


def test_warnings_about_others_code_are_kept_from_the_user(from_files):
    from_files(a='"""This one is read.\n\n    \\d"""\n')
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert docstring_sentences() == ["This one is read."]
    assert not caught


def test_no_docstrings_at_all_are_refused(from_files, refusal):
    from_files(a="x = 1")
    said = refusal(docstring_sentences)
    assert said == "The installed packages hold no docstrings (is Python zipped?). Give your own text."


def test_more_than_there_is_cannot_be_drawn(from_files, refusal):
    from_files(a=documented("Sort the list.\n\n    It takes a key."))
    assert refusal(docstring_corpus, 2) == "2 pairs are wanted, but the docstrings hold 1. Ask for at most 1."


def test_the_pairs_to_score_stand_in_no_text_to_fit_on(few_packages):
    fitted, scored = docstring_corpus(300, seed=1)
    keys = set(map(text_key, fitted))
    for query, text in zip(scored.first, scored.second, strict=True):
        assert not keys & {text_key(part) for part in (query, text, *sentences(query), *sentences(text))}
    assert len(scored) == 300
    assert len(fitted) > 8_000


def test_the_seed_draws_the_sample(few_packages):
    drawn = [docstring_corpus(20, 50, seed=seed) for seed in (1, 1, 2)]
    texts = [(sentences, pairs.first, pairs.second) for sentences, pairs in drawn]
    assert texts[0] == texts[1] != texts[2]
    fitted, scored = docstring_corpus(20, 50)
    assert (len(fitted), len(scored), len(set(fitted))) == (50, 20, 50)


def test_sentences_and_pairs_are_of_one_reading(from_files):
    from_files(one=documented("Return the name of a thing.\n\nThe name is looked up in the table of names."))
    assert (len(docstring_sentences()), len(docstring_pairs())) == (2, 1)
    assert docstrings._read_prose.cache_info().misses == 1


def test_the_source_names_the_versions(few_packages):
    source = docstring_pairs().source
    assert source.startswith("docstrings of Python 3.")
    assert source.endswith(", nflows 0.14")


@pytest.mark.slow
def test_all_packages_hold_the_text_that_is_promised(monkeypatch):
    monkeypatch.setattr(docstrings, "PACKAGES", ALL_PACKAGES)
    docstrings._read_prose.cache_clear()
    assert len(docstring_sentences()) > 50_000
    pairs = docstring_pairs()
    assert len(pairs) > 8_000
    for side in (pairs.first, pairs.second):
        assert len(set(map(text_key, side))) == len(pairs)
    docstrings._read_prose.cache_clear()

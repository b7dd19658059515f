"""What a command answers is on the last 24 lines of a terminal of 80 columns."""

import io

import pytest

from bertflow.cli import main

from .conftest import SENTENCES, write_table
from .test_every_command import LINES, words

pytestmark = pytest.mark.usefixtures("minilm")
ANSWERS = {
    "score": LINES["score"],
    "score by labels": f"{LINES['score']} --labels same.tsv",
    "score a text": "score BERT --domain text.txt --fit_on text.txt --device cpu",
    "compare": LINES["compare"],
    "words of a study": "words --study bank --output out/new",
    "words of a long study": "words --study king-queen --output out/new",
}


class Terminal(io.StringIO):
    """Keeps what is printed in a terminal."""

    def isatty(self):
        return True


def printed(line, monkeypatch, *streams):
    """What a command prints in a terminal of 80 columns and 24 lines."""
    for size, value in {"COLUMNS": "80", "LINES": "24", "TERM": "xterm"}.items():
        monkeypatch.setenv(size, value)
    terminal = Terminal()
    for stream in streams:
        monkeypatch.setattr(f"sys.{stream}", terminal)
    assert main(words(line)) == 0
    return terminal.getvalue()


@pytest.fixture
def same(place):
    """A file of pairs that are copies, or not."""
    rows = [(one, other, int(one == other)) for one in SENTENCES[:20] for other in (one, SENTENCES[200])]
    write_table(place / "same.tsv", "sentence1 sentence2 label", rows)


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_seen_at_once(name, same, inputs, monkeypatch):
    answer = printed(ANSWERS[name], monkeypatch, "stdout")
    assert 5 < answer.count("\n") <= 23, answer  # one is left for the next command


@pytest.mark.parametrize(
    ("line", "times"), [(ANSWERS["score by labels"], 1), (LINES["sweep"], 2)], ids=["short", "long"]
)
def test_what_is_read_of_a_table_is_said_again_below_a_long_answer(line, times, same, inputs, monkeypatch):
    answer, _, following = printed(line, monkeypatch, "stdout", "stderr").rpartition("next: ")
    assert answer.count("using columns sentence1, sentence2, ") == times
    assert "using columns" not in following

"""What a command answers is on the last 24 lines of a terminal of 80 columns."""

import io

import pytest

from bertflow.cli import main

from .conftest import SENTENCES
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


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_seen_at_once(name, place, inputs, monkeypatch):
    same = [f"{one}\t{other}\t{int(one == other)}\n" for one in SENTENCES[:20] for other in (one, SENTENCES[200])]
    (place / "same.tsv").write_text("sentence1\tsentence2\tlabel\n" + "".join(same))
    monkeypatch.setattr("sys.stdout", terminal := Terminal())
    for size, value in {"COLUMNS": "80", "LINES": "24", "TERM": "xterm"}.items():
        monkeypatch.setenv(size, value)
    assert main(words(ANSWERS[name])) == 0
    assert 5 < terminal.getvalue().count("\n") <= 23, terminal.getvalue()  # one is left for the next command

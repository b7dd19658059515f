import json
import re
import sys
from pathlib import Path

import pytest

from bertflow.cli import main

SENTENCES = ["--in", "the man sleeps and the dog eats", "--in", "a red dog and a man and the cat"]


@pytest.fixture
def study():
    row, four = {"sentence": "the man and the dog and the cat"}, ("man", "dog", "cat", "the")
    mentions = [{**row, "context": context, "word": word} for context in ("one", "two") for word in four]
    mentions[3] |= {"occurrence": 2}
    lists = {"closer": [["man", "dog", "cat"]], "offsets": [["man", "dog", "cat", "the"]], "pairs": [["man", "dog"]]}
    Path("study.json").write_text(json.dumps({"title": "men", "mentions": mentions, **lists}))
    return "study.json"


@pytest.fixture
def words(tiny_bert, told):
    """Runs the command on the tiny BERT; gives what it printed."""
    return lambda *given: told("words", *given, "--model", tiny_bert)


def test_a_study_prints_offsets_and_verdicts(words, study):
    out = words("--study", study)
    assert re.search(r"^ man - dog ~ cat - the +one .*\n man - dog ~ cat - the +two .*\n man ~ dog ", out, re.MULTILINE)
    assert "Cosine, 2 of 5 poolings\n" in out
    out = words("--study", study, "--details")
    assert "Offsets: man - dog and cat - the, as vectors and as scalars" in out
    assert "Offsets: man - cat and dog - the, as vectors and as scalars" in out
    assert "one: the cosine man ~ dog is above man ~ cat at " in out
    # The same sentence in both contexts: nothing moves.
    assert "man ~ dog: closer in 'two' than in 'one' at 0 of 5 poolings, level at 5; " in out


def test_json_is_all_that_is_printed(words):
    poolings = ["--pooling", "mean(1,2)", "--pooling", "cls(3)"]
    record = json.loads(words("man", "dog", *SENTENCES, *poolings, "--segment", 1, "--json"))
    assert list(record["panels"]) == ["cls(3)", "mean(1,2)"]
    assert {mention["segment"] for mention in record["mentions"]} == {1}


@pytest.mark.parametrize(("kind", "starts"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_pictures_repeat_byte_for_byte(words, kind, starts):
    pytest.importorskip("matplotlib", reason="the plots extra is not installed")
    for name in ("a", "b"):
        out = words("man", "dog", *SENTENCES, "--pooling", "mean(1,-1)", "--format", kind, "--output", name)
    written = "Written: b/words.json and 3 pictures beside it."
    assert out.splitlines()[-3] == f"All layers and distances: --details. {written}"
    files = sorted(path.name for path in Path("a").iterdir())
    pictures = [f"{name}.{kind}" for name in ("by-layer-cosine", "by-layer-euclidean", "heatmaps-mean_1_-1")]
    assert files == [*pictures, "words.json"]
    for file in files:
        assert (Path("a") / file).read_bytes() == (Path("b") / file).read_bytes()
    assert (Path("a") / pictures[0]).read_bytes().startswith(starts)


def test_without_matplotlib_pictures_are_refused_before_the_work(tiny_bert, capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "bertflow.plots", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    arguments = ["man", "dog", *SENTENCES, "--model", str(tiny_bert), "--output", "out"]
    assert main(["words", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err == "error: This needs the package matplotlib. Install it with: pip install 'bertflow[plots]'\n"
    assert captured.out == ""
    assert not Path("out").exists()

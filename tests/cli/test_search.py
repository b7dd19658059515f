"""The command line of ``search``, on a tiny encoder; scikit-learn and a loop are the second voice of the scores."""

import json
from pathlib import Path

import numpy as np
import pytest

from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.closed_forms import Whitening
from bertflow.cli import main
from bertflow.retrieval.ranking import Phrases, ranks_of
from bertflow.scoring.domain import UNCHECKED

from ..encoder.conftest import make
from ..texts import WITH_THE, drawn
from .conftest import write_table

ANSWERS = [
    {"id": "dogs", "text": "The dog runs in the garden.", "questions": ["A big dog sings.", "the dog"]},
    {"id": "cats", "text": "A cat sleeps.", "questions": []},
    {"id": "birds", "text": "The red bird sings and eats.", "questions": None},
]
SENTENCES = [
    f"the {size} {noun} {verb}" for size in ("big", "red") for noun in ("man", "dog") for verb in ("runs", "eats")
]


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def folder(tmp_path, monkeypatch, tiny_bert):
    (tmp_path / "answers.jsonl").write_text(lines(ANSWERS))
    write_table("labels.tsv", "question id", [("the cat", "cats"), ("a bird", "birds"), ("the dog", "dogs")])
    CalibratedEncoder.fit(make(tiny_bert), Whitening(n_components=4), SENTENCES).save("whitened")
    assert main(["search", "build", "faq.index", "--answers", "answers.jsonl", "--model", str(tiny_bert)]) == 0
    return tmp_path


@pytest.fixture
def search(told):
    """Runs an action, which must succeed; gives what it printed."""
    return lambda *words: told("search", *words)


def test_a_question_out_of_domain_is_said(folder, tiny_bert, search, told):
    (folder / "text.txt").write_text("\n".join(drawn(WITH_THE, 500, 0, 4, 10)))
    make(tiny_bert).save("raw")
    for encoder in ("whitened", "raw"):
        told("score", encoder, "--fit_on", "text.txt", "--save", f"scored-{encoder}")
        search("build", f"{encoder}.index", "--answers", "answers.jsonl", "--model", f"scored-{encoder}")
        strange, ordinary = "eats " * 8, "the big man sleeps in the garden"
        said = (
            "The question is out of domain: it is unlike the text that the encoder was fitted on, so its scores "
            "are not reliable. `bertflow fix` helps, on text that holds such questions as well.\n"
        )
        assert search("ask", f"{encoder}.index", strange).endswith(said)
        assert said not in search("ask", f"{encoder}.index", ordinary)
        found = json.loads(search("ask", f"{encoder}.index", strange, "--json"))
        assert [hit["out_of_domain"] for hit in found] == [True] * 3
    search("build", "unchecked.index", "--answers", "answers.jsonl", "--model", "whitened")
    assert search("ask", "unchecked.index", strange).endswith(f"{UNCHECKED}\n")
    assert "domain" not in search("ask", "faq.index", strange), "nothing was fitted"


def test_of_a_long_text_the_beginning_is_shown(folder, search):
    long = "A very long cat sleeps. " * 20
    (folder / "long.jsonl").write_text(lines([{"id": "long", "text": long}, {"id": "short", "text": "A dog."}]))
    search("add", "faq.index", "--answers", "long.jsonl")
    ask = ("ask", "faq.index", long, "-k", "1")
    cut, whole = search(*ask), search(*ask, "--details")
    assert ["details shows" in said for said in (cut, whole)] == [True, False]
    assert " ".join(long.split()) in whole
    assert json.loads(search(*ask, "--json"))[0]["text"] == long.strip()
    assert "details shows" not in search("ask", "faq.index", "A dog.", "-k", "1")


def test_a_recalibrated_index_remembers_its_new_encoder(folder, search):
    done = search("recalibrate", "faq.index", "--model", "whitened")
    assert "calibrated by Whitening(n_components=4)" in done
    assert search("ask", "faq.index", "the dog", "-k", "1").startswith("1. 1.000  dogs")
    held = json.loads(search("info", "faq.index", "--json"))
    assert (held["answers"], held["calibrator"]) == (3, "Whitening(n_components=4)")
    assert held["source"] == {"model": str(folder / "whitened")}


def test_another_folder_is_opened_as_it_is_and_what_it_replaces_is_said(folder, capsys, search, tiny_bert, refused):
    search(*["build", "own.index", "--answers", "answers.jsonl", "--pooling", "mean(2)", "--model"], tiny_bert)
    kept = make(tiny_bert, "mean(2)")
    kept.save("kept")
    CalibratedEncoder.fit(kept, Whitening(n_components=2), SENTENCES).save("two")
    make(tiny_bert, "cls").save("cls")
    before = search("ask", "own.index", "the dog")
    for other in ("cls", "whitened"):
        err = refused(3, "search", "recalibrate", "own.index", "--model", other)
        assert "own.index holds embeddings by" in err
        assert "or build it again" in err
    for given, new, old in [
        (("--model", str(tiny_bert)), "", ""),
        (("--calibrate", "center"), "Center()", ""),
        (("--model", str(tiny_bert)), "none", "Center()"),
        (("--model", "two"), "Whitening(n_components=2)", ""),
        (("--calibrate", "abtt(1)"), "AllButTheTop(k=1)", "Whitening(n_components=2)"),
        (("--model", "kept"), "none", "AllButTheTop(k=1)"),
    ]:
        assert main(["search", "recalibrate", "own.index", *given]) == 0
        out, err = capsys.readouterr()
        assert (f"own.index: the calibrator {new}" in err and f" replaces {old}" in err) == bool(old)
        assert ("no calibrator" in out) == (new in ("", "none"))
        assert (search("ask", "own.index", "the dog") == before) == (new in ("", "none"))


def test_an_encoder_that_was_moved_is_named_by_its_new_place(folder, search, tiny_bert, refused):
    make(tiny_bert).save("here")
    search("build", "moved.index", "--answers", "answers.jsonl", "--model", "here")
    before = search("ask", "moved.index", "the dog")
    Path("here").rename("there")
    said = f"{Path('here').resolve()}, the encoder of moved.index, is not there. Give the place that it has now with "
    assert f"{said}--model." in refused(3, "search", "ask", "moved.index", "the dog")
    assert search("ask", "moved.index", "the dog", "--model", "there") == before


def test_evaluate_scores_raw_against_calibrated(folder, search):
    search("recalibrate", "faq.index", "--model", "whitened")
    scores = json.loads(search("evaluate", "faq.index", "--labels", "labels.tsv", "-k", "2", "--json"))
    assert (scores["questions"], scores["answers"], scores["questions_in_index"]) == (3, 3, 1)
    systems = {"raw", "Whitening(n_components=4)", "bm25"}
    assert {(row["system"], row["metric"]) for row in scores["rows"]} == {
        (system, metric) for system in systems for metric in ("hit@1", "hit@2", "mrr", "map")
    }
    assert [row["metric"] for row in scores["differences"]] == ["hit@1", "hit@2", "mrr", "map"]
    out = search("evaluate", "faq.index", "--labels", "labels.tsv")
    assert "3 questions, 3 answers; x 100; ties count against the index." in out
    assert "1 of the questions are in the index, and find themselves." in out
    write_table("one.tsv", "question id", [("the cat", "cats")])
    assert search("evaluate", "faq.index", "--labels", "one.tsv").startswith("1 question, 3 answers; x 100")


def phrases(rng, n, dim=5):
    unit = rng.standard_normal((n, dim))
    names = tuple(f"{number:02d}" for number in range(n))
    return Phrases(names, np.arange(n), unit / np.linalg.norm(unit, axis=1, keepdims=True))


def test_ranks_are_those_of_a_loop():
    rng = np.random.default_rng(0)
    held, questions = phrases(rng, 12), rng.standard_normal((20, 5))
    right = {str(row): frozenset(rng.choice(held.names, 3, replace=False)) for row in range(len(questions))}
    for question, names, found in zip(questions, right.values(), ranks_of(held, questions, right, "it"), strict=True):
        falling = [held.names[row] for row in np.argsort(-(held.unit @ question))]
        assert found.tolist() == sorted(1 + falling.index(name) for name in names)


def test_ties_count_against_the_index():
    held = Phrases("abcd", np.arange(4), np.ones((4, 1)))
    assert ranks_of(held, np.ones((1, 1)), {"q": frozenset({"a", "c"})}, "it")[0].tolist() == [3, 4]


def test_an_index_in_chunks_says_which_part_of_a_long_answer_it_found(folder, search, tiny_bert, refused):
    text = "The big man sleeps in the house. A red bird sings. The dog runs."
    (folder / "long.jsonl").write_text(lines([{"id": "long", "text": text}, ANSWERS[1]]))
    arguments = ["--answers", "long.jsonl", "--model", str(tiny_bert)]
    told_build = search("build", "long.index", *arguments, "--chunks", "sentences")
    assert told_build.startswith("long.index: 2 answers split by sentences:1:0, 4 phrases, no calibrator")
    said = search("ask", "long.index", "a red bird sings.", "-k", "1")
    assert said == "1. 1.000  long  [chunk 1, 33:50]  A red bird sings.\n"
    (hit,) = json.loads(search("ask", "long.index", "a red bird sings.", "-k", "1", "--json"))
    assert text[hit["start"] : hit["stop"]] == hit["matched"] == "A red bird sings."
    assert (hit["chunk"], hit["text"]) == (1, text)
    (folder / "more.jsonl").write_text(lines([{"id": "more", "text": "The cat eats. A dog sings."}]))
    added = search("add", "long.index", "--answers", "more.jsonl")
    assert "3 answers split by sentences:1:0, 6 phrases" in added
    assert "chunk 1, 14:26" in search("ask", "long.index", "A dog sings.", "-k", "1")
    err = refused(2, "search", "build", "no.index", *arguments, "--chunks", "sentences:mean")
    assert err == "error: An index keeps each chunk and pools none, got 'sentences:mean'. Leave its last part out."

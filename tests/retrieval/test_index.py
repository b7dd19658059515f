"""A plain loop in double precision is the second voice of the ranking; a second handle is that of another process."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from bertflow.api.searching import describe_index
from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.closed_forms import Center, Whitening
from bertflow.data.corpus import Answer
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import DataError, UsageError
from bertflow.retrieval.index import AnswerIndex
from bertflow.retrieval.storage import RESTORE

TEXTS = [f"sentence {number}" for number in range(60)]


def slow_search(encoder, answers, question, k):
    """Every cosine in Python floats; ties by id."""

    def cosine(a, b):
        return sum(x * y for x, y in zip(a, b, strict=True)) / (sum(x * x for x in a) * sum(y * y for y in b)) ** 0.5

    def row(text):
        return [float(x) for x in encoder.encode([text])[0]]

    texts = {answer.id: (answer.text, *answer.questions) for answer in answers}
    scores = {name: max(cosine(row(question), row(text)) for text in own) for name, own in texts.items()}
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:k]


def fitted(encoder, calibrator=None):
    return (calibrator or Whitening()).fit(encoder.encode(TEXTS))


def reopened(index, encoder, **how):
    return AnswerIndex.open(index.path, encoder, **how)


@pytest.mark.parametrize("k", [1, 2, 3, 7])
def test_the_ranking_is_that_of_a_plain_loop(index, encoder, k):
    expected = slow_search(encoder, index.answers(), "A new question", k)
    hits = index.search("A new question", k)
    assert [hit.id for hit in hits] == [name for name, _ in expected]
    assert [hit.score for hit in hits] == pytest.approx([score for _, score in expected], abs=1e-6)


def test_an_answer_is_found_by_a_past_question_and_by_its_own_text(index):
    hit = index.search("Can I remove it?", 1)[0]
    assert (hit.id, hit.text, hit.matched) == ("delete", "Press the red button.", "Can I remove it?")
    assert hit.score == pytest.approx(1)
    assert [(hit.id, hit.matched) for hit in index.search("It is free.", 1)] == [("cost", "It is free.")]


def test_equal_scores_are_in_the_order_of_ids(index):
    index.add([Answer(name, "One and the same text.") for name in ("z", "b", "y", "a", "x")])
    hits = index.search("One and the same text.", 3)
    assert [hit.id for hit in hits] == ["a", "b", "x"]
    assert len({hit.score for hit in hits}) == 1


def test_many_questions_are_answered_as_one_at_a_time(index):
    questions = [f"question {number}" for number in range(7)]
    assert index.search_many(questions, 2) == [index.search(question, 2) for question in questions]


def test_an_empty_index_has_no_answers(tmp_path, encoder):
    with AnswerIndex.create(tmp_path / "empty.index", encoder) as index:
        assert (len(index), index.search("Anything?")) == (0, [])
        index.remove([])


def test_each_phrase_is_embedded_once(tmp_path, encoder):
    answers = [Answer("a", "same", ("same", "other")), Answer("b", "other")]
    AnswerIndex.create(tmp_path / "once.index", encoder, answers).close()
    assert sorted(encoder.asked) == ["other", "other", "same"]  # once as an answer, once as a question


@pytest.fixture
def with_roles(tiny_bert):
    """An encoder that puts another text before a query than before a document."""
    return TransformerEncoder(tiny_bert, prompt={"query": "the big ", "document": "a "}, device="cpu")


@pytest.mark.parametrize("chunks", [None, "tokens:4"])
def test_a_past_question_is_embedded_as_a_question(with_roles, tmp_path, chunks):
    answers = [Answer("a", "the dog eats", ("a cat sings",)), Answer("b", "a cat sings", ("the red bird",))]
    with AnswerIndex.create(tmp_path / "roles.index", with_roles, answers[:1], chunks=chunks) as index:
        index.add(answers[1:])
        index.update([replace(answers[0], questions=("a cat sings", "dogs"))])
        for question, name in {"a cat sings": "a", "dogs": "a", "the red bird": "b"}.items():
            assert index.search(question, 1)[0].id == name
            assert index.search(question, 1)[0].score == pytest.approx(1, abs=1e-6)
        found = {hit.id: hit.score for hit in index.search("a cat sings", 2)}
        assert found["b"] < 0.999  # whose own text it is, as a document


def test_an_update_embeds_only_what_is_new(index, encoder):
    encoder.asked.clear()
    index.update([Answer("delete", "Press the red button.", ("How do I delete it?", "And now?"))])
    assert encoder.asked == ["And now?"]
    assert index.search("And now?", 1)[0].id == "delete"
    assert index.search("Can I remove it?", 1)[0].score < 0.999


def test_what_is_removed_is_not_found(index):
    index.remove(["delete"])
    assert [hit.id for hit in index.search("Can I remove it?")] != ["delete"]
    assert {answer.id for answer in index.answers()} == {"cost", "where"}
    assert "delete" not in index


def test_the_answers_come_back_as_they_were_given(index, encoder):
    with reopened(index, encoder) as again:
        assert again.answers() == index.answers()
        assert next(answer.questions for answer in again.answers()) == ("How do I delete it?", "Can I remove it?")


def test_adding_what_is_there_adds_nothing(index, caplog):
    """As after a process that was killed when its change was complete."""
    before = index.answers()
    with caplog.at_level("INFO"):
        index.add(before[:2])
    assert caplog.messages == [f"{index.path} holds these answers already (2): there is nothing to add."]
    assert index.answers() == before


REFUSED = [
    ("add", ["new", "cost"], "The answer 'cost' is there already. Update it, or give the new answer another id."),
    ("add", ["new", "new"], "The answer 'new' is given twice. Give each answer an id of its own."),
    ("update", ["cost", "nope", "nor this"], "2 answers ('nope' the first) are not in {path}. Is the id right?"),
    ("remove", ["cost", "nope"], "The answer 'nope' is not in {path}. Is the id right?"),
]


@pytest.mark.parametrize(("change", "names", "message"), REFUSED)
def test_a_refused_change_changes_nothing(index, change, names, message, refusal):
    before, texts = index.answers(), [Answer(name, f"text {at}") for at, name in enumerate(names)]
    given = names if change == "remove" else texts
    assert refusal(getattr(index, change), given) == message.format(path=index.path)
    assert index.answers() == before


def test_another_encoder_is_refused_with_both_named(index, refusal):
    assert refusal(reopened, index, type(index.encoder)("cls")) == (
        f"{index.path} holds embeddings by fake with pooling 'mean'; this is fake with pooling 'cls' (another pooling "
        "makes other embeddings). Open it with the encoder that it was built with, or build it again."
    )


def test_the_name_of_an_encoder_is_no_part_of_it(index, encoder):
    encoder.describe = lambda: {"encoder": "moved", "pooling": "mean", "layers": [1]}
    reopened(index, encoder).close()


def test_another_calibrator_is_refused_with_both_named(index, encoder, refusal):
    whitened = CalibratedEncoder(encoder, fitted(encoder))
    index.recalibrate(whitened.calibrator)
    centered = CalibratedEncoder(encoder, fitted(encoder, Center()))
    ours, theirs = (one.identity.digest[:8] for one in (whitened, centered))
    assert refusal(reopened, index, centered) == (
        f"{index.path} holds embeddings by fake with pooling 'mean', calibrator Whitening(n_components=None) ({ours}); "
        f"this is fake with pooling 'mean', calibrator Center() ({theirs}) (another calibrator makes other "
        "embeddings). Open it with that calibrator, or calibrate it again (recalibrate): its raw embeddings are kept."
    )


def test_recalibration_is_as_if_built_with_it_and_encodes_nothing(index, encoder, tmp_path):
    whitened = CalibratedEncoder(encoder, fitted(encoder))
    encoder.asked.clear()
    index.recalibrate(whitened.calibrator)
    assert encoder.asked == []
    with AnswerIndex.create(tmp_path / "direct.index", whitened, index.answers()) as direct:
        assert direct.search("A new question") == index.search("A new question")
        assert direct.identity == index.identity


def test_raw_embeddings_survive_recalibration(index, encoder):
    before = index.search("A new question")
    index.recalibrate(fitted(encoder))
    index.recalibrate(fitted(encoder, Center()))
    index.recalibrate(None)
    assert index.search("A new question") == before
    reopened(index, encoder).close()


def test_an_index_can_be_opened_with_a_new_calibrator_at_hand_alone(index, encoder):
    index.recalibrate(fitted(encoder))
    centered = CalibratedEncoder(encoder, fitted(encoder, Center()))
    with reopened(index, centered, recalibrate=True) as again:
        assert again.identity.calibrator == "Center()"
    reopened(index, centered).close()


def test_what_another_process_adds_is_found_with_the_next_question(index, encoder):
    index.search("Anything?")
    with reopened(index, encoder) as other:
        other.add([Answer("new", "Brand new.")])
    assert index.search("Brand new.", 1)[0].id == "new"


@pytest.mark.parametrize(
    "use", [lambda index: index.search("Anything?"), lambda index: index.add([Answer("new", "text")])]
)
def test_who_missed_a_recalibration_is_refused_and_mixes_nothing(index, encoder, use):
    with reopened(index, encoder) as other:
        other.recalibrate(fitted(encoder))
    with pytest.raises(
        DataError, match=r"calibrator Whitening\(n_components=None\) \(.{8}\); this is .* calibrator none"
    ):
        use(index)
    assert len(index) == 3


def test_an_index_that_is_there_is_not_built_over(index, encoder, refusal):
    assert refusal(AnswerIndex.create, index.path, encoder, error=UsageError) == (
        f"{index.path} exists already. Choose another name, as {index.path.with_stem('faq-2')}. Or add answers with "
        "new ids, from a table with a column id, by `bertflow search add`."
    )


def test_a_build_that_fails_leaves_nothing(tmp_path, encoder):
    with pytest.raises(DataError, match="given twice"):
        AnswerIndex.create(tmp_path / "bad.index", encoder, [Answer("a", "x"), Answer("a", "y")])
    assert list(tmp_path.iterdir()) == []


def test_an_embedding_without_direction_is_refused(tmp_path, encoder, refusal):
    encoder.row = lambda text: np.zeros(encoder.dim) if text == "void" else np.ones(encoder.dim)
    said = "The embedding of 'void' is all zeros, so it has no cosine. Leave it out."
    assert refusal(AnswerIndex.create, tmp_path / "zero.index", encoder, [Answer("a", "text", ("void",))]) == said


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "An index was expected at {path}, but there is none. Run `bertflow search build`."),
        (
            b"id\ttext\n" * 200,
            "{path} is not an index of answers, or is damaged: file is not a database. Restore a copy, or build it "
            "again.",
        ),
        (b"", "{path} is not an index of answers. Restore a copy, or build it again."),
    ],
)
def test_what_is_not_an_index_is_refused(tmp_path, encoder, content, message, refusal):
    path = tmp_path / "wrong.index"
    if content is not None:
        path.write_bytes(content)
    assert refusal(AnswerIndex.open, path, encoder) == message.format(path=path)


def test_an_index_of_another_version_is_refused(index, encoder, refusal):
    with closing(sqlite3.connect(index.path, isolation_level=None)) as connection:
        connection.execute("PRAGMA user_version = 3")
    assert refusal(AnswerIndex.open, index.path, encoder) == (
        f"{index.path} was made by another version of bertflow: it has format 3, this one reads 5. Build it again."
    )


def test_a_flipped_bit_of_an_embedding_is_refused_when_it_is_read(index, encoder, refusal):
    def put(row):
        with closing(sqlite3.connect(index.path, isolation_level=None)) as connection:
            connection.execute("UPDATE phrases SET raw = ? WHERE number = 2", (bytes(row),))

    with closing(sqlite3.connect(index.path)) as connection:
        (row,) = connection.execute("SELECT raw FROM phrases WHERE number = 2").fetchone()
    for at in (0, 17, len(row) - 1):  # a number's first byte and another, and the checksum itself
        put(row[:at] + bytes([row[at] ^ 1]) + row[at + 1 :])
        with reopened(index, encoder) as again:
            said = f"{index.path} is damaged: an embedding is not what was written. {RESTORE}"
            assert refusal(again.search, "Where is the dog?") == said
    put(row)
    assert index.search("Where is the dog?")[0].score == pytest.approx(1)


@pytest.mark.parametrize(
    ("question", "k", "message"),
    [
        ("why", 0, "k should be 1 or more, got 0."),
        (" ", 1, "A question should have words, but question 0 is ' '."),
        (["why"], 1, "A question should be text, got ['why']. Search once for each question."),
    ],
)
def test_a_search_for_nothing_is_refused(index, question, k, message, refusal):
    assert refusal(index.search, question, k, error=UsageError) == message


def test_it_says_what_it_holds(index, encoder):
    index.remember({"model": "bert"})
    index.recalibrate(fitted(encoder))
    known = describe_index(index)
    assert (known.answers, known.phrases, known.dim) == (3, 6, 8)
    assert known.recipe == {"encoder": "fake", "pooling": "mean", "layers": [1]}
    assert (known.calibrator, known.source) == ("Whitening(n_components=None)", {"model": "bert"})


def test_a_search_sees_one_moment_while_another_writes(index, encoder):
    # Either all answers of a batch are there or none: the best five are of one batch, or of what was there before.
    def write():
        with reopened(index, type(encoder)()) as other:
            for number in range(30):
                names = [f"batch-{number}-{k}" for k in range(5)]
                other.add([Answer(name, "One and the same text.") for name in names])
                other.remove(names)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        while not writing.done():
            found = {hit.id.rpartition("-")[0] for hit in index.search("One and the same text.", 5) if hit.score > 0.99}
            assert len(found) <= 1
        writing.result()
    assert len(index) == 3

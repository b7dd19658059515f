"""A collection of a database, asked as an index is; evaluate_retrieval is the second voice of its scores."""

import json
from dataclasses import replace

import numpy as np
import pytest

import bertflow
from bertflow.cli import main
from bertflow.data.pairs import Pairs
from bertflow.encoder.identity import map_digest
from bertflow.errors import DataError, UsageError
from bertflow.evaluation.evaluating import evaluate_retrieval
from bertflow.records import write_record
from bertflow.retrieval import adapting, collections
from bertflow.retrieval.collection_index import CollectionIndex
from bertflow.retrieval.collections import AbstractCollection, CollectionFacts, CollectionRows
from bertflow.retrieval.index import AnswerIndex
from bertflow.retrieval.ranking import Scan, ranks_of
from bertflow.scoring.domain import UNCHECKED
from bertflow.similarity import unit_rows

NOUNS, VERBS = ("man", "dog", "cat", "bird"), ("runs", "eats", "sings", "sleeps")
TEXTS = [f"the {size} {noun} {verb}" for size in ("big", "red", "a") for noun in NOUNS for verb in VERBS]
QUESTIONS = [text.removeprefix("the ") for text in TEXTS]
IDS = [7 * row + 1 for row in range(len(TEXTS))]
LABELS = {question: frozenset({str(name)}) for question, name in zip(QUESTIONS, IDS, strict=True)}
TABLES = {}
"""Collections in memory, by address: ids, vectors, what else a row holds, the digest of the calibrator or None."""
RAW, DONE = "memory:db/docs", "memory:db/docs-whitened"


class MemoryCollection(AbstractCollection):
    """The smallest database that can be asked."""

    def __init__(self, address):
        super().__init__(address)
        self.name = str(replace(address, id=None, vector=None))

    def close(self):
        pass

    def exists(self):
        return self.name in TABLES

    @property
    def table(self):
        if not self.exists():
            raise DataError(f"{self.address} is missing.")
        return TABLES[self.name]

    @property
    def facts(self):
        ids, x, _, calibrator = self.table
        return CollectionFacts(len(ids), x.shape[1], "cosine", None, "id", "vector", calibrator)

    def parts(self, rows):
        return [{"start": start, "stop": start + rows} for start in range(0, len(self.table[0]), rows)]

    def read(self, part):
        some = slice(part["start"], part["stop"])
        ids, x, _, _ = self.table
        zeros = np.flatnonzero(~x[some].any(1)).tolist()
        return CollectionRows(ids[some], x[some], None, dict.fromkeys(zeros, "there is no vector"))

    def search(self, queries, k, exact=False):
        ids, x, _, _ = self.table
        kept = np.flatnonzero(x.any(1))
        cosines = unit_rows(queries) @ unit_rows(x[kept]).T
        best = np.argsort(-cosines, axis=1)[:, :k]
        return [[ids[kept[at]] for at in row] for row in best]

    def fetch(self, ids):
        places = self.in_order(ids, {name: at for at, name in enumerate(self.table[0])})
        return CollectionRows(list(ids), self.table[1][places], [self.table[2][at] for at in places])

    def _not_asked(self, *_):
        raise AssertionError("a search writes nothing")

    create = upsert = finish = switch = _not_asked


@pytest.fixture
def job(tmp_path, tiny_bert, monkeypatch):
    """The folder of a finished job, its raw and its calibrated collection, and the encoder for questions."""
    monkeypatch.chdir(tmp_path)
    TABLES.clear()
    monkeypatch.setitem(collections.COLLECTIONS, "memory", f"{__name__}:MemoryCollection")
    encoder = bertflow.TransformerEncoder(tiny_bert, device="cpu")
    x = encoder.encode(TEXTS)
    whitening = bertflow.Whitening(n_components=6).fit(x)
    calibrated = bertflow.CalibratedEncoder(encoder, whitening)
    rows = [{"text": text, "row": row} for row, text in enumerate(TEXTS)]
    TABLES[RAW] = IDS, x, rows, None
    TABLES[DONE] = IDS, calibrated.calibrate(x), rows, map_digest(whitening.map)
    encoder.save("raw")
    calibrated.save("job/query-encoder")
    whitening.save("job/calibrator")
    write_record(tmp_path / "job" / "reindex.json", {"source": RAW, "target": DONE, "finished": True})
    (tmp_path / "labels.jsonl").write_text(
        "".join(json.dumps({"question": question, "id": str(*ids)}) + "\n" for question, ids in LABELS.items()), "utf-8"
    )
    return calibrated


def told(capsys, *arguments, code=0):
    capsys.readouterr()
    assert main(["search", *arguments]) == code
    out, err = capsys.readouterr()
    return out if code == 0 else err


def test_the_folder_of_a_job_is_asked_as_an_index_is(job, capsys):
    out = told(capsys, "ask", "job", "the big dog eats", "-k", "2")
    first, second, unchecked = out.splitlines()
    assert first == "1. 1.000  36  the big dog eats"  # 48 rows are too few for a percentile
    assert second.startswith("2. ")
    assert unchecked == UNCHECKED
    assert told(capsys, "ask", "job", "the big dog eats", "-k", "2", "--engine", "exact") == out
    assert told(capsys, "ask", DONE, "the big dog eats", "-k", "2", "--model", "job/query-encoder") == out
    hit = json.loads(told(capsys, "ask", "job", "the big dog eats", "-k", "1", "--json"))[0]
    assert (hit["id"], hit["text"], hit["score"]) == ("36", "the big dog eats", pytest.approx(1))


def test_scores_and_order_are_those_of_the_file_of_an_index(job, tmp_path):
    answers = [bertflow.Answer(str(name), text) for name, text in zip(IDS, TEXTS, strict=True)]
    with AnswerIndex.create(tmp_path / "own.index", job, answers) as index, CollectionIndex.open("job") as asked:
        for question in QUESTIONS[::7]:
            mine, theirs = asked.search(question, 3), index.search(question, 3)
            assert [hit.score for hit in mine] == pytest.approx([hit.score for hit in theirs], abs=1e-6)
            assert mine[0].id == theirs[0].id


def test_what_is_evaluated_is_what_evaluate_retrieval_says(job):
    scores = bertflow.evaluate_search("job", LABELS, resamples=20)
    assert (scores.questions, scores.answers, scores.questions_in_index) == (48, 48, 0)
    pairs = Pairs("own", tuple(QUESTIONS), tuple(TEXTS), kind="retrieval")
    report = evaluate_retrieval({"raw": job.raw, "whitened": job}, pairs, resamples=0)
    name = "Whitening(n_components=6)"
    for metric in ("hit@1", "mrr"):
        mine = {row["system"]: row["value"] for row in scores.rows if row["metric"] == metric}
        theirs = {row.system: row.value for row in report.rows if row.metric == metric}
        assert mine == pytest.approx({"raw": theirs["raw"], name: theirs["whitened"]}, abs=1e-9)
    assert {row["metric"] for row in scores.differences} == {"hit@1", "hit@5", "mrr", "map"}


def test_ranks_in_small_blocks_are_those_in_memory(job, monkeypatch):
    with CollectionIndex.open("job") as asked:
        questions = job.encode_query(QUESTIONS)
        right = {text: frozenset({str(name), str(IDS[0])}) for name, text in zip(IDS, QUESTIONS, strict=True)}
        whole = ranks_of(asked.phrases(), questions, right, "it")
        monkeypatch.setattr("bertflow.retrieval.ranking.CELLS", 60)
        for mine, theirs in zip(ranks_of(Scan(asked.collection, 5), questions, right, "it"), whole, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_a_tie_counts_against_the_collection(job):
    ids, x, rows, digest = TABLES[DONE]
    TABLES[DONE] = [*ids, 1000], np.vstack([x, x[:1]]), [*rows, {"text": "other", "row": -1}], digest
    scores = bertflow.evaluate_search("job", {TEXTS[0]: frozenset({str(IDS[0])})}, resamples=0)
    assert {row["metric"]: row["value"] for row in scores.rows if row["system"] != "raw"}["mrr"] == 0.5
    assert scores.questions_in_index == 1


def test_rows_without_a_vector_are_not_ranked(job):
    ids, x, rows, digest = TABLES[DONE]
    TABLES[DONE] = [*ids, 1000], np.vstack([x, 0 * x[:1]]), [*rows, {"text": "other", "row": -1}], digest
    assert len(bertflow.search("job", "the dog", k=100).hits) == 48
    assert bertflow.evaluate_search("job", LABELS, resamples=0).answers == 49


def test_a_percentile_is_the_share_of_random_pairs_below(job, tmp_path):
    with CollectionIndex.open("job") as asked:
        assert not (tmp_path / "job" / "random_pairs.safetensors").exists()
        assert asked.percentiles(np.array([-1.0, 1.0])) == [None, None]  # 48 rows say too little
    TABLES[DONE] = list(range(400)), np.random.default_rng(0).normal(size=(400, 6)), [{}] * 400, None
    (tmp_path / "job" / "random_pairs.safetensors").unlink()
    with CollectionIndex.open("job") as asked:
        low, middle, high = asked.percentiles(np.array([-1.0, 0.0, 0.99]))
        assert (low, middle) == (0, pytest.approx(50, abs=3))
        assert 99 < high <= 100
    with CollectionIndex.open("job") as again:
        TABLES[DONE] = TABLES[RAW]  # what is kept is not drawn again
        assert again.percentiles(np.array([0.0])) == [middle]


@pytest.mark.parametrize(
    ("place", "model", "said"),
    [
        (DONE, None, "does not say which encoder made its vectors. Give it with --model"),
        (DONE, "raw", "holds vectors of width 6, but TransformerEncoder"),
        (RAW, "job/query-encoder", "holds vectors of width 16, but CalibratedEncoder"),
        ("memory:db/none", "raw", "memory:db/none is missing."),
        ("memori:db/none", "raw", "Unknown kind of database 'memori'."),
        ("lancedb:none", "raw", "should name a place and, after its last '/', a table"),
    ],
)
def test_an_encoder_or_place_that_does_not_fit_is_refused(job, place, model, said, refusal):
    assert said in refusal(bertflow.search, place, "the dog", error=(UsageError, DataError), model=model)


def test_another_calibrator_than_the_recorded_one_is_refused(job, tmp_path):
    other = bertflow.Whitening(n_components=6).fit(TABLES[RAW][1][::2])
    bertflow.CalibratedEncoder(job.raw, other).save("other")
    recorded = TABLES[DONE][3][:8]
    for place in ("job", DONE):
        with pytest.raises(DataError, match=f"went through the calibrator {recorded}, but the encoder's calibrator is"):
            bertflow.search(place, "the dog", model="other")
    TABLES[DONE] = (*TABLES[DONE][:3], None)  # a database that keeps no digest: the folder has it
    with pytest.raises(DataError, match=f"went through the calibrator {recorded}, but"):
        bertflow.search("job", "the dog", model="other")
    assert bertflow.search("job", "the dog", model="raw", k=1).hits == bertflow.search("job", "the dog", k=1).hits


def test_where_nothing_is_recorded_the_text_is_embedded_and_compared(job, caplog):
    ids, x, rows, _ = TABLES[RAW]
    TABLES[RAW] = ids, -x, rows, None
    with pytest.raises(DataError, match=r"\(text\), but what it makes of \d rows has a cosine of -1.00"):
        bertflow.search(RAW, "the dog", model="raw")
    TABLES[RAW] = ids, x + 1, rows, None
    assert bertflow.search(RAW, "the dog", model="raw").hits
    assert "Was it another encoder, pooling or prompt, or another column (--text, in adapt --columns)?" in caplog.text


def test_raw_rows_at_the_place_of_calibrated_ones_are_refused(job):
    ids, x, rows, _ = TABLES[RAW]
    width = TABLES[DONE][1].shape[1]
    TABLES[DONE] = ids, -x[:, :width], rows, None  # as after the way back
    with pytest.raises(
        DataError, match=r"Name the collection that holds the calibrated rows, and --model job/query-encoder"
    ):
        bertflow.search("job", "the dog")


def test_the_column_of_the_text_is_found_or_named(job):
    ids, x, _, digest = TABLES[DONE]
    titled = [{"title": "a", "body": text, "n": 1} for text in TEXTS]
    TABLES[DONE] = ids, x, titled, digest
    assert bertflow.search("job", TEXTS[5], k=1).hits[0].text == TEXTS[5]
    assert bertflow.search("job", TEXTS[5], k=1, text="title").hits[0].text == "a"
    with pytest.raises(UsageError, match=r"has no column 'nope'. Its columns: title, body, n."):
        bertflow.search("job", TEXTS[5], text="nope")
    TABLES[DONE] = ids, x, [{"one": "a", "two": "b"}] * len(ids), digest
    with pytest.raises(UsageError, match=r"has several columns of text: one, two. Name one with --text, in adapt"):
        bertflow.search("job", TEXTS[5])
    TABLES[DONE] = ids, x, [{}] * len(ids), digest
    assert bertflow.search("job", TEXTS[5], k=1).hits[0].text == ""


def test_a_query_encoder_is_adapted_to_a_collection(job, capsys, monkeypatch):
    monkeypatch.setattr(adapting, "FEW_WORDS", 0)  # the text has few words
    assert main(["adapt", "raw", "--index", RAW, "--pooling", "cls", "--output", "asks"]) == 2
    assert "opened as it was saved. Leave --pooling out." in capsys.readouterr().err
    for place, model in ((RAW, "raw"), ("job", "raw"), ("job", "job/query-encoder")):
        asks = f"asks-{len(model)}-{len(place)}"
        assert main(["adapt", model, "--index", place, "--columns", "text", "--output", asks]) == 0
        assert "fitted    on 48 documents and 2,000 crops" in capsys.readouterr().out
        assert bertflow.search(place, TEXTS[5], k=48, model=asks).hits
        scores = bertflow.evaluate_search(place, LABELS, resamples=0, model=asks)
        assert next(row["system"] for row in scores.rows if row["metric"] == "mrr") == "index as it is"


def test_prompts_of_roles_are_used(job, tiny_bert):
    encoder = bertflow.load(tiny_bert, prompt={"query": "the big ", "document": ""}, device="cpu")
    collection = collections.open_collection(RAW)
    with CollectionIndex(collection, encoder) as asked:
        assert asked.search("dog eats", k=1)[0].text == "the big dog eats"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["add", "job", "--answers", "labels.jsonl"], "own client, with embeddings by bertflow.load('job/query-enc"),
        (["update", DONE, "--answers", "labels.jsonl"], "bertflow.load(ENCODER).encode_document(texts)."),
        (["remove", "job", "8"], "Change its rows with the database's own client, with embeddings by"),
        (["build", DONE, "--answers", "labels.jsonl", "--model", "raw"], "in which nothing is changed. Change its"),
        (["recalibrate", "job", "--calibrate", "whitening"], f"bertflow reindex '{RAW}' '{DONE}-new' --calibrator"),
        (["ask", "job", "the dog", "--engine", "usearch"], "is searched by its database, or with --engine exact"),
        (["evaluate", "job", "--labels", "bad.jsonl"], f"{DONE} lacks 1 right answer: '9999' for"),
        (
            ["evaluate", "job", "--labels", "odd.jsonl"],
            "'nine' for 'the dog' is the first. Add what is missing, leave these",
        ),
    ],
)
def test_what_a_collection_cannot_do_is_one_line(job, tmp_path, capsys, arguments, said):
    (tmp_path / "bad.jsonl").write_text('{"question": "the dog", "id": "9999"}\n', "utf-8")
    (tmp_path / "odd.jsonl").write_text('{"question": "the dog", "id": "nine"}\n', "utf-8")
    code = 3 if "evaluate" in arguments else 2
    error = told(capsys, *arguments, code=code)
    assert said in error
    assert [line[:6] for line in error.splitlines()] == ["note: "] * ("evaluate" in arguments) + ["error:"]


def test_a_job_that_is_not_finished_is_refused(job, tmp_path, capsys):
    write_record(tmp_path / "job" / "reindex.json", {"source": RAW, "target": DONE, "finished": False})
    error = told(capsys, "ask", "job", "the dog", code=3)
    assert "The job in job is not finished. Run the same `bertflow reindex` again to continue it." in error


def test_without_its_source_only_the_calibrated_vectors_are_scored(job, caplog):
    TABLES[RAW] = TABLES[DONE]  # as after a switch
    scores = bertflow.evaluate_search("job", LABELS, resamples=0)
    assert {row["system"] for row in scores.rows} == {"Whitening(n_components=6)"}
    assert f"The raw vectors of {DONE} are not known" in caplog.text


def test_a_collection_says_what_is_in_it(job, capsys):
    out = told(capsys, "info", "job", "--details")
    assert {f"address: {DONE}", f"source: {RAW}", "encoder: job/query-encoder", "n: 48"} <= {*out.splitlines()}
    assert json.loads(told(capsys, "info", RAW, "--json"))["facts"]["dim"] == 16


def test_an_open_collection_stays_open(job):
    with CollectionIndex.open("job") as asked:
        assert bertflow.search(asked, "the dog", k=2).hits == asked.search("the dog", 2)
        assert bertflow.describe_index(asked).address == DONE
        assert len(asked) == 48


def test_a_table_of_lancedb_is_calibrated_and_asked(tmp_path, tiny_bert, monkeypatch):
    lancedb = pytest.importorskip("lancedb", reason="no LanceDB: lancedb is not installed")
    monkeypatch.chdir(tmp_path)
    encoder = bertflow.TransformerEncoder(tiny_bert, device="cpu")
    encoder.save("raw")
    x = encoder.encode(TEXTS)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    rows = zip(IDS, TEXTS, x, strict=True)
    lancedb.connect("db").create_table("docs", [{"id": name, "text": text, "vector": one} for name, text, one in rows])
    made = bertflow.reindex(
        "lancedb:db/docs", "lancedb:db/done", calibrator="whitening(6)", model="raw", progress=False
    )
    calibrated = bertflow.load(made.folder / "query-encoder", device="cpu")
    pairs = Pairs("own", tuple(QUESTIONS), tuple(TEXTS), kind="retrieval")
    report = evaluate_retrieval({"raw": encoder, "whitened": calibrated}, pairs, resamples=0)
    theirs = {row.system: row.value for row in report.rows if row.metric == "hit@1"}
    scores = bertflow.evaluate_search(made.folder, LABELS, resamples=0, device="cpu")
    mine = [row["value"] for row in scores.rows if row["metric"] == "hit@1"]
    assert mine == pytest.approx([theirs["raw"], theirs["whitened"]], abs=1e-3)
    assert bertflow.search(made.folder, TEXTS[5], k=1, device="cpu").hits[0].text == TEXTS[5]
    with pytest.raises(DataError, match="holds vectors of width 6, but"):
        bertflow.search("lancedb:db/done", TEXTS[5], model="raw", device="cpu")

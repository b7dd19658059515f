"""mteb's own evaluator is the second voice: what it makes of our embeddings is what we make of them."""

import numpy as np
import pytest

from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.closed_forms import Whitening
from bertflow.data.pairs import Pairs
from bertflow.data.sts import load_sts
from bertflow.encoder.abstract import AbstractEncoder
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import UsageError
from bertflow.evaluation.evaluating import score_sets
from bertflow.text_keys import hash_texts

mteb = pytest.importorskip("mteb", reason="the mteb extra is not installed")


from bertflow.integrations.mteb import mteb_model  # noqa: E402

from ..texts import WITH_AND, drawn  # noqa: E402

SIMILARITIES = ("cosine", "euclidean", "manhattan")
METRICS = [f"{similarity}_{name}" for similarity in SIMILARITIES for name in ("spearman", "pearson")]
AGREE = 1e-5
"""mteb encodes both sides apart, in other batches: last bits of an embedding decide between ranks that nearly tie."""

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning",  # mteb's own
    "ignore::FutureWarning",
)


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def sentences(n, seed):
    return tuple(drawn(WITH_AND, n, seed, 2, 9))


@pytest.fixture(scope="module")
def pairs():
    gold = np.random.default_rng(2).integers(0, 11, 60) / 2
    first, second = sentences(60, 0), sentences(60, 1)
    return Pairs("mine", first, second, gold, source="a test")


@pytest.fixture(scope="module", params=["raw", "calibrated"])
def system(request, tiny_bert):
    encoder = TransformerEncoder(tiny_bert, device="cpu")
    if request.param == "raw":
        return encoder
    return CalibratedEncoder.fit(encoder, Whitening(n_components=8), list(sentences(80, 3)))


def sts_task(pairs, name):
    """Pairs as a task of mteb, scored by mteb's own code without the hub."""
    from datasets import Dataset, DatasetDict
    from mteb.abstasks.sts import AbsTaskSTS
    from mteb.abstasks.task_metadata import TaskMetadata

    class LocalSts(AbsTaskSTS):
        min_score, max_score = int(np.floor(pairs.target.min())), int(np.ceil(pairs.target.max()))
        metadata = TaskMetadata(
            name=name,
            description=f"{pairs.task} as bertflow read it from {pairs.source}",
            dataset={"path": "bertflow/local", "revision": f"local-{pairs.text_form}"},
            type="STS",
            eval_splits=["test"],
            eval_langs=["eng-Latn"],
            main_score="cosine_spearman",
        )

    task = LocalSts()
    columns = {"sentence1": pairs.first, "sentence2": pairs.second, "score": pairs.target.tolist()}
    task.dataset, task.data_loaded = DatasetDict(test=Dataset.from_dict(columns)), True
    return task


def mteb_scores(system, pairs):
    model = mteb_model(system, "tests/system")
    task = sts_task(pairs, "Mine")
    result = mteb.evaluate(model, [task], cache=None, show_progress_bar=False, co2_tracker=False)
    return result.task_results[0].scores["test"][0]


def our_scores(system, pairs):
    reports = [score_sets({"it": system}, [pairs], similarity, resamples=0) for similarity in SIMILARITIES]
    return {row.metric: row.value for report in reports for row in report.rows if row.aggregation == "all"}


def test_mteb_finds_what_we_find(system, pairs):
    theirs, ours = mteb_scores(system, pairs), our_scores(system, pairs)
    assert {name: theirs[name] for name in METRICS} == pytest.approx({name: ours[name] for name in METRICS}, abs=AGREE)
    assert theirs["main_score"] == theirs["spearman"] == pytest.approx(ours["cosine_spearman"], abs=AGREE)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["sts12", "stsb", "sickr"])
@pytest.mark.parametrize("calibrated", [False, True], ids=["raw", "whitened"])
def test_mteb_finds_what_we_find_on_real_tasks(task, calibrated, minilm, shared_data):
    pairs = load_sts(task, shared_data / "sts")
    system = TransformerEncoder(minilm, pooling="mean(1,2)", device="cpu")
    if calibrated:
        system = CalibratedEncoder.fit(system, Whitening(), [*pairs.first, *pairs.second])
    theirs, ours = mteb_scores(system, pairs), our_scores(system, pairs)
    assert {name: theirs[name] for name in METRICS} == pytest.approx({name: ours[name] for name in METRICS}, abs=AGREE)


def test_its_similarities_are_cosines_in_double_precision(system):
    model = mteb_model(system, "tests/system")
    x = model.encode([{"text": ["the dog runs", "a cat"]}, {"text": ["the house"]}], task_metadata=None)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    assert x.dtype == np.float64
    np.testing.assert_allclose(model.similarity(x, x[:2]), unit @ unit[:2].T, atol=1e-12)
    np.testing.assert_allclose(model.similarity_pairwise(x[:2], x[1:]), (unit[:2] * unit[1:]).sum(1), atol=1e-12)


def test_the_meta_says_how_it_was_made(system):
    meta = mteb_model(system, "tests/system").mteb_model_meta
    assert (meta.name, meta.embed_dim, meta.max_tokens) == ("tests/system", system.dim, 64)
    assert meta.experiment_kwargs["pooling"] == "mean"
    assert meta.similarity_fn_name == "cosine"


class Fitted(AbstractEncoder):
    """An encoder that was fitted on some text."""

    dim = 2

    def __init__(self, text, labels=()):
        self.text, self.labels = text, labels

    def _encode(self, sentences, *_):
        return np.ones((len(sentences), 2), np.float32)

    def describe(self):
        return {"labels": list(self.labels)}

    def fitted_hashes(self):
        return None if self.text is None else hash_texts(self.text)


def trained(data_dir=None, text=(), labels=(), known=None):
    return mteb_model(Fitted(text, labels), "a/b", data_dir, known).mteb_model_meta.training_datasets


def test_text_of_no_task_lists_none(shared_data):
    assert trained(shared_data / "sts", text=["An evaluation set holds no such sentence."], known=[]) == set()


def test_the_sick_test_set_is_a_part_of_what_mteb_calls_sick(shared_data):
    pairs = load_sts("sickr", shared_data / "sts")
    assert "SICK-R" in trained(shared_data / "sts", text=pairs.second[:5])


@pytest.mark.parametrize(
    ("text", "known", "expected"),
    [
        (None, None, None),  # fitted on bare arrays
        (None, [], None),
        (["some text"], [], None),  # no data to compare with
        ((), None, None),  # the encoder's own training is unknown
        ((), [], set()),
        ((), ["STS22"], {"STS22"}),
        (None, ["STS22"], {"STS22"}),
    ],
)
def test_what_is_unknown_is_not_called_unseen(text, known, expected):
    assert trained(text=text, known=known) == expected


def test_labels_count_as_training_data():
    assert trained(labels=["stsb-train", "sickr-train"]) == {"STSBenchmark", "SICK-R"}


def test_mteb_tells_from_it_what_is_zero_shot(shared_data):
    pairs = load_sts("sts16", shared_data / "sts")
    meta = mteb_model(Fitted(pairs.first), "a/b", shared_data / "sts", []).mteb_model_meta
    assert meta.is_zero_shot_on(["STS16"]) is False


def test_a_name_without_an_organization_is_refused(refusal):
    assert refusal(lambda: mteb_model(Fitted(()), "bert"), error=UsageError) == (
        "mteb needs a name such as 'organization/model', got 'bert'. Put an organization first."
    )

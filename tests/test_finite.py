"""No NaN and no infinity leaves a public function: it refuses and names the row, or gives finite numbers alone.

Whatever takes arrays or an encoder has a row in ``ARRAYS`` or ``ENCODERS``, or a reason in ``OTHERS``; a new public
function that has none fails the first test.
"""

import inspect
from functools import cache

import numpy as np
import pytest
import torch

import bertflow
from bertflow.calibration.base import AbstractCalibrator
from bertflow.calibration.closed_forms import AbstractClosedForm
from bertflow.correlation import CORRELATIONS, correlation
from bertflow.data.corpus import Answer
from bertflow.data.pairs import Pairs
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.errors import BertflowError
from bertflow.geometry.cloud import Cloud
from bertflow.geometry.measures import MEASURES
from bertflow.moments import Moments
from bertflow.similarity import SIMILARITIES, unit_rows
from bertflow.store.store import EmbeddingStore

N, DIM, ROW = 120, 16, 57
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, DIM)) @ np.diag(np.linspace(1, 2, DIM)) + 1
TEXTS = [f"sentence {chr(97 + k % 26)}{chr(97 + k // 26)}" for k in range(N)]
BAD = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf, "1e300": 1e300}
"""What a number becomes."""


class Listed(SentenceEncoder):
    """An encoder of somebody else's, which checks nothing: sentence k has row k, any other text the first one."""

    dim = DIM

    def __init__(self, x):
        self.x = np.asarray(x)

    def describe(self):
        return {"encoder": "listed", "pooling": "mean"}

    def encode(self, sentences, progress=None, **_):
        rows = self.x[[TEXTS.index(text) if text in TEXTS else 0 for text in sentences]]
        with np.errstate(over="ignore"):
            return rows.astype(np.float32)

    encode_query = encode


def made(name):
    """A calibrator, not fitted; one of blocks has to know how many they are."""
    return bertflow.Blocks(blocks=2) if name == "Blocks" else getattr(bertflow, name)()


class Spread(Listed):
    """Other texts have good rows that differ."""

    def encode(self, sentences, progress=None, **_):
        rows = [self.x[TEXTS.index(text)] if text in TEXTS else X[len(text) % N] for text in sentences]
        with np.errstate(over="ignore"):
            return np.array(rows).astype(np.float32)


def fit_to(name, x):
    """A calibrator that is fitted to rows, by an encoder if it embeds general text."""
    return made(name).fit_sentences(Spread(x), TEXTS) if name == "Background" else made(name).fit(x)


@cache
def fitted(name):
    """A calibrator that was fitted to good rows."""
    return fit_to(name, X)


@cache
def scores():
    cosines = np.clip(X[:, 0] / 10, -1, 1)
    return bertflow.ScoreCalibrator().fit(X).fit_labels(cosines, cosines + X[:, 1] / 20 > 0.15)


@cache
def domain():
    return bertflow.DomainCheck(unit=False).fit(X[:60], X[60:])


@cache
def bert_flow():
    flow = fitted("FlowCalibrator")
    return bertflow.BertFlow(flow.map, flow.recipe)


def fit(name):
    def numbers(x, _):
        map_ = fit_to(name, x).map
        return np.concatenate([tensor.double().numpy().ravel() for tensor in map_.state_dict().values()])

    return numbers


def moments(x, _):
    found = Moments.of(x)
    return np.concatenate([found.mean, found.covariance.ravel()])


def mapped(x, folder):
    store = EmbeddingStore.build(Listed(X), TEXTS, folder / "store", 1)
    kept = store.rows(range(N))

    def changed(rows):
        return np.where(rows == kept[ROW], x[ROW], rows).astype(np.float32)

    with np.errstate(over="ignore"):
        return store.mapped(changed, folder / "mapped", {}, DIM).rows(range(N))


def vectors(function, **options):
    def call(x, folder):
        np.save(folder / "x.npy", x)
        return function(vectors=folder / "x.npy", output=folder / "out.npy", **options)

    return call


def transformed(x, folder):
    fitted("Whitening").save(folder / "c")
    vectors(bertflow.transform, calibrator=folder / "c")(x, folder)
    return np.load(folder / "out.npy")


def fitted_to_vectors(x, folder):
    found = vectors(bertflow.fit, calibrator="whitening")(x, folder).calibrator
    return found.transform(X)


def classes(base):
    return [
        name for name in bertflow.__all__ if inspect.isclass(it := getattr(bertflow, name)) and issubclass(it, base)
    ]


def of_each(method, narrow=False):
    """A method of each calibrator that has it; ``narrow``: of calibrated rows."""
    return {
        f"{name}.{method}": (
            lambda x, _, name=name: getattr(fitted(name), method)(x[:, : fitted(name).dim_out] if narrow else x)
        )
        for name in classes(AbstractCalibrator)
        if hasattr(getattr(bertflow, name), method) and not (narrow and name == "TwoBand")  # it has no inverse
    }


ARRAYS = {
    "AbstractCalibrator.fit": {f"{name}.fit": fit(name) for name in classes(AbstractCalibrator)},
    "AbstractCalibrator.transform": of_each("transform"),
    "AbstractCalibrator.inverse_transform": of_each("inverse_transform", narrow=True),
    "AbstractDensity.score_samples": of_each("score_samples"),
    "AbstractDensity.score": of_each("score"),
    "AbstractClosedForm.partial_fit": {
        f"{name}.partial_fit": lambda x, _, name=name: made(name).partial_fit(X).partial_fit(x).transform(X)
        for name in classes(AbstractClosedForm)
    },
    "SentenceEncoder.calibrate": {"raw": lambda x, _: Listed(X).calibrate(x)},
    "CalibratedEncoder.calibrate": {
        "calibrated": lambda x, _: bertflow.CalibratedEncoder(Listed(X), fitted("Whitening")).calibrate(x)
    },
    "AbstractEncoder.similarity": {
        "left": lambda x, _: bertflow.AbstractEncoder.similarity(Listed(X), x, X),
        "right": lambda x, _: bertflow.AbstractEncoder.similarity(Listed(X), X, x),
    },
    "AbstractEncoder.similarity_pairwise": {
        "pairwise": lambda x, _: bertflow.AbstractEncoder.similarity_pairwise(Listed(X), x, X)
    },
    "BertFlow.forward": {"forward": lambda x, _: bert_flow()(torch.from_numpy(x)).detach().numpy()},
    "DomainCheck.fit": {
        "text": lambda x, _: bertflow.DomainCheck().fit(x, X).held_out_,
        "held out": lambda x, _: bertflow.DomainCheck().fit(X, x).held_out_,
    },
    "DomainCheck.hold": {"hold": lambda x, _: bertflow.DomainCheck(fitted("Whitening"), False).hold(x).held_out_},
    "DomainCheck.log_likelihood": {"log_likelihood": lambda x, _: domain().log_likelihood(x)},
    "DomainCheck.is_outside": {"is_outside": lambda x, _: domain().is_outside(x)},
    "DomainCheck.percentile": {"percentile": lambda x, _: domain().percentile(x[:, 0])},
    "DomainCheck.drift": {"drift": lambda x, _: [*domain().drift(x[:, 0], x).evidence().values()]},
    "EmbeddingStore.mapped": {"mapped": mapped},
    "Moments.of": {"of": moments},
    "ScoreCalibrator.fit": {
        "fit": lambda x, _: bertflow.ScoreCalibrator().fit(x).percentile(X[:, 0]),
        "queries": lambda x, _: bertflow.ScoreCalibrator().fit(X, queries=x).percentile(X[:, 0]),
    },
    "ScoreCalibrator.fit_labels": {
        "cosines": lambda x, _: (
            bertflow.ScoreCalibrator().fit_labels(x[:, 0] / 9, X[:, 0] + X[:, 1] > 2).probability_.curve(X[:, 0])
        )
    },
    "ScoreCalibrator.percentile": {"percentile": lambda x, _: scores().percentile(x[:, 0])},
    "ScoreCalibrator.share": {"share": lambda x, _: scores().share(x[:, 0])},
    "ScoreCalibrator.probability": {"probability": lambda x, _: scores().probability(x[:, 0])},
    "fit": {"fit --vectors": fitted_to_vectors},
    "transform": {"transform --vectors": transformed},
    # not public names, but what users of the package build on
    "similarities": {
        **{f"{name} paired": lambda x, _, one=one: one.paired(x, X) for name, one in SIMILARITIES.items()},
        **{f"{name} matrix": lambda x, _, one=one: one.matrix(x, X) for name, one in SIMILARITIES.items()},
        "unit_rows": lambda x, _: unit_rows(x),
    },
    "measures": {name: lambda x, _, one=one: one.of(Cloud(x)) for name, one in MEASURES.items()},
    "correlations": {name: lambda x, _, name=name: correlation(name, x[:, 0], X[:, 0]) for name in CORRELATIONS},
}
"""By the name of each: calls that get rows of which one is bad, and a folder, and give numbers."""

PAIRS = Pairs("own", tuple(TEXTS[:60]), tuple(TEXTS[60:]), np.arange(60.0))


def table(folder):
    lines = [f"{a}\t{b}\t{k % 5}" for k, (a, b) in enumerate(zip(TEXTS[:60], TEXTS[60:], strict=True))]
    (folder / "own.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *lines]))
    return folder / "own.tsv"


def text(folder):
    (folder / "text.txt").write_text("\n".join(TEXTS))
    return folder / "text.txt"


def indexed(encoder, folder):
    bertflow.AnswerIndex.create(folder / "an.index", encoder, [Answer(text, text) for text in TEXTS])


def asked(encoder, folder):
    indexed(Listed(X), folder)
    bertflow.AnswerIndex.open(folder / "an.index", encoder, force=True).search(TEXTS[ROW])


ENCODERS = {
    "AbstractCalibrator.fit_sentences": lambda encoder, _: bertflow.Whitening().fit_sentences(encoder, TEXTS),
    "AnswerIndex.create": indexed,
    "AnswerIndex.open": asked,
    "CalibratedEncoder.fit": lambda encoder, _: bertflow.CalibratedEncoder.fit(encoder, bertflow.Center(), TEXTS),
    "CalibratedEncoder": lambda encoder, _: bertflow.CalibratedEncoder(encoder, fitted("Whitening")).encode(TEXTS),
    "DomainCheck.fit_sentences": lambda encoder, _: bertflow.DomainCheck().fit_sentences(encoder, TEXTS, TEXTS),
    "DomainCheck.of_text": lambda encoder, _: bertflow.DomainCheck.of_text(encoder, TEXTS * 4),
    "DomainCheck.report": lambda encoder, _: domain().report(encoder, TEXTS),
    "EmbeddingStore.build": lambda encoder, folder: EmbeddingStore.build(encoder, TEXTS, folder / "s"),
    "EmbeddingStore.build_streamed": lambda encoder, folder: EmbeddingStore.build_streamed(
        encoder, lambda: iter(TEXTS), folder / "s"
    ),
    "ScoreCalibrator.fit_sentences": lambda encoder, _: bertflow.ScoreCalibrator().fit_sentences(encoder, TEXTS),
    "adapt": lambda encoder, folder: bertflow.adapt(encoder, [text(folder)], output=folder / "q"),
    "compare": lambda encoder, folder: bertflow.compare(encoder, encoder, TEXTS, text(folder)),
    "embed": lambda encoder, folder: bertflow.embed([text(folder)], store=folder / "s", model=encoder),
    "evaluate_sts": lambda encoder, folder: bertflow.evaluate_sts({"a": encoder}, str(table(folder)), resamples=0),
    "evaluate_binary": lambda encoder, _: bertflow.evaluate_binary(
        {"a": encoder}, Pairs("own", PAIRS.first, PAIRS.second, np.arange(60) % 2, "binary"), resamples=0
    ),
    "evaluate_retrieval": lambda encoder, _: bertflow.evaluate_retrieval(
        {"a": encoder}, Pairs("own", PAIRS.first, PAIRS.second, kind="retrieval"), resamples=0
    ),
    "evaluate": lambda encoder, folder: bertflow.evaluate([encoder], tasks=str(table(folder)), compare="raw"),
    "inspect_geometry": lambda encoder, folder: bertflow.inspect_geometry(encoder, text(folder)),
    "score": lambda encoder, folder: bertflow.score(encoder, [("a", "b")], fit_on=text(folder), false_match_rate=0.1),
}
"""By the name of each: calls that get an encoder, of which one embedding is bad, and a folder."""

OTHERS = {
    "AbstractCalibrator.with_gap": "takes the gap of moments",
    "AbstractTokenEncoder.vectors": "takes tokens and numbers of sentences",
    "BertFlow.embed": "gives back the tensor that it is given",
    "BertFlow.loss": "a step of the training, which stops where its loss is not finite",
    "BertFlow.nll": "the same",
    "BertFlow.training_step": "the same",
    "BertFlow.validation_step": "the same",
    "DomainCheck.find": "compares what the encoder says of itself",
    "DomainCheck.load": "compares what the encoder says of itself",
    "EmbeddingStore.rows": "takes numbers of rows",
    "load": "opens an encoder, or gives back the one that it is given",
    "Moments": "refuses what is not finite in tests/test_moments.py; it has no rows",
    "Moments.from_arrays": "the same",
    "Provenance": "takes hashes",
    "Provenance.of": "takes hashes",
    "AnswerIndex": "opened by AnswerIndex.open",
    "CollectionIndex": "reads rows out of a database, in tests/retrieval/test_collection_index.py",
    "CollectionIndex.percentiles": "takes cosines",
    "ScoreCalibrator.load": "compares what the encoder says of itself",
    "TransformerEncoder": "takes counts of tokens, in tests/encoder/test_seen_text.py",
    "TransformerEncoder.padded": "takes numbers of tokens",
    "export_encoder": "writes the encoders of this package alone, which refuse such embeddings when they make them",
    "reindex": "reads rows out of a database, and refuses them by their id in tests/runs/test_reindexing.py",
    "fix": "reads the text once by ``encode`` of an encoder of this package, in tests/advise",
}
"""Those that take an array or an encoder and give no number that depends on its rows."""


def taking(*words):
    """Names of public functions, and of methods of public classes, one of whose parameters is of such a type."""
    for name in bertflow.__all__:
        thing = getattr(bertflow, name)
        found = [(name, thing)] if not inspect.isclass(thing) else [(name, vars(thing).get("__init__", None))]
        for method in dir(thing) if inspect.isclass(thing) else ():
            function = inspect.getattr_static(thing, method)
            found.append(("", getattr(function, "__func__", function)) if method[0] != "_" else ("", None))
        for known, function in found:
            ours = (getattr(function, "__module__", None) or "").startswith("bertflow")
            if ours and inspect.isfunction(function):
                kinds = [str(one.annotation) for one in inspect.signature(function).parameters.values()]
                if any(word in kind for kind in kinds for word in words):
                    yield known or function.__qualname__


def test_whatever_takes_arrays_or_an_encoder_is_in_a_table():
    found = {*taking("NDArray", "ndarray", "SupportsArray", "Tensor"), *taking("SentenceEncoder")}
    assert sorted(found - {*ARRAYS, *ENCODERS, *OTHERS}) == [], "add them to ARRAYS or ENCODERS of this file"
    assert sorted(OTHERS.keys() - found) == []


CALLS = {name: call for calls in ARRAYS.values() for name, call in calls.items()}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", CALLS)
def test_an_array_with_a_bad_number_is_refused_by_its_row(name, bad, tmp_path):
    x = X.copy()
    x[ROW, 0] = BAD[bad]
    found, said = None, str(ROW)
    try:
        found = CALLS[name](x, tmp_path)
    except BertflowError as error:
        said = str(error)
    assert str(ROW) in said
    assert found is None or (bad == "1e300" and np.isfinite(found).all())


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        pytest.param(name, bad, marks=pytest.mark.slow if bad != "nan" or name == "inspect_geometry" else ())
        for name in ENCODERS
        for bad in BAD
    ],
)
def test_an_encoder_with_a_bad_embedding_is_refused(name, bad, tmp_path):
    x = X.copy()
    x[ROW, 0] = BAD[bad]
    with pytest.raises(BertflowError) as caught:
        ENCODERS[name](Listed(x), tmp_path)
    message = str(caught.value)
    assert any(said in message for said in (TEXTS[ROW], "row ", "Row ", "Sentence ", "sentence ")), message
    assert "\n" not in message


def test_good_numbers_are_finite(tmp_path):
    for name, call in CALLS.items():
        (folder := tmp_path / name.replace(" ", "_")).mkdir()
        assert np.isfinite(call(X, folder)).all(), name

"""What the first edition wrote still opens, is resumed and is compared, and gives the vectors that it gave then.

``fixtures/edition1/README.md`` says how each artefact was made. A row of ``ARTEFACTS`` is one of them, how a user opens
it today, which of the kept vectors it has to give, and how near they have to come on another processor.
"""

import csv
import json
import os
import shutil
import warnings
from contextlib import redirect_stdout
from importlib.metadata import version
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import bertflow
from bertflow.cli import main
from bertflow.encoder.static import StaticEncoder, WordVectorEncoder
from bertflow.errors import DataError
from bertflow.export.golden import Golden
from bertflow.export.onnx_encoder import OnnxEncoder
from bertflow.opening import load

EDITION = Path(__file__).parent / "fixtures" / "edition1"
WRITTEN_IN = "/tmp/edition1"
"""The folder the artefacts were written in: what records whole paths records these."""
EXPECTED = load_file(EDITION / "expected.safetensors")
SENTENCES = (EDITION / "sentences.txt").read_text("utf-8").splitlines()
CORPUS = (EDITION / "corpus.txt").read_text("utf-8").splitlines()
PROBE = json.loads((EDITION / "probe.json").read_text("utf-8"))
QUESTIONS = ["the bird sleeps", "red house"]
ANSWERS = ["delete", "cost", "where", "late"]
COSINES = np.linspace(-1, 1, 21)

EXACT = 0.0  # read, not computed
MAPPED = 2e-5  # kept rows through a map: other processors sum in another order
ENCODED = 1e-4  # through a transformer, and perhaps a calibrator, which enlarges small directions
TRAINED = 5e-4  # some steps of training on top
HALF = 2e-2  # float16 weights or rows: every processor has last digits of its own

pytestmark = [
    pytest.mark.filterwarnings("ignore::bertflow.errors.NullDirectionWarning"),  # few words, 16 dimensions
    pytest.mark.filterwarnings("ignore:The number of training batches"),  # logged every 50 steps, 7 an epoch
]


def copy(folder):
    """A copy of the artefacts, which may be written to; the whole paths in it are its own."""
    shutil.copytree(EDITION, folder)
    for record in (*folder.glob("ray/*/manifest.json"), folder / "transform" / ".z.npy.journal"):
        record.write_text(record.read_text("utf-8").replace(WRITTEN_IN, str(folder)), "utf-8")
    return folder


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """One copy for all that write into their own artefact alone."""
    return copy(tmp_path_factory.mktemp("copied") / "edition1")


@pytest.fixture(autouse=True)
def _there(copied, monkeypatch):
    """Paths are relative to the copy, as they were when the artefacts were written."""
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.chdir(copied)


def kept(name):
    """The kept arrays of an artefact, by their names."""
    return {key.removeprefix(f"{name}/"): array for key, array in EXPECTED.items() if key.startswith(f"{name}/")}


# How each kind is opened


def encoder(path="tiny-bert", pooling=None):
    return bertflow.TransformerEncoder(path, pooling=pooling, device="cpu")


def calibrated(path):
    return bertflow.CalibratedEncoder.load(path, device="cpu")


def apart(pooling, calibrator):
    """The first encoder under another name, and a calibrator of its own folder."""
    shutil.copytree("tiny-bert", "renamed", dirs_exist_ok=True)
    return bertflow.CalibratedEncoder(encoder("renamed", pooling), bertflow.load_calibrator(calibrator))


def open_calibrator(path):
    calibrator = bertflow.load_calibrator(path)
    z = calibrator.transform(EXPECTED["rows/x" if calibrator.dim_in == 16 else "rows/wide"])
    found = {"z": z, "x": calibrator.inverse_transform(z)}
    if hasattr(calibrator, "score_samples"):
        found["density"] = calibrator.score_samples(EXPECTED["rows/x" if calibrator.dim_in == 16 else "rows/wide"])
    return found


def behind(raw):
    """A calibrator alone, behind the encoder that it was fitted on."""
    return lambda path: {"z": bertflow.CalibratedEncoder(raw(), bertflow.load_calibrator(path)).encode(PROBE)}


def open_saved(path):
    return {"x": encoder(path).encode(PROBE)}


def open_calibrated(path):
    return {"z": calibrated(path).encode(PROBE)}


def open_by_name(path):
    """As a server or ``bertflow search`` opens what a user names."""
    return {"z": load(path, device="cpu").encode(PROBE)}


def store_rows(store):
    return {"rows": store.rows(range(len(store))), "row_ids": store.row_ids, "text_hashes": store.text_hashes}


def open_store(path):
    store = bertflow.EmbeddingStore.open(path)
    store.verify()
    return store_rows(store)


def continue_store(build):
    """A store whose process was killed: what was done is kept, the rest is computed."""

    def finish(path):
        record = Path(path, "store.json")
        # A store that is not finished is refused by other versions than began it.
        facts = json.loads(record.read_text("utf-8"))
        facts["versions"] = {name: version(name) for name in facts["versions"]}
        record.write_text(json.dumps(facts), "utf-8")
        before = {shard: shard.stat().st_mtime_ns for shard in Path(path, "done").iterdir()}
        assert 0 < len(before) < facts["shards"]
        store = build(encoder(pooling="mean(1,2)"), path)
        assert {shard: shard.stat().st_mtime_ns for shard in before} == before, "shards that were done are kept"
        return store_rows(store)

    return finish


def continue_transform(path):
    journal = json.loads(Path(path, ".z.npy.journal").read_text("utf-8"))
    changed = journal["job"]["rows"]["changed"]
    os.utime("rows.npy", ns=(changed, changed))
    command = ["transform", "--calibrator=calibrators/whitening-8", "--vectors=rows.npy", f"--output={path}/z.npy"]
    with redirect_stdout(StringIO()) as printed:
        assert main(command) == 0
    assert f"{journal['rows']} of them there already" in printed.getvalue()
    return {"z": np.load(f"{path}/z.npy")}


def open_run(path):
    rows = np.load("rows.npy")[:12]
    return {"z": bertflow.load_calibrator(f"{path}/calibrator").transform(rows), "metrics": metrics(path)}


def metrics(path):
    rows = list(csv.reader(Path(path, "metrics.csv").read_text("utf-8").splitlines()))[1:]
    return np.array([[float(cell or "nan") for cell in row] for row in rows])


def resume(command, path, step):
    assert main([command, f"--config={path}/config.yaml", f"--output={path}", "--resume=auto"]) == 0
    facts = json.loads(Path(path, "run.json").read_text("utf-8"))
    assert (facts["status"], facts["resumed"][0]["step"]) == ("done", step)


def continue_training(step):
    """A run that was killed comes to the end of the one that was not: the same calibrator, weights and metrics."""

    def finish(path):
        resume("train", path, step)
        state = torch.load(f"{path}/checkpoints/last.ckpt", weights_only=True)["state_dict"]
        return open_run(path) | {f"weights/{name}": tensor.numpy() for name, tensor in state.items()}

    return finish


def open_tuned(path):
    described = encoder(f"{path}/encoder").describe()
    assert described["labels"] == ["pairs"]
    return {"x": encoder(f"{path}/encoder").encode(PROBE), "metrics": metrics(path)}


def continue_tuning(path):
    resume("finetune", path, 4)
    return open_tuned(path)


def ask(system):
    """An index, opened with the encoder that it was built with."""

    def search(path):
        with bertflow.AnswerIndex.open(f"{path}.index", system()) as index:
            hits = index.search_many(QUESTIONS, 3)
        return {
            "scores": np.array([[hit.score for hit in row] for row in hits]),
            "places": np.array([[ANSWERS.index(hit.id) for hit in row] for row in hits]),
        }

    return search


def open_scores(system):
    def score(path):
        scores = bertflow.ScoreCalibrator.load(Path(path).parent, system())
        at = scores.threshold(0.05)
        return {
            "share": scores.share(COSINES),
            "probability": scores.probability(COSINES),
            "threshold": np.array([at.value, at.low, at.high, at.rate_low, at.rate_high, at.independent]),
        }

    return score


def open_domain(raw):
    def check(path):
        domain = bertflow.DomainCheck.load(Path(path).parent, raw())
        likely = domain.log_likelihood(raw().encode(SENTENCES[260:270]))
        drift = domain.drift(likely)
        return {
            "log_likelihood": likely,
            "percentile": domain.percentile(likely),
            "drift": np.array([drift.p_value, drift.ks, drift.shift, drift.auroc]),
        }

    return check


WORDS = [text for text in PROBE if text]


def open_exported(path):
    return {"z": bertflow.load_sentence_transformer(path, device="cpu").encode(WORDS)}


def open_as_strangers_do(path):
    """By sentence-transformers itself, which imports the classes that ``modules.json`` names."""
    from sentence_transformers import SentenceTransformer

    return {"z": SentenceTransformer(path, device="cpu", trust_remote_code=True).encode(WORDS)}


def open_golden(path):
    golden = Golden.read(Path(path).parent)
    return {
        "vectors": bertflow.load_sentence_transformer(Path(path).parent, device="cpu").encode(golden.sentences),
        "suspect": next(iter(golden.suspects.values())),
        "tokens": np.array(golden.tokens),
    }


def open_card(path):
    """Measured results go into the card of an export of the same encoder."""
    command = ["export", "calibrated/whitening", "--target=safetensors", f"--results={path}", "--output=out"]
    assert main(command) == 0
    assert "cosine_spearman" in Path("out/README.md").read_text("utf-8")
    return open_calibrated("out")


class InProcess:
    """What the recipe asks of ``ray.data``, one row after the other in this process."""

    def __init__(self, rows, override_num_blocks=None):
        self.rows = rows

    def map(self, kind, fn_constructor_args, **_):
        self.worker = kind(*fn_constructor_args)
        return self

    def iter_rows(self):
        return map(self.worker, self.rows)


def embed(path, pooling="mean(1,2)"):
    import ray.data

    from bertflow.integrations.ray import embed_with_ray

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ray.data, "from_items", InProcess)
        return embed_with_ray(["ray/a.parquet", "ray/b.txt"], path, lambda: encoder(pooling=pooling), piece=10)


def continue_ray(path):
    import pyarrow.parquet as pq

    before = {piece: piece.stat().st_mtime_ns for piece in Path(path, "done").iterdir()}
    moments = embed(path)
    assert {piece: piece.stat().st_mtime_ns for piece in before} == before, "pieces that were done are kept"
    tables = [pq.read_table(piece) for piece in sorted(Path(path, "vectors").iterdir())]
    return {
        "mean": moments.mean,
        "scatter": moments.scatter,
        "n": np.array(moments.n),
        "row": np.concatenate([np.array(table["row"]) for table in tables]),
        "vector": np.concatenate([np.stack(table["vector"].to_numpy()) for table in tables]),
    }


# The table

whitened, flowed, sif, mean = (
    lambda: calibrated("calibrated/whitening"),
    lambda: calibrated("calibrated/flow"),
    lambda: encoder("encoders/sif"),
    lambda: encoder("encoders/mean"),
)
CALIBRATORS = [
    "center",
    "standardize",
    "abtt",
    "abtt-5",
    "whitening",
    "whitening-8",
    "whitening-of-sentences",
    "flow",
    "flow-8",
    "flow-of-sentences",
    "flow-of-few",
    "flow-of-one",
    "flow-left-alone",
    "paper-tf",
    "paper-text",
]
STRANGERS = ["dense-legacy", "dense-modern", "flow", "calibration-half", "pooler", "cls-prompted", "layers-sif"]
ARTEFACTS = [
    *((f"calibrators/{name}", open_calibrator, None, MAPPED) for name in CALIBRATORS),
    ("calibrators/words", behind(lambda: WordVectorEncoder("words.vec")), None, MAPPED),
    ("calibrators/words-sif", behind(lambda: WordVectorEncoder("words.vec", "sif").count_words(SENTENCES)), None,
     MAPPED),
    ("calibrators/static", behind(lambda: StaticEncoder("tiny-bert")), None, MAPPED),
    ("calibrators/static-sif", behind(lambda: StaticEncoder("tiny-bert", "sif").count_tokens(SENTENCES)), None,
     MAPPED),
    *((f"encoders/{name}", open_saved, None, ENCODED) for name in ("mean", "rows", "pooler", "sif", "prompted")),
    ("encoders/half", open_saved, None, HALF),
    *((f"calibrated/{name}", open_calibrated, None, ENCODED) for name in ("whitening", "center", "flow", "tuned")),
    *((f"calibrated/{name}", open_by_name, None, ENCODED) for name in ("whitening", "center", "flow", "tuned")),
    *((f"stores/{name}", open_store, None, EXACT) for name in ("float32", "float16", "calibrated")),
    ("stores/half", continue_store(lambda e, path: bertflow.EmbeddingStore.build(e, CORPUS, path)), "stores/float32",
     ENCODED),
    ("stores/half-streamed", continue_store(lambda e, path: bertflow.EmbeddingStore.build_streamed(e, lambda: CORPUS,
     path)), "stores/float16", HALF),
    ("transform", continue_transform, None, MAPPED),
    ("trained/flow", open_run, "trained/flow", MAPPED),
    ("trained/ema", open_run, "trained/ema", MAPPED),
    ("trained/flow-half", continue_training(16), "trained/flow", TRAINED),
    ("trained/ema-half", continue_training(1000), "trained/ema", TRAINED),
    ("trained/tuned", open_tuned, None, ENCODED),
    ("trained/tuned-half", continue_tuning, "trained/tuned", TRAINED),
    ("indexes/calibrated", ask(whitened), None, ENCODED),
    ("indexes/flow", ask(flowed), None, ENCODED),
    ("indexes/raw", ask(sif), None, ENCODED),
    ("indexes/calibrated", ask(lambda: apart("mean(1,2)", "calibrated/whitening/calibrator")), None, ENCODED),
    ("calibrated/whitening/scores", open_scores(whitened), None, MAPPED),
    ("encoders/mean/scores", open_scores(mean), None, MAPPED),
    ("calibrated/whitening/domain", open_domain(lambda: encoder("calibrated/whitening/encoder")), None, ENCODED),
    ("encoders/mean/domain", open_domain(mean), None, ENCODED),
    *((f"exports/{name}", open_exported, None, HALF if "half" in name else ENCODED) for name in STRANGERS),
    *((f"exports/{name}", open_as_strangers_do, None, HALF if "half" in name else ENCODED) for name in STRANGERS),
    ("exports/flow/golden", open_golden, None, ENCODED),
    ("exports/cls-prompted/golden", open_golden, None, ENCODED),
    ("exports/onnx", lambda path: {"z": OnnxEncoder(path).encode(WORDS)}, None, ENCODED),
    ("exports/safetensors", lambda path: {"z": calibrated(path).encode(WORDS)}, None, ENCODED),
    ("report/results.json", open_card, "calibrated/whitening", ENCODED),
    ("ray/done", continue_ray, "ray", MAPPED),
    ("ray/half", continue_ray, "ray", ENCODED),
]  # fmt: skip


@pytest.mark.parametrize(
    ("artefact", "opened", "wanted", "tolerance"),
    ARTEFACTS,
    ids=[f"{row[0]} {getattr(row[1], '__name__', '')}" for row in ARTEFACTS],
)
def test_what_was_written_gives_the_vectors_that_it_gave(artefact, opened, wanted, tolerance):
    found, expected = opened(artefact), kept(wanted or artefact)
    for name in found:
        np.testing.assert_allclose(found[name], expected[name], rtol=tolerance, atol=tolerance, err_msg=name)
    assert found.keys() >= {name for name in expected if "/" not in name}


# What belongs to another encoder, text or run is refused, as it was then

REFUSED = {
    "a calibrator of another pooling": lambda: apart("mean(1)", "calibrators/flow-of-sentences"),
    "a calibrator of another layer": lambda: apart("mean(0)", "calibrators/whitening-of-sentences"),
    "a calibrator of word vectors": lambda: behind(lambda: WordVectorEncoder("words.vec", "sif"))("calibrators/words"),
    "an index of another encoder": lambda: ask(mean)("indexes/raw"),
    "an index of another calibrator": lambda: ask(
        lambda: apart("mean(1,2)", "calibrators/flow-of-sentences")
    )("indexes/calibrated"),
    "an index of a calibrator, without one": lambda: ask(lambda: encoder(pooling="mean(1,2)"))("indexes/calibrated"),
    "scores of another encoder": lambda: open_scores(sif)("encoders/mean/scores"),
    "scores of a calibrator, without one": lambda: open_scores(
        lambda: encoder("calibrated/whitening/encoder")
    )("calibrated/whitening/scores"),
    "scores of another calibrator": lambda: open_scores(
        lambda: apart("mean(1,2)", "calibrators/flow-of-sentences")
    )("calibrated/whitening/scores"),
    "a domain of another pooling": lambda: open_domain(lambda: encoder(pooling="cls"))("encoders/mean/domain"),
    "a store of another pooling": lambda: bertflow.EmbeddingStore.build(encoder(), CORPUS, "stores/float32"),
    "a store of other text": lambda: bertflow.EmbeddingStore.build(
        encoder(pooling="mean(1,2)"), SENTENCES, "stores/float32"
    ),
    "vectors of another pooling": lambda: embed("ray/half", "cls"),
}  # fmt: skip


@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED.keys())
def test_what_belongs_to_something_else_is_refused(refused):
    with pytest.raises(DataError):
        refused()


RESUMED = ["train", "--config=trained/flow-half/config.yaml", "--output=trained/flow-half", "--resume=auto"]
REFUSED_COMMANDS = {
    "a run of other options": ([*RESUMED, "--flow.learning_rate=0.5"], 2, "with flow.learning_rate=0.005, but now"),
    "a run of other text": ([*RESUMED, "--data.sentences=corpus.txt"], 2, "with data.sentences=sentences.txt, but now"),
    "a run of another encoder": (RESUMED, 3, "was made by tiny-bert with pooling 'mean(1,2)', weights "),
    "rows of another pooling": (["transform", "--calibrator=calibrators/static", "--store=stores/float32",
     "--output=out"], 3, "another pooling makes other embeddings"),
}  # fmt: skip


@pytest.mark.parametrize(("command", "code", "message"), REFUSED_COMMANDS.values(), ids=REFUSED_COMMANDS.keys())
def test_what_was_made_otherwise_is_not_gone_on_with(command, code, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(copy(tmp_path / "edition1"))
    if command is RESUMED:  # the same name, other weights
        shutil.copy("trained/tuned/encoder/model.safetensors", "tiny-bert/model.safetensors")
    assert main(command) == code
    assert message in capsys.readouterr().err

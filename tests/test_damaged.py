"""Damaged artefacts of every kind, opened as a user opens them: one line of error, or the vectors that were kept.

A row of ``ARTEFACTS`` says how a folder or file is written, and by which door it is opened. Each of its JSON values,
arrays and files is changed in each way of the three tables of changes:

    as it is    the checksums have to find it, or it changes nothing: equal vectors, or one line
    accepted    the checksums are made to agree: finite vectors, or one line

What comes out otherwise is a traceback, a NaN, or something left behind.
"""

import json
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice, pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from sklearn.base import clone

import bertflow
from bertflow import records
from bertflow.cli import main
from bertflow.errors import BertflowError
from bertflow.export.golden import Golden
from bertflow.export.onnx_encoder import OnnxEncoder
from bertflow.export.targets import write_export
from bertflow.opening import load
from bertflow.records import EXPORT
from bertflow.runs import read_run

from .texts import NOUNS

FULL = ("the bird sleeps", "a big red house", "the dog eats in the garden .")
FORMS = product(("a", "the"), ("big", "small", "red"), NOUNS, ("runs", "sleeps", "sings"), NOUNS)
TEXT = [f"{a} {size} {noun} {verb} in the {place} ." for a, size, noun, verb, place in islice(FORMS, 0, 600, 2)]
RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 16)).astype(np.float32)
COSINES = np.linspace(-1, 1, 11)

# How a user opens each kind


def calibrator(path):
    opened = bertflow.load_calibrator(path)
    z = opened.transform(X)
    found = {"z": z, "x": opened.inverse_transform(z)}
    return found | ({"density": opened.score_samples(X)} if hasattr(opened, "score_samples") else {})


def encoder(path, **options):
    return {"x": load(path, device="cpu", **options).encode(list(FULL))}


def exported(path):
    return {"x": bertflow.load_sentence_transformer(path, device="cpu").encode(list(FULL))}


def onnx(path):
    return {"x": OnnxEncoder(path).encode(list(FULL))}


def run(path):
    read_run(path)
    return encoder(path)


def golden(path):
    kept = Golden.read(path)
    return {"vectors": np.array(kept.vectors), "suspect": np.array(next(iter(kept.suspects.values())))}


def scores(path):
    kept = bertflow.ScoreCalibrator.load(path, None)
    at = kept.threshold(0.1)
    return {"share": kept.share(COSINES), "probability": kept.probability(COSINES), "at": np.array([at.value, at.low])}


def domain(path):
    kept = bertflow.DomainCheck.load(path, None)
    likely = kept.log_likelihood(X)
    drift = kept.drift(likely)
    return {"likely": likely, "at": kept.percentile(likely), "drift": np.array([drift.p_value, drift.shift])}


def index(path):
    bertflow.describe_index(path)
    with bertflow.AnswerIndex.open(path, calibrated("whitening")) as opened:
        hits = opened.search_many(list(FULL), 2)
        assert all(answer.text for answer in opened.answers())
    return {"scores": np.array([[hit.score for hit in row] for row in hits])}


# How each kind is written: beside a folder bert/ and a file text.txt, whose names stand in runs


QUICK = {"epochs": 8, "batch_size": 32, "learning_rate": 5e-3, "glow": {"hidden": 8}}
CALIBRATORS = {
    "center": bertflow.Center(),
    "standardize": bertflow.Standardize(),
    "abtt": bertflow.AllButTheTop(),
    "whitening": bertflow.Whitening(12),
    "flow": bertflow.FlowCalibrator(n_components=8, changes=QUICK),
    "flow of one": bertflow.FlowCalibrator(n_components=1, changes=QUICK),
}


def raw(pooling="mean(1,2)"):
    opened = bertflow.TransformerEncoder("bert", pooling, device="cpu")
    return opened.count_tokens(TEXT) if "sif" in pooling else opened


@cache
def calibrated(name):
    return bertflow.CalibratedEncoder.fit(raw(), clone(CALIBRATORS[name]), TEXT)


def write_calibrator(name, place):
    clone(CALIBRATORS[name]).fit(raw().encode(TEXT)).save(place)


def write_tuned(place):
    rows = [f"{first}\t{second}\t{k % 6}" for k, (first, second) in enumerate(pairwise(TEXT[:40]))]
    Path("pairs.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *rows]))
    options = ["--finetune.objective=regression", "--data.pairs=pairs.tsv", "--finetune.epochs=1"]
    assert main(["finetune", *RUN, *options, f"--output={place}-run"]) == 0
    shutil.copytree(f"{place}-run/encoder", place)


RUN = ("--encoder.model=bert", "--encoder.device=cpu", "--trainer.accelerator=cpu",
       "--trainer.enable_progress_bar=false")  # fmt: skip
FLOW = ("--data.sentences=text.txt", "--encoder.pooling=mean(1,2)", "--report=false", "--flow.glow.hidden=8",
        "--flow.learning_rate=0.005", "--flow.batch_size=32", "--flow.epochs=1")  # fmt: skip


def write_run(place, *options):
    assert main(["train", *RUN, *FLOW, *options, f"--output={place}"]) == 0
    shutil.rmtree(place / "checkpoints")


def write_vectors(place):
    rows = np.random.default_rng(1).normal(size=(12, 16))
    words = ("the", "bird", "sleeps", "a", "big", "red", "house", "dog", "eats", "in", "garden", ".")
    lines = (f"{word} {' '.join(map(str, row.round(4)))}\n" for word, row in zip(words, rows, strict=True))
    place.write_text("".join(lines))


def write_foreign(place):
    """A folder as sentence-transformers writes it: an export without what only bertflow reads."""
    write_export(raw("cls"), place, "sentence-transformers")
    shutil.rmtree(place / "encoder")
    (place / EXPORT).unlink()
    (place / "golden.json").unlink()


def write_index(place):
    answers = [bertflow.Answer(text[:9], text, (text[2:],)) for text in ("the dog eats", "a cat sleeps in the house")]
    bertflow.AnswerIndex.create(place, calibrated("whitening"), answers).close()


def write_golden(place):
    write_export(calibrated("flow"), Path(f"{place}-export"), "sentence-transformers")
    place.mkdir()
    shutil.copy(f"{place}-export/golden.json", place)


def write_scores(place):
    cosines = np.linspace(-1, 1, 40)
    fitted = bertflow.ScoreCalibrator().fit_sentences(calibrated("whitening"), TEXT[:50])
    place.mkdir()
    fitted.fit_labels(cosines, cosines + np.tile([0.3, -0.3], 20) > 0.1).save(place)


def write_domain(place):
    place.mkdir()
    bertflow.DomainCheck.of_text(raw(), TEXT).save(place)


@dataclass(frozen=True)
class Artefact:
    """How it is opened, and how it is written.

    ``exact``: it has checksums. ``inputs``: how many changes are tried, in the fast tests and in the slow ones.
    """

    opened: Callable[[Path], dict[str, Any]]
    write: Callable[[Path], object]
    exact: bool = True
    inputs: tuple[int, int] = (3, 250)


def export(name, target, **options):
    return lambda place: write_export(calibrated(name), place, target, **options)


MANY, SLOW = (12, 600), (0, 150)
ST = "sentence-transformers"
ARTEFACTS = {
    **{name: Artefact(calibrator, partial(write_calibrator, name), True, MANY) for name in CALIBRATORS},
    "calibrated": Artefact(encoder, lambda place: calibrated("center").save(place)),
    "calibrated flow": Artefact(encoder, lambda place: calibrated("flow").save(place)),
    "saved encoder": Artefact(encoder, lambda place: raw("sif(1)").save(place)),
    "fine-tuned encoder": Artefact(encoder, write_tuned),
    "run": Artefact(run, write_run),
    "run of another encoder": Artefact(run, lambda place: write_run(place, "--save_encoder=false")),
    "transformers": Artefact(encoder, partial(shutil.copytree, "bert"), exact=False),
    "word embeddings": Artefact(partial(encoder, pooling="static"), partial(shutil.copytree, "bert"), exact=False),
    "words.vec": Artefact(encoder, write_vectors, False, (20, 2000)),
    ST: Artefact(encoder, write_foreign, exact=False),
    "modules of ours": Artefact(exported, export("flow", ST), False, SLOW),
    "modules of theirs": Artefact(exported, export("whitening", ST, layout="modern"), False, SLOW),
    "export": Artefact(encoder, export("whitening", ST)),
    "onnx": Artefact(onnx, export("whitening", "onnx"), True, SLOW),
    "golden": Artefact(golden, write_golden, True, MANY),
    "scores": Artefact(scores, write_scores, True, MANY),
    "domain": Artefact(domain, write_domain, True, MANY),
    "an.index": Artefact(index, write_index, False, MANY),
}

# How they are damaged

VALUES = {
    "null": "null",
    "true": "true",
    "a text": '"x"',
    "a list": "[]",
    "an object": "{}",
    "zero": "0",
    "negative": "-3",
    "a fraction": "1.5",
    "large": "1000000007",
    "huge": f"1{30 * '0'}",
    "5,000 digits": 5000 * "9",
    "NaN": "NaN",
    "beyond a float": "1e999",
    "deep": 100 * "[" + 100 * "]",
    "too deep": 100_000 * "[",
    "a path above": '"../x"',
    "a whole path": '"/etc/passwd"',
    "a NUL": '"\\u0000"',
    "half a pair": '"\\ud800"',
    "long": '"' + 5000 * "a" + '"',
}
"""What takes the place of a JSON value, spelled out; one more change leaves the key out."""
HERE = "@here@"


def places(value, path=()):
    """Where values are in a JSON value; of a list the first and the last."""
    if path:
        yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list):
        for at in sorted({0, len(value) - 1} & set(range(len(value)))):
            yield from places(value[at], (*path, at))


def with_value(record, place, spelled):
    """A JSON text with one value replaced; None leaves it out."""
    record = json.loads(json.dumps(record))
    *outer, last = place
    inner = record
    for key in outer:
        inner = inner[key]
    if spelled is None:
        del inner[last]
        return json.dumps(record)
    inner[last] = HERE
    return json.dumps(record).replace(f'"{HERE}"', spelled)


def into_folder(path):
    path.unlink()
    path.mkdir()


def into_link(target, path):
    path.unlink()
    path.symlink_to(target or path.name)


def into_bytes(change, path):
    path.write_bytes(change(path.read_bytes()))


def flipped(seed, content):
    """One bit is another: anywhere, or in what may be a header."""
    content, chance = bytearray(content), random.Random(seed)
    at = chance.randrange(min(64, len(content)) if seed % 2 else len(content))
    content[at] ^= 1 << chance.randrange(8)
    return bytes(content)


FILES = {
    "missing": Path.unlink,
    "a folder": into_folder,
    "a link to itself": partial(into_link, None),
    "a link to nothing": partial(into_link, "nothing"),
    "a link to a device": partial(into_link, "/dev/zero"),
    "empty": partial(into_bytes, lambda content: b""),
    "half": partial(into_bytes, lambda content: content[: len(content) // 2]),
    "a byte short": partial(into_bytes, lambda content: content[:-1]),
    "a byte long": partial(into_bytes, lambda content: content + b"\0"),
    "noise": partial(into_bytes, lambda content: random.Random(0).randbytes(3000)),
    "a JSON list": partial(into_bytes, lambda content: b"[]"),
    "a JSON text": partial(into_bytes, lambda content: b'"x"'),
    **{f"flipped {seed}": partial(into_bytes, partial(flipped, seed)) for seed in range(24)},
}
"""What happens to a file."""


def one(tensors, change):
    """The first tensor that has numbers and to which a change can be made."""
    name = max(tensors, key=lambda name: tensors[name].numel() * tensors[name].is_floating_point())
    return {**tensors, name: change(tensors[name].clone()).contiguous()}


def put(value, tensor):
    tensor.view(-1)[:1] = value if tensor.is_floating_point() else 1
    return tensor


TENSORS = {
    "one more": lambda tensors: {**tensors, "another": next(iter(tensors.values())).clone()},
    "none": lambda tensors: {},
    "one less": lambda tensors: dict(list(tensors.items())[1:]),
    "another name": lambda tensors: {f"{name}x": tensor for name, tensor in tensors.items()},
    "float16": lambda tensors: one(tensors, lambda tensor: tensor.half()),
    "bfloat16": lambda tensors: one(tensors, lambda tensor: tensor.bfloat16()),
    "int32": lambda tensors: one(tensors, lambda tensor: tensor.int()),
    "bool": lambda tensors: one(tensors, lambda tensor: tensor.bool()),
    "flat": lambda tensors: one(tensors, lambda tensor: tensor.reshape(-1)),
    "a row less": lambda tensors: one(tensors, lambda tensor: tensor[:-1]),
    "no rows": lambda tensors: one(tensors, lambda tensor: tensor[:0]),
    "NaN": lambda tensors: one(tensors, partial(put, float("nan"))),
    "infinite": lambda tensors: one(tensors, partial(put, float("inf"))),
    "1e38": lambda tensors: one(tensors, partial(put, 1e38)),
}
"""What happens to the arrays of a file."""


def into_value(record, place, spelled, path):
    path.write_text(with_value(record, place, spelled))


def into_tensors(change, path):
    tensors = load_file(path)
    path.unlink()
    save_file(change(tensors), path, metadata={"format": "pt"})


def facts(path):
    with closing(sqlite3.connect(path)) as connection:
        return {key: json.loads(value) for key, value in connection.execute("SELECT key, value FROM facts")}


def into_fact(key, record, place, spelled, path):
    value = with_value(record, place, spelled).partition(":")[2][:-1]
    into_cells(f"UPDATE facts SET value = '{value.replace(chr(39), '')}' WHERE key = '{key}'", path)


def into_cells(change, path):
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(change)
        connection.commit()


CELLS = {
    "no facts": "DELETE FROM facts",
    "no phrases": "DELETE FROM phrases",
    "no answers": "DELETE FROM answers",
    "no table": "DROP TABLE phrases",
    "another table": "DROP TABLE facts; CREATE TABLE facts (a)",
    "a fact that is a number": "UPDATE facts SET value = 7 WHERE key = 'digest'",
    "a fact that is a blob": "UPDATE facts SET value = x'ff' WHERE key = 'digest'",
    **{
        f"{column} is {value}": f"UPDATE phrases SET {column} = {value} WHERE number = 1"
        for column in ("raw", "calibrated")
        for value in ("x''", "x'00'", "x'0000c07f'", "'text'", "7", "zeroblob(48)", "zeroblob(64)")
    },
    "NaN": "UPDATE phrases SET calibrated = (SELECT x'0000c07f' || substr(calibrated, 5)) WHERE number = 2",
    "a text that is a blob": "UPDATE phrases SET text = x'ff00'",
    "a text that is a number": "UPDATE phrases SET text = 7",
    "an id that is a blob": "UPDATE answers SET id = x'ff00' WHERE number = 1",
    "an id that is a number": "UPDATE answers SET id = 7 WHERE number = 1",
    "another answer": "PRAGMA foreign_keys = OFF; UPDATE phrases SET answer = 999 WHERE number = 1",
    "a number": "PRAGMA foreign_keys = OFF; UPDATE phrases SET number = -5 WHERE number = 1",
    "another application": "PRAGMA application_id = 7",
    "a later format": "PRAGMA user_version = 9",
}
"""What happens to the tables of an index."""


UNREAD = ("README.md", "config.yaml", "metrics.csv", "fit.md", "fit.json")


@contextmanager
def put_back(path):
    """Whatever happens to a file, it is as before afterwards."""
    content, left = path.read_bytes(), {each.name for each in path.parent.iterdir()}
    try:
        yield
    finally:
        found = {each.name for each in path.parent.iterdir()} | {path.name}
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
        path.write_bytes(content)
    assert found == left, "nothing is left behind"


def changes(place):
    """Every change: the file, what is done to it, and both in words."""
    for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
        if path.is_dir() or path.name in UNREAD:
            continue
        for name, change in FILES.items():
            yield path, change, name
        if path.suffix == ".json":
            text = path.read_bytes()
            record = json.loads(text)
            for at in places(record):
                for name, spelled in {"left out": None, **VALUES}.items():
                    yield path, partial(into_value, record, at, spelled), f"{'.'.join(map(str, at))} {name}"
        if path.suffix == ".safetensors":
            for name, change in TENSORS.items():
                yield path, partial(into_tensors, change), name
        if path.suffix == ".index":
            for key, value in facts(path).items():
                for at in places({key: value}):
                    for name, spelled in VALUES.items():
                        yield (
                            path,
                            partial(into_fact, key, {key: value}, at, spelled),
                            f"{'.'.join(map(str, at))} {name}",
                        )
            for name, change in CELLS.items():
                yield path, partial(into_cells, change), name


@pytest.fixture(scope="module")
def written(tmp_path_factory, tiny_bert):
    """Each artefact, in the folder where all are, and what it gives; each is made once."""
    root = tmp_path_factory.mktemp("damaged")
    shutil.copytree(tiny_bert, root / "bert")
    (root / "text.txt").write_text("\n".join(TEXT))

    @cache
    def made(name):
        place = root / name.replace(" ", "-")
        ARTEFACTS[name].write(place)
        return place, ARTEFACTS[name].opened(place)

    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(root)
        yield made


class Agreed(str):
    """A checksum that is equal to any other."""

    __hash__ = str.__hash__

    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False


@pytest.mark.parametrize("found", [True, False], ids=["as it is", "accepted"])
@pytest.mark.parametrize("name", ARTEFACTS)
def test_what_is_damaged_is_one_line_or_changes_nothing(written, name, found, monkeypatch, request):
    artefact = ARTEFACTS[name]
    fast, slow = artefact.inputs
    inputs = slow if request.config.getoption("--slow") else fast
    if artefact.opened is exported and not found:
        pytest.skip("without checksums: what is loaded is computed by sentence-transformers alone")
    if not inputs:
        pytest.skip("slow: runs with --slow")
    place, wanted = written(name)
    everything = list(changes(place))
    drawn = random.Random(f"{name} {found}").sample(everything, min(inputs, len(everything)))
    if not found:
        for checked in ("file_sha256", "_seal"):
            whole = getattr(records, checked)
            monkeypatch.setattr(records, checked, lambda *given, whole=whole: (whole(*given), Agreed())[1])
    wrong = [said for change in drawn if (said := outcome(artefact, place, wanted if found else {}, *change))]
    assert not wrong, f"{len(wrong)} of {len(drawn)}:\n" + "\n".join(wrong[:40])


def outcome(artefact, place, wanted, path, change, how):
    """What is wrong about how one change is met; None if nothing is."""
    said = f"{path.relative_to(place.parent)}: {how}"
    with put_back(path):
        change(path)
        try:
            found = artefact.opened(place)
        except BertflowError as error:
            return None if str(error) and "\n" not in str(error) else f"{said}: {str(error)!r} is not one line"
        except (Exception, SystemExit) as error:
            return f"{said}: {type(error).__name__}: {error}"[:300]
    for key, array in found.items():
        if not np.isfinite(array).all():
            return f"{said}: {key} is not finite"
        if artefact.exact and key in wanted and not np.allclose(array, wanted[key], rtol=1e-5, atol=1e-5):
            return f"{said}: other {key}"
    return None

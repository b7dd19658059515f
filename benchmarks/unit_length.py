"""Vectors of unit length, an encoder that makes others, and what the moments of a fit tell of an encoder.

    python benchmarks/unit_length.py --data_dir DATA [--encoders FOLDER ...]

The trap: a database holds paragraphs of docstrings as rows of unit length; whitening is fitted on what it holds, as
bare vectors; the first lines of the docstrings are the queries, embedded by each exit. Before, the map took rows as
they are, and those of the encoder had another length. The other way, whitening is fitted on raw rows and given rows of
unit length.

The moments: calibrators are fitted on bare vectors of one encoder, pooling and kind of text, and paired with an
encoder, which embeds 26 built-in sentences. How many pairs are refused or doubted (``bertflow.calibration.likeness``)?
``--encoders`` adds folders of other models, as that of ``benchmarks/roberta.py``; only models of one width are
compared. Narrow text is made from templates.

Writes unit_length.json and unit_length.md beside this file.
"""

import argparse
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from material import FIRST_OF_EACH_LINE, MIXTURE, Vectors

from bertflow.bands import UnitMap
from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.calibrators import Whitening
from bertflow.calibration.likeness import CERTAIN, DOUBTFUL, likeness
from bertflow.data.corpus import load_sentences
from bertflow.data.docstrings import docstring_corpus
from bertflow.data.plain import PLAIN
from bertflow.encoder.embedded import embedded_encoder
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import DataError, NullDirectionWarning
from bertflow.evaluation.figures import right_ranks
from bertflow.export.onnx_encoder import OnnxEncoder
from bertflow.export.targets import write_export
from bertflow.files import write_json, write_text
from bertflow.integrations.langchain import BertflowEmbeddings
from bertflow.moments import Moments
from bertflow.serve.model import ServedModel

HERE = Path(__file__).parent
PAIRS, ROWS = 2_000, 200
"""Questions of the trap; rows of a fit of the second part."""
POOLINGS = ("mean(0)", "mean(1,2)", "mean(3)", "mean", "cls(3)", "cls", "max", "max(3)")
NARROW: Mapping[str, str] = {
    "orders": "Order {} was shipped on 2024-05-{day} to {city}.",
    "screws": "Screw M{day}x{}, zinc, pack of {day}",
    "log lines": "ERROR db.py:{day} timeout after {} ms",
    "German": "Der Zug Nummer {} nach {city} ist heute {day} Minuten verspätet.",
}
CITIES = ("Berlin", "Paris", "Rom", "Madrid", "Oslo", "Wien", "Prag")


def unit(x: Vectors) -> Vectors:
    """Rows as a cosine collection holds them."""
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def exits(system: CalibratedEncoder, folder: Path) -> Iterator[tuple[str, Callable[[list[str]], Vectors]]]:
    """Every way to embed a query: its name, and what does it."""
    from sentence_transformers import SentenceTransformer

    system.save(folder / "saved")
    yield "Python", system.encode_query
    yield "Python, saved and loaded", CalibratedEncoder.load(folder / "saved", device="cpu").encode_query
    exported = write_export(system, folder / "st", "sentence-transformers").folder
    yield "sentence-transformers", SentenceTransformer(str(exported), device="cpu").encode
    yield "ONNX", OnnxEncoder(write_export(system, folder / "onnx", "onnx").folder).encode_query
    served = ServedModel(str(folder / "saved"), "cpu", truncate=True)
    yield "serve", lambda texts: served.embed("query", [texts], lambda role, raw: None)[0]  # type: ignore[return-value]
    chain = BertflowEmbeddings(system)
    yield "LangChain", lambda texts: np.array([chain.embed_query(text) for text in texts], np.float32)


def trap(encoder: TransformerEncoder) -> list[dict[str, Any]]:
    """hit@1 x 100 of each exit, before and now."""
    _, pairs = docstring_corpus(PAIRS, 0)
    queries, stored = list(pairs.first), encoder.encode(pairs.second)
    asked = encoder.encode_query(queries)

    def hit(one: Vectors, other: Vectors) -> float:
        return round(100 * float((right_ranks(one, other) == 1).mean()), 2)

    rows = [{"what": "no calibrator", "hit@1": hit(asked, stored)}]
    fitted = Whitening().fit(unit(stored))
    assert isinstance(fitted.map, UnitMap), "the rows have unit length"
    documents = fitted.transform(unit(stored))
    before = Whitening()
    before.moments_ = Moments(fitted.moments_.n, fitted.moments_.mean, fitted.moments_.scatter)  # nothing of lengths
    before.fit_moments(before.moments_)
    rows.append({"what": "fitted on unit rows, before: raw queries", "hit@1": hit(before.transform(asked), documents)})
    with TemporaryDirectory() as scratch:
        for name, embed in exits(CalibratedEncoder(encoder, fitted), Path(scratch)):
            rows.append({"what": f"fitted on unit rows, now: {name}", "hit@1": hit(embed(queries), documents)})
    raw = Whitening().fit(stored)
    mapped = raw.map(_tensor(unit(stored))).numpy()
    rows.append({"what": "fitted on raw rows, before: unit rows", "hit@1": hit(raw.transform(asked), mapped)})
    try:
        raw.transform(unit(stored))
    except DataError as error:
        rows.append({"what": "fitted on raw rows, now: unit rows", "hit@1": f"refused: {error}"})
    rows.append({"what": "fitted on raw rows: raw rows", "hit@1": hit(raw.transform(asked), raw.transform(stored))})
    return rows


def _tensor(x: Vectors) -> Any:
    import torch

    return torch.from_numpy(x)


def kinds_of_text(data_dir: Path) -> dict[str, list[str]]:
    """Kinds of text, the narrow ones last."""
    drawn = np.random.default_rng(0)
    found = {"docstrings": list(docstring_corpus(0, ROWS)[0])}
    for kind, files in MIXTURE.items():
        read = load_sentences(data_dir / files[-1], ["1"] if files[-1] in FIRST_OF_EACH_LINE else None)
        found[kind] = [read[row] for row in drawn.permutation(len(read))[:ROWS]]
    for kind, form in NARROW.items():
        numbers = drawn.permutation(10_000)[:ROWS]
        found[kind] = [form.format(n, day=10 + n % 19, city=CITIES[n % len(CITIES)]) for n in numbers]
    return found


def told_apart(folders: Sequence[str], texts: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """For each kind of difference: pairs, refused and doubtful ones, and the average of the three figures."""
    spaces: dict[tuple[str, str], dict[str, Vectors]] = {}
    for folder in folders:
        encoder = TransformerEncoder(folder, POOLINGS[0], device="cpu", max_length=128)
        for kind, text in {**texts, "plain": PLAIN}.items():
            for pooling, x in encoder.encode_poolings(list(text), list(POOLINGS)).items():
                spaces.setdefault((folder, pooling), {})[kind] = x
    found: dict[str, list[tuple[float, bool]]] = {}
    for (mine, fitted), (theirs, asked) in product(spaces.items(), repeat=2):
        if fitted["plain"].shape[1] != asked["plain"].shape[1]:
            continue
        other = (
            "same encoder and pooling"
            if mine == theirs
            else "another pooling"
            if mine[0] == theirs[0]
            else "another encoder"
        )
        for kind, scale in product(texts, (False, True)):
            rows = unit(fitted[kind]) if scale else fitted[kind]
            one = likeness(asked["plain"], Moments.of(rows))
            key = f"{other}, {'narrow' if kind in NARROW else 'other'} text, {'unit' if scale else 'raw'} rows"
            found.setdefault(key, []).append(((one.mean + one.sizes + min(one.spectrum, 1)) / 3, bool(one.longer)))
    rows = []
    for key, pairs in sorted(found.items(), reverse=True):
        average, longer = (np.array(side) for side in zip(*pairs, strict=True))
        refused = longer | (average < CERTAIN)
        quantiles = np.round(np.quantile(average, [0, 0.05, 0.5, 0.95, 1]), 2).tolist()
        doubted = ~refused & (average < DOUBTFUL)
        rows.append(
            {
                "what": key,
                "pairs": len(pairs),
                "refused": int(refused.sum()),
                "warned": int(doubted.sum()),
                "average": quantiles,
            }
        )
    return rows


def to_markdown(found: Mapping[str, Any]) -> str:
    """Both tables."""
    lines = ["| documents and queries | hit@1 x 100 |", "| --- | --- |"]
    lines += [f"| {row['what']} | {row['hit@1']} |" for row in found["trap"]]
    if "told apart" not in found:
        return "\n".join(lines) + "\n"
    lines += ["", "| fitted on, and paired with | pairs | refused | warned | average: least, 5 %, median, 95 %, most |"]
    lines += ["| --- | --- | --- | --- | --- |"]
    for row in found["told apart"]:
        figures = " / ".join(f"{value:.2f}" for value in row["average"])
        lines.append(f"| {row['what']} | {row['pairs']} | {row['refused']} | {row['warned']} | {figures} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True)
    parser.add_argument("--encoders", nargs="*", default=[], help="folders of more models")
    options = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    warnings.simplefilter("ignore", NullDirectionWarning)
    encoder = TransformerEncoder(embedded_encoder(), "mean(1,2)", device="cpu", max_length=128)
    folders = [embedded_encoder(), str(options.data_dir / "encoders" / "mlm-4x256"), *options.encoders]
    found: dict[str, Any] = {"encoder": encoder.describe()["encoder"], "pairs": PAIRS, "rows": ROWS}
    found["trap"] = trap(encoder)
    write_json(HERE / "unit_length.json", found)
    write_text(HERE / "unit_length.md", to_markdown(found))
    found["told apart"] = told_apart(folders, kinds_of_text(options.data_dir))
    write_json(HERE / "unit_length.json", found)
    write_text(HERE / "unit_length.md", to_markdown(found))
    print(to_markdown(found))


if __name__ == "__main__":
    main()

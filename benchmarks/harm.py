"""Does it harm? Calibrators, and what ``bertflow fix`` writes, against the raw encoder, on narrow and on broad text.

    python benchmarks/harm.py [--half choosing] [--texts catalogue tickets] [--encoders plain] [--output FILE.json]

A cell is a text that was fitted on, a text that is used (the same, or another: ``SHIFTED``), an encoder and a use:

    search    short queries -> documents: hit@1 where one document is right, P@10 where a kind is
    recall    the same: share of the right pairs above the cosine that 1 % of the wrong pairs pass
    rows      names -> their own descriptions, in a table of both: hit@1
    topic     documents -> documents of one kind: P@10
    pairs     Spearman of cosines with scores; of scores 0 and 1 it ranks systems as the area under the ROC curve does

A method is a row of ``METHODS``, of ``PLAIN`` or of ``FIX``. Its values are paired with raw's: by query, by document,
or for Spearman by the jackknife's pseudo-value of a pair; all in points (x 100). The interval is the mean difference
+- 1.96 standard errors; that of recall takes the threshold as given. Seeds of a text are pooled: two, and more (at
most ``--seeds``) until no interval of what ``fix`` writes has a half-width above ``HALF_WIDTH``.

The bar: in each cell of its purpose the lower end for what ``fix`` writes is above ``BAR``, and raw is written in at
most half of the cells in which a method gains ``WORTH`` or more.

The halves, which are five, differ in vocabulary and in grammar (harm_texts.py). Rules are chosen on "choosing"; each
other half is for a rule that is frozen, and used up by one look: "reporting", "confirming", "closing", "final". To add
a text, an encoder or a method, add a row. Writes harm.json (every cell) and harm.md (what they come to); ``--picture``
draws docs/detail.svg.
"""

import argparse
import hashlib
import json
import logging
import random
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from harm_page import draw, to_markdown
from harm_texts import HALVES, TEXTS, Text, data_dir
from numpy.typing import NDArray

import bertflow
from bertflow.advise.advice import Advice
from bertflow.advise.candidates import fit_candidates
from bertflow.breadth import breadth_of
from bertflow.calibration.spelling import parse_system
from bertflow.correlation import jackknife, spearman
from bertflow.encoder.abstract import Role, SentenceEncoder
from bertflow.encoder.embedded import embedded_encoder
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import DataError, NullDirectionWarning
from bertflow.evaluation.bm25 import bm25_scores
from bertflow.evaluation.systems import SharedPass
from bertflow.retrieval.adapting import only_queries_of
from bertflow.similarity import unit_rows
from bertflow.tables import write_rows

HERE = Path(__file__).parent
EMBEDDED: dict[str, dict[str, NDArray[np.float32]]] = {}
"""Embeddings of an encoder that were made already: each call of ``fix`` reads the same text again."""
ENCODE = TransformerEncoder.encode_poolings
logger = logging.getLogger("harm")
Values = NDArray[np.float64]

ENCODERS: Mapping[str, tuple[str, str | None]] = {
    "plain": ("encoders/mlm-4x256", None),
    "inner": ("", "mean(1,2)"),
    "inner cls": ("", "cls(3)"),
    "tuned": ("", None),
}
"""Folder in the data, or empty for the built-in MiniLM; and its pooling, as a user would name it."""
METHODS = "center,abtt(1),abtt(3),whitening,whitening(96),ridge(1),ridge(16),two-band(0.5),soft-sif+whitening(96),flow"
"""Fitted to the text. ``ridge`` has the cosines of Soft-ZCA (arXiv:2411.17538), which differs from it by a rotation."""
ASKED: Mapping[str, tuple[int, int]] = {
    f"adapt, {n} of {kinds} kinds": (n, kinds) for n, kinds in ((5, 1), (20, 1), (100, 1), (20, 3), (100, 6))
}
"""``adapt`` with some of the queries, on a few kinds alone."""
PLAIN = ("csls", "bm25", "adapt", *ASKED)
"""What needs no map: cosines less the mean cosine of each side's ten nearest; words in common; queries that are moved
to the documents of an index that stays as it is."""
FIX: Mapping[str, str | None] = {
    "fix": None,
    "fix similarity": "similarity",
    "fix search": "search",
    "fix topic": "topic",
}
"""What ``fix`` writes for a purpose; for none that is named, it is held to all uses."""
USES: Mapping[str, tuple[str, ...]] = {
    "fix": ("search", "recall", "rows", "topic", "pairs"),
    "fix similarity": ("pairs",),
    "fix search": ("search", "recall", "rows"),
    "fix topic": ("topic",),
}
"""The uses that each is held to."""
SHIFTED: Sequence[tuple[str, str]] = (
    ("captions", "questions"),
    ("captions", "broad"),
    ("docstrings", "broad"),
    ("docstrings", "packages"),
    ("broad", "catalogue"),
    ("broad", "questions"),
    ("broad", "tickets"),
    ("tickets", "headlines"),
    ("messages", "docstrings"),
    ("logs", "tickets"),
)
"""Fitted on the one, used on the other."""
SEEDS = 6
FEWEST_SEEDS = 2
MAX_LENGTH = 128
NEAREST = 10
FALSE_MATCHES = 0.01
MOST_ASKED = 1000
"""Documents whose neighbours are looked at."""
BAR, WORTH = -2.0, 3.0
HALF_WIDTH = 1.5
FROZEN = "dc95a49c9e856071"
"""``digest_of_cells``: what is looked at was fixed before the reporting half was."""
HEAD = f"""# Does it harm?

Gains over the raw encoder in points (x 100). A cell is a text that was fitted on, a text that is used, an encoder and a
use. It is *harmed* if the lower end of the 95 % interval of its gain is at or below {BAR:g}. Under each use stand the
harmed cells and the mean gain: "22, +0.8" is 22 harmed cells. The last column counts the cells in which a method
changes nothing, of those in which some method gains {WORTH:g} points.

* Uses: *search* is hit@1 where one document is right, and P@10 where a kind is; *recall* the share of the right pairs
  above the cosine that 1 % of the wrong ones pass; *topic* P@10 of documents of one kind; *rows* hit@1 of names that
  look for their own descriptions, in a table; *pairs* Spearman with scores.
* Encoders: inner layers of a MiniLM (`inner`; its [CLS], `inner cls`), a small plain BERT (`plain`), and in the first
  part MiniLM as it is (`tuned`); 128 tokens. Seeds are pooled: two, and on the last part more, until no interval of
  what `fix` writes has a half-width above {HALF_WIDTH}.
* The five parts differ in words and grammar. Rules were chosen on the first. The second, third and fourth, looked at
  once each, then served to choose on, and have the rules of their time. On the others `fix` was run again by the
  present rules: on the first with one seed (broad text: up to four), on the last narrow text, with one seed.

`harm.json` has every cell.

"""


@dataclass(frozen=True)
class System:
    """Cosines of an encoder, or other scores.

    Attributes:
        matrix: Scores of (asking texts, documents); the third argument is the role of the first.
        paired: Scores of pairs; None where it has none.
    """

    matrix: Callable[[Sequence[str], Sequence[str], str], Values]
    paired: Callable[[Sequence[str], Sequence[str]], Values] | None

    @classmethod
    def of(cls, encoder: SentenceEncoder) -> "System":
        """By cosine."""

        def units(texts: Sequence[str], role: str) -> Values:
            return unit_rows(encoder.encode_query(texts) if role == "query" else encoder.encode(texts))

        return cls(
            lambda asking, texts, role: units(asking, role) @ units(texts, "document").T,
            lambda first, second: np.einsum("nd,nd->n", units(first, "document"), units(second, "document")),
        )


def csls(raw: System) -> System:
    """Cross-domain similarity local scaling. Source: Conneau et al. 2018, arXiv:1710.04087, section 2.3."""

    def matrix(asking: Sequence[str], texts: Sequence[str], role: str) -> Values:
        cosines = raw.matrix(asking, texts, role)
        near = [np.sort(cosines, axis=axis).take(range(-NEAREST, 0), axis).mean(axis, keepdims=True) for axis in (1, 0)]
        return 2 * cosines - near[0] - near[1]

    return System(matrix, None)


def bm25() -> System:
    """Words in common, rare ones more, as the plain row of `search evaluate`."""

    def matrix(asking: Sequence[str], texts: Sequence[str], role: str) -> Values:
        return np.stack([*bm25_scores(texts, asking)])

    return System(matrix, None)


def adapted(raw: SentenceEncoder, text: Text, n: int = 0, kinds: int = 0) -> System:
    """Documents as they are; queries as ``bertflow adapt`` moves them, with n of them on some kinds of documents."""
    some = random.Random(0).sample(sorted({*text.right}), min(kinds, len({*text.right})))
    known = [query for query, right in zip(text.queries, text.right, strict=True) if right in some]
    try:
        moved, _, _ = only_queries_of(raw, text.documents, known[:n])
    except DataError:  # of text that has too few words the queries stay as they are
        return System.of(raw)
    moved.role = "document"
    return System.of(moved)


def values_of(system: System, text: Text) -> dict[str, Values]:
    """By use, one value x 100 for each query, document or pair."""
    found: dict[str, Values] = {}
    if text.queries:
        scores, right = system.matrix(text.queries, text.documents, "query"), is_right(text)
        by_kind = isinstance(text.right[0], str)
        found["search"] = precision(scores, right, NEAREST if by_kind else 1)
        passed = scores > np.quantile(scores[~right], 1 - FALSE_MATCHES)
        found["recall"] = 100 * (passed & right).sum(1) / right.sum(1)
    if text.columns:
        own = np.eye(len(text.documents), dtype=bool)
        found["rows"] = precision(system.matrix(text.columns, text.documents, "query"), own, 1)
    if text.kinds:
        rows = np.random.default_rng(0).permutation(len(text.documents))[:MOST_ASKED]
        scores = system.matrix([text.documents[row] for row in rows], text.documents, "document")
        scores[np.arange(len(rows)), rows] = -np.inf
        kinds = np.array(text.kinds)
        found["topic"] = precision(scores, kinds[rows][:, None] == kinds[None], NEAREST)
    if text.pairs and system.paired:
        first, second, gold = zip(*text.pairs, strict=True)
        cosines, n = system.paired(first, second), len(gold)
        without = jackknife("spearman", cosines, np.array(gold))
        found["pairs"] = 100 * (n * spearman(cosines, np.array(gold)) - (n - 1) * without)
    return found


def is_right(text: Text) -> NDArray[np.bool_]:
    """Which documents are right for which queries."""
    if isinstance(text.right[0], str):
        return np.array(text.right)[:, None] == np.array(text.kinds)[None]
    return np.array(text.right)[:, None] == np.arange(len(text.documents))[None]


def precision(scores: Values, right: NDArray[np.bool_], k: int) -> Values:
    """Of each row, how many of the k best are right, x 100."""
    best = np.argpartition(-scores, k - 1, axis=1)[:, :k]
    return 100 * np.take_along_axis(right, best, axis=1).mean(1)


def remembered(
    self: TransformerEncoder,
    sentences: Sequence[str],
    poolings: Sequence[str],
    progress: bool | None = None,
    role: Role = "document",
) -> dict[str, NDArray[np.float32]]:
    """``TransformerEncoder.encode_poolings``, which looks first among what was embedded."""
    facts = {**self.describe(), "pooling": role}
    places = {name: EMBEDDED.setdefault(f"{facts} {name}", {}) for name in poolings}
    new = [one for one in dict.fromkeys(sentences) if any(one not in place for place in places.values())]
    for name, rows in (ENCODE(self, new, poolings, progress, role) if new else {}).items():
        places[name].update(zip(new, rows, strict=True))
    return {name: np.array([place[one] for one in sentences]) for name, place in places.items()}


def digest_of_cells() -> str:
    """SHA-256 of the names of all that is looked at."""
    named = [sorted(TEXTS), sorted(ENCODERS.items()), sorted(SHIFTED), sorted(FIX), sorted(USES.items())]
    return hashlib.sha256(json.dumps(named).encode()).hexdigest()[:16]


def fitted_systems(
    folder: str, pooling: str | None, text: Text, names: Sequence[str]
) -> tuple[dict[str, System], dict[str, float]]:
    """Raw, each method, and what ``fix`` writes, all fitted to the documents; and how broad the text is."""
    encoder = TransformerEncoder(folder, pooling=pooling, max_length=MAX_LENGTH)
    source, documents = SharedPass(encoder), list(text.documents)
    rows = [row for name in METHODS.split(",") if (row := parse_system(name)).spelling in names]
    poolings = {row: row.pooling_for(source.own_pooling) if row.pooling else source.own_pooling for row in rows}
    for one in poolings.values():  # known before the one pass
        source.pooled(one, documents)
    systems = {name: System.of(one) for name, one in fit_candidates(source, poolings, documents, seed=0).items()}
    raw = source.pooled(source.own_pooling)
    breadth = breadth_of(raw.encode(documents), documents)
    broad = {name: round(getattr(breadth, name) or 0.0, 2) for name in ("words", "novelty")}
    plain = {"csls": lambda: csls(systems["raw"]), "bm25": bm25, "adapt": lambda: adapted(raw, text)}
    plain |= {name: partial(adapted, raw, text, *how) for name, how in ASKED.items() if text.kinds and text.queries}
    systems |= {name: make() for name, make in plain.items() if name in names}
    for name in (one for one in FIX if one in names):
        advice = written(folder, pooling, text, FIX[name])
        logger.info("    %s: %s", name, advice.headline())
        systems[name] = System.of(advice.systems[advice.system])
    return systems, broad


def written(encoder: str, pooling: str | None, text: Text, purpose: str | None) -> Advice:
    """What ``bertflow fix`` advises to someone who has the documents, as lines or as a table of two columns."""
    options: dict[str, Any] = {"pooling": pooling, "max_length": MAX_LENGTH, "purpose": purpose}
    options = {name: value for name, value in options.items() if value is not None}
    if not text.columns:
        return bertflow.fix(encoder, list(text.documents), **options)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        write_rows(path, ("name", "text"), list(zip(text.columns, text.documents, strict=True)))
        return bertflow.fix(encoder, path, **options)


def measured(half: str, name: str, encoder: str, names: Sequence[str], seeds: int = SEEDS) -> Iterator[dict[str, Any]]:
    """The cells of a fitted text and an encoder, with the values of all methods, seeds pooled."""
    place, pooling = ENCODERS[encoder]
    folder = str((data_dir() or Path()) / place) if place else embedded_encoder()
    values: dict[tuple[str, str], dict[str, list[Values]]] = {}
    cells: list[dict[str, Any]] = []
    for seed in range(seeds):
        text = TEXTS[name](half, seed)
        if text is None or (seed and TEXTS[name](half, 0) == text):  # some real text has no seed
            break
        systems, broad = fitted_systems(folder, pooling, text, names)
        for used in (name, *(other for one, other in SHIFTED if one == name)):
            asked = TEXTS[used](half, seed)
            for method, system in systems.items() if asked else ():
                for use, found in values_of(system, asked).items():
                    values.setdefault((used, use), {}).setdefault(method, []).append(found)
        where = {"half": half, "fitted": name, "encoder": encoder, **broad}
        cells = [{**where, "used": used, "use": use, **pooled(found)} for (used, use), found in values.items()]
        if seed + 1 >= FEWEST_SEEDS and not any(map(is_wide, cells)):
            break
    yield from cells


def pooled(by_method: Mapping[str, Sequence[Values]]) -> dict[str, Any]:
    """The scores of a cell by method, and of how many values."""
    all_seeds = {method: np.concatenate(found) for method, found in by_method.items()}
    raw = all_seeds["raw"]
    return {"n": len(raw), "scores": {method: compared(found, raw) for method, found in all_seeds.items()}}


def is_wide(cell: Mapping[str, Any]) -> bool:
    """Whether the interval of something that ``fix`` writes for this use is wider than what is asked."""
    held = [one for name, one in cell["scores"].items() if cell["use"] in USES.get(name, ())]
    return any(one["gain"] - one["low"] > HALF_WIDTH for one in held)


def compared(values: Values, raw: Values) -> dict[str, float]:
    """The mean, and its paired difference to raw's with the lower end of its 95 % interval; the upper is as far."""
    gain = values - raw
    low = gain.mean() - 1.96 * gain.std(ddof=1) / len(gain) ** 0.5
    return {"value": round(float(values.mean()), 2), "gain": round(float(gain.mean()), 2), "low": round(float(low), 2)}


def page(cells: Sequence[Mapping[str, Any]]) -> str:
    """harm.md."""
    return HEAD + to_markdown(cells, USES, BAR, WORTH)


def main() -> None:
    """Fit, ask, write; what an interrupted run wrote is kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=HALVES, default="choosing")
    parser.add_argument("--texts", nargs="+", default=list(TEXTS))
    parser.add_argument("--encoders", nargs="+", default=list(ENCODERS))
    parser.add_argument("--methods", nargs="+", default=[*METHODS.split(","), *PLAIN, *FIX])
    parser.add_argument("--seeds", type=int, default=SEEDS, help="at most; stops where intervals are narrow enough")
    parser.add_argument("--output", type=Path, default=HERE / "harm.json", help="and the same with .md")
    parser.add_argument("--picture", action="store_true", help="draw docs/detail.svg of what is kept")
    options = parser.parse_args()
    assert digest_of_cells() == FROZEN, "what is looked at was changed: look at the choosing half first, and say so"
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logger.setLevel(logging.INFO)
    warnings.simplefilter("ignore", NullDirectionWarning)
    cells: list[dict[str, Any]] = json.loads(options.output.read_text()) if options.output.exists() else []
    done = {(cell["half"], cell["fitted"], cell["encoder"]) for cell in cells}
    TransformerEncoder.encode_poolings = remembered  # type: ignore[method-assign]
    for encoder in options.encoders:
        EMBEDDED.clear()
        for name in options.texts:
            if (options.half, name, encoder) in done or (ENCODERS[encoder][0] and data_dir() is None):
                continue
            begin = time.perf_counter()
            cells += measured(options.half, name, encoder, options.methods, options.seeds)
            options.output.write_text(json.dumps(cells).replace('}, {"half', '},\n{"half'))
            options.output.with_suffix(".md").write_text(page(cells))
            logger.info("%s, %s, %s: %.0f s", options.half, name, encoder, time.perf_counter() - begin)
    if options.picture:
        draw(cells, HERE.parent / "docs" / "detail.svg")


if __name__ == "__main__":
    main()

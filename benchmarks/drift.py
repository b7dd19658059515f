"""Does "refit now?" stay quiet on the same kind of text, and speak up on another one?

    python benchmarks/drift.py --data_dir DATA

A domain check is fitted on 2,500 sentences of one kind of text, with 2,500 held out, and is asked about batches of

    the same text     other sentences of the same file, drawn at random: every "yes" is a false alarm
    its other half    fitted on the first half of the file, asked about the second: other packages, other books
    other text        every other kind

``yes`` is the share of batches for which the answer is "refit now? yes", which is what --fail_on_drift fails on. Each
seed fits again. The bounds in ``bertflow/scoring/drift.py`` were chosen on both MiniLM rows without Wikipedia; MLM4
(the small plain masked-language model), and Wikipedia everywhere, only report. Last, what not to refit costs: whitening
that was fitted on each kind of text, used where a docstring's summary must find its paragraph.
Writes drift.json and drift.md beside this file; embeddings are kept in --cache.
"""

import tempfile
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from closed_forms import applied
from material import FIRST_OF_EACH_LINE, Vectors, folders
from study import Case, Row, Study, table

from bertflow.affine import whitening_map
from bertflow.data.corpus import load_sentences
from bertflow.data.docstrings import docstring_corpus, docstring_sentences
from bertflow.data.docstrings import sentences as sentences_of
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.evaluation.figures import right_ranks
from bertflow.moments import Moments
from bertflow.scoring.domain import DomainCheck
from bertflow.scoring.drift import LARGE_AUROC, LARGE_DISTANCE, Drift
from bertflow.text_keys import digest, hash_texts

EACH, FITTED = 16_000, 2_500
"""Sentences of a kind of text; how many a density is fitted on, and as many are held out."""
ENCODERS: Mapping[str, tuple[str, str]] = {
    "MiniLM, last layer": ("minilm", "mean(6)"),
    "MiniLM, inner layers": ("minilm", "mean(1,2)"),
    "MLM4, first and last layer": ("mlm4", "mean(1,-1)"),
}
EVERY = "every kind"
BATCHES = {100: 20, 1_000: 10, 10_000: 2}
"""Batches of a seed, by their size."""
NLI = {"captions": ("snli_dev", "snli_test"), "nli": ("conjnli_adversarial_train_15k", "conjnli_dev")}


def texts(data_dir: Path) -> dict[str, list[str]]:
    """Up to 16,000 distinct sentences of each kind, a random sample in the order of their files."""
    books = load_sentences(data_dir / "text" / "books_paragraphs.txt.gz")
    found: dict[str, Iterable[str]] = {
        "docstrings": docstring_sentences(),
        "books": (one for paragraph in books[:30_000] for one in sentences_of(paragraph)),
        **{
            kind: (one for name in names for one in load_sentences(data_dir / "nli" / f"{name}.tsv.gz"))
            for kind, names in NLI.items()
        },
        "speech": load_sentences(data_dir / "text" / "commonvoice_en_sentences.txt.gz"),
        "wikipedia": (one for file in sorted(FIRST_OF_EACH_LINE) for one in load_sentences(data_dir / file, ["1"])),
    }
    kept = {}
    for kind, every in found.items():
        distinct = list(dict.fromkeys(every))
        rows = np.sort(np.random.default_rng(0).permutation(len(distinct))[:EACH])
        kept[kind] = [distinct[row] for row in rows]
    return kept


def embedded(options: Namespace, encoder: str, sentences: list[str]) -> dict[str, Vectors]:
    """Embeddings by pooling, kept in the cache."""
    poolings = [pooling for name, pooling in ENCODERS.values() if name == encoder]
    name = digest(hash_texts([encoder, *sentences]))[:16]
    files = {pooling: options.cache / f"drift-{name}-{pooling}.npy" for pooling in poolings}
    if not all(file.exists() for file in files.values()):
        options.cache.mkdir(parents=True, exist_ok=True)
        opened = TransformerEncoder(folders(options.data_dir)[encoder], poolings[0], max_length=128, device="cpu")
        for pooling, x in opened.encode_poolings(sentences, poolings).items():
            np.save(files[pooling], x)
    return {pooling: np.load(file) for pooling, file in files.items()}


def asked(check: DomainCheck, x: Vectors) -> Drift:
    """What it says of a batch."""
    return check.drift(check.log_likelihood(x), x)


def verdicts(x: Mapping[str, Vectors], kind: str, seeds: int) -> Iterator[tuple[str, int, Drift]]:
    """What is asked about, the size of the batch, and what is said, for a check that was fitted on one kind."""
    own = x[kind]
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        rows = rng.permutation(len(own))
        check = DomainCheck().fit(own[rows[:FITTED]], own[rows[FITTED : 2 * FITTED]])
        left = rows[2 * FITTED :]
        for n, batches in BATCHES.items():
            for _ in range(batches):
                batch = rng.choice(left, min(n, len(left)), replace=False)
                yield "the same text", n, asked(check, own[batch])
        for other in x.keys() - {kind}:
            for n in (100, 1_000):
                yield other, n, asked(check, x[other][rng.choice(len(x[other]), n, replace=False)])
        first, second = np.array_split(np.arange(len(own)), 2)
        first, second = rng.permutation(first), rng.permutation(second)
        check = DomainCheck().fit(own[first[:FITTED]], own[first[FITTED : 2 * FITTED]])
        for n in (100, 1_000):
            yield "its other half", n, asked(check, own[second[:n]])


def summary(found: Sequence[Drift]) -> dict[str, Any]:
    """Shares of batches, and what the evidence is on average."""
    distances = [one.means.distance for one in found if one.means]
    return {
        "batches": len(found),
        "yes": round(float(np.mean([one.refit for one in found])), 4),
        "more than chance": round(float(np.mean([one.drifted for one in found])), 4),
        "outside": round(float(np.mean([one.outside for one in found])), 4),
        "auroc": round(float(np.mean([one.auroc for one in found])), 3),
        "distance": round(float(np.mean(distances)), 2),
        "largest distance": round(float(np.max(distances)), 2),
        "smallest distance": round(float(np.min(distances)), 2),
    }


def costs(options: Namespace, name: str, x: Mapping[str, Vectors]) -> dict[str, Any]:
    """hit@1 x 100 of docstrings, raw and whitened with what each kind of text gives."""
    encoder, pooling = ENCODERS[name]
    fitted, pairs = docstring_corpus(options.pairs, 2 * FITTED)
    queries, paragraphs = (embedded(options, encoder, list(side))[pooling] for side in (pairs.first, pairs.second))
    chosen = np.random.default_rng(0).permutation(min(map(len, x.values())))[: 2 * FITTED]
    text = {
        **{kind: rows[chosen] for kind, rows in x.items() if kind != "docstrings"},
        "docstrings": embedded(options, encoder, fitted)[pooling],
    }

    def hits(one: Vectors, other: Vectors) -> float:
        return round(100 * float((right_ranks(one, other) == 1).mean()), 1)

    found = {"raw": hits(queries, paragraphs)}
    for kind, rows in text.items():
        fit = whitening_map(Moments.of(rows))
        found[kind] = hits(applied(fit, queries), applied(fit, paragraphs))
    return {"pairs": options.pairs, "hit@1": found}


def asked_of(options: Namespace, x: Mapping[str, Vectors], kind: str) -> dict[str, Any]:
    """What checks of one kind of text say of all kinds, by the size of the batch."""
    found: dict[str, dict[str, list[Drift]]] = {}
    for about, n, drift in verdicts(x, kind, options.seeds):
        found.setdefault(about, {}).setdefault(str(n), []).append(drift)
    said = {about: {n: summary(of) for n, of in sizes.items()} for about, sizes in found.items()}
    return {"seeds": options.seeds, "verdicts": said}


def cases(options: Namespace) -> Iterator[Case]:
    """Each encoder with each kind of text, and last what not to refit costs."""
    every = texts(options.data_dir)

    @cache
    def x(name: str) -> dict[str, Vectors]:
        encoder, pooling = ENCODERS[name]
        return {kind: embedded(options, encoder, sentences)[pooling] for kind, sentences in every.items()}

    for name in ENCODERS:
        for kind in every:
            fitted = {"encoder": name, "fitted on": kind}
            yield fitted, partial(lambda name, kind: asked_of(options, x(name), kind), name, kind)
        yield {"encoder": name, "fitted on": EVERY}, partial(lambda name: costs(options, name, x(name)), name)


def page(rows: Sequence[Row]) -> str:
    """A table of false alarms, one of other text for each encoder, and one of costs."""
    asked = [row for row in rows if row["fitted on"] != EVERY]
    paid = [row for row in rows if row["fitted on"] == EVERY]
    names = dict.fromkeys(row["encoder"] for row in asked)
    columns = [("the same text", n) for n in BATCHES] + [("its other half", n) for n in (100, 1_000)]
    text = (
        f"A yes needs a difference beyond chance, and an AUROC of {LARGE_AUROC} (or {1 - LARGE_AUROC:.1f}) or means "
        f"{LARGE_DISTANCE} standard deviations apart. {asked[0]['seeds']} fits of {FITTED:,} + {FITTED:,} sentences."
        "\n\nShare of batches that are told to refit, in %:\n\n"
    )
    text += table(
        ("encoder", "text", *(f"{about.removeprefix('the ').removeprefix('its ')}, {n:,}" for about, n in columns)),
        (
            (row["encoder"], row["fitted on"], *(f"{100 * row['verdicts'][a][str(n)]['yes']:.1f}" for a, n in columns))
            for row in asked
        ),
    )
    for name in names:
        found = {row["fitted on"]: row["verdicts"] for row in asked if row["encoder"] == name}
        text += f"{name}: told to refit in % of batches of 100 sentences (distance of means, AUROC for 1,000):\n\n"
        lines = []
        for kind, said in found.items():
            about = [said["the same text" if other == kind else other] for other in found]
            cells = [
                f"{100 * one['100']['yes']:.0f} ({one['1000']['distance']:.1f}, {one['1000']['auroc']:.2f})"
                for one in about
            ]
            lines.append((kind, *cells))
        text += table(("fitted on", *found), lines)
    if paid:
        text += f"hit@1 of docstrings ({paid[0]['pairs']:,} pairs) after whitening fitted on:\n\n"
        kinds = list(paid[0]["hit@1"])
        text += table(
            ("encoder", *kinds), ((row["encoder"], *(str(row["hit@1"][kind]) for kind in kinds)) for row in paid)
        )
    return text


STUDY = Study(
    __file__,
    __doc__,
    cases,
    page,
    "text, nli and encoders",
    {
        "seeds": (10, "fits of each check"),
        "pairs": (1_000, "docstrings of which the cost is measured"),
        "cache": (Path(tempfile.gettempdir()) / "bertflow-material", "where embeddings are kept"),
    },
)
if __name__ == "__main__":
    STUDY.main()

"""For search: is it better to fit a calibrator on the texts that are searched than on as many others?

    python benchmarks/fit_on_indexed.py --data_dir DATA

The first line of a docstring must find the paragraph after it, among 2,500 paragraphs. A calibrator is fitted on as
many rows of each of four kinds:

    indexed texts        paragraphs that are searched, as they are in the index
    other texts          paragraphs of other docstrings: as long, of the same kind, not searched
    indexed sentences    sentences of the paragraphs that are searched
    other sentences      sentences of other docstrings

No other text or sentence is among the questions or the paragraphs, by text key. A seed draws the rows, and is the
flow's. Poolings by token frequency count the tokens of 2,500 paragraphs: the indexed ones, or others. Questions were
halved once: one half chooses the calibrator and the kind of each stand-in, the other half reports. Differences are of
means over seeds, with paired 95 % intervals from a bootstrap of the reporting questions. For comparison, "all" is
fitted once a seed on all that there is: 2,500 indexed paragraphs, or 12,000 other sentences. Stand-ins are those of
``material.py``: inner layers of a tuned MiniLM, and MLM4, a small plain masked-language-model BERT.

How few texts are enough? An index of n paragraphs, drawn by the seed, is whitened by the moments of these n alone, and
searched with their questions: n is 1 to 6 times the number of directions, all of them or the first 128. The difference
from raw embeddings is of the reporting half of the questions, a mean over the seeds whose index holds their paragraph.
Tokens are counted on all 2,500 paragraphs.

Writes fit_on_indexed.json beside this file; ``--few`` measures the small indexes alone.
"""

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from closed_forms import applied, whitening_at_most
from material import STAND_INS, Embedder, StandIn, Vectors
from study import Case, Row, Study, table, with_interval

from bertflow.affine import whitening_map
from bertflow.data.docstrings import docstring_corpus, docstring_pairs, sentences
from bertflow.data.pairs import Pairs
from bertflow.evaluation.significance import generator, pair_weights
from bertflow.evaluation.ungraded import right_ranks
from bertflow.moments import Moments
from bertflow.text_keys import text_key
from bertflow.training.flow_fit import fit_flow

PAIRS, ROWS, OTHERS = 2_500, 2_000, 12_000
"""Questions and paragraphs; rows of a fit; other sentences that "all" is fitted on."""
CHOSEN = ("L1L2", "L3", "MLM4")
KINDS = ("indexed texts", "other texts", "indexed sentences", "other sentences")
ALL = ("all indexed texts", "all other sentences")
AGAINST: Mapping[str, str] = {
    "indexed texts": "other texts",
    "indexed sentences": "other sentences",
    "all indexed texts": "all other sentences",
}
"""What each kind is compared with; the indexed texts with other sentences, too, which is what users have."""
Fit = Callable[[Vectors, int], torch.nn.Module]
CALIBRATORS: Mapping[str, tuple[str, Fit]] = {
    "whitening": ("pooling", lambda x, seed: whitening_map(Moments.of(x))),
    "sif + whitening": ("sif", lambda x, seed: whitening_map(Moments.of(x))),
    "soft-sif + flow": ("soft", lambda x, seed: fit_flow(x, random_state=seed, n_components="all").map),
}
"""Each with its pooling of a stand-in's layers, and how it is fitted to rows."""

TIMES = (1, 1.5, 2, 3, 4, 6)
"""Texts a direction, of the small indexes."""
FIRST = (None, 128)
"""Directions that whitening keeps there; None for all."""

Ranks = np.ndarray[Any, np.dtype[np.intp]]


class Collection:
    """The searched paragraphs, their questions, and what calibrators are fitted on.

    Args:
        data_dir: Holds ``encoders``.
        cache: Where embeddings are kept.
    """

    def __init__(self, data_dir: Path, cache: Path) -> None:
        others, self.pairs = docstring_corpus(PAIRS, OTHERS)
        indexed = list(self.pairs.second)
        self.text = {
            "indexed texts": indexed,
            "other texts": other_texts(self.pairs),
            "indexed sentences": list(dict.fromkeys(one for text in indexed for one in sentences(text))),
            "other sentences": others,
        }
        self._embedder = Embedder(data_dir, cache)

    def embedded(self, encoder: str, kind: str) -> tuple[dict[str, Vectors], dict[str, Vectors], dict[str, Vectors]]:
        """By pooling: the rows to fit on, the questions and the paragraphs; tokens counted on text of that kind."""
        counted = self.text["indexed texts" if "indexed" in kind else "other texts"][:PAIRS]
        texts = (self.text[kind.removeprefix("all ")], self.pairs.first, self.pairs.second)
        fitted, questions, paragraphs = (self._embedder.embed(encoder, one, counted) for one in texts)
        return fitted, questions, paragraphs


def other_texts(scored: Pairs) -> list[str]:
    """Paragraphs of other docstrings that hold no sentence of the scored ones, in random order."""
    shown = {text_key(sentence) for text in scored.sentences for sentence in (text, *sentences(text))}
    left = [
        text
        for text in docstring_pairs().second
        if not shown & {text_key(sentence) for sentence in (text, *sentences(text))}
    ]
    return [left[row] for row in np.random.default_rng(0).permutation(len(left))]


def ranks(collection: Collection, one: StandIn, kind: str, calibrator: str, seed: int) -> Ranks:
    """The rank of the right paragraph for each question (questions,), from 1."""
    layers, fit = CALIBRATORS[calibrator]
    rows, questions, paragraphs = (side[getattr(one, layers)] for side in collection.embedded(one.encoder, kind))
    if kind in KINDS:
        rows = rows[np.sort(np.random.default_rng(seed).permutation(len(rows))[:ROWS])]
    fitted = fit(np.array(rows), seed)
    found: Ranks = right_ranks(applied(fitted, questions), applied(fitted, paragraphs))
    return found


def scores(found: Sequence[Sequence[int]], half: np.ndarray) -> np.ndarray:
    """Hit and reciprocal rank x 100 (2, questions) of a half of the questions, means over seeds."""
    by_seed = np.array(found)[:, half]
    return 100 * np.stack([(by_seed == 1).mean(0), (1 / by_seed).mean(0)])


def compared(one: np.ndarray, other: np.ndarray, resamples: int) -> list[list[float]]:
    """For each metric the difference of two systems (2, questions) and its paired 95 % interval."""
    difference = one - other
    n = difference.shape[1]
    weights = pair_weights([np.arange(n, dtype=np.intp)], resamples, generator(0, "fit_on_indexed"))
    drawn = np.concatenate([rows @ difference.T / n for rows in weights])
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    return np.round(np.stack([difference.mean(1), low, high], axis=1), 2).tolist()


def halves() -> list[np.ndarray]:
    """Questions that choose, and those that report."""
    return np.array_split(np.random.default_rng(15).permutation(PAIRS), 2)


def summary(collection: Collection, name: str, calibrator: str, options: Namespace) -> dict[str, Any]:
    """Scores of one stand-in and calibrator on both halves, and the differences on the reporting one."""
    ranked = {
        kind: [ranks(collection, STAND_INS[name], kind, calibrator, seed) for seed in range(options.seeds)]
        for kind in (*KINDS, *ALL)
    }
    chooses, reports = ({kind: scores(each, half) for kind, each in ranked.items()} for half in halves())
    against = [*AGAINST.items(), ("indexed texts", "other sentences"), ("indexed texts", "indexed sentences")]
    return {
        "chooses": {kind: np.round(each.mean(1), 2).tolist() for kind, each in chooses.items()},
        "reports": {kind: np.round(each.mean(1), 2).tolist() for kind, each in reports.items()},
        "differences": {
            f"{kind} - {other}": compared(reports[kind], reports[other], options.resamples) for kind, other in against
        },
        "seeds": options.seeds,
    }


def few_texts(collection: Collection, name: str, keeps: int | None, times: float, options: Namespace) -> dict[str, Any]:
    """Indexes of few texts: hit@1 raw and whitened, the difference and its interval."""
    one = STAND_INS[name]
    rows, questions, paragraphs = (side[one.sif] for side in collection.embedded(one.encoder, KINDS[0]))
    reports = set(halves()[1].tolist())
    n = int(times * (keeps or rows.shape[1]))
    sums = np.zeros((3, PAIRS))  # hits raw, hits whitened, how often a question was asked
    for seed in range(options.seeds):
        indexed = np.sort(np.random.default_rng(seed).permutation(PAIRS)[:n])
        asked = np.array([row in reports for row in indexed])
        fitted = whitening_at_most(Moments.of(rows[indexed]), keeps or rows.shape[1])
        sides = (questions[indexed], paragraphs[indexed])
        for k, z in enumerate((sides, tuple(applied(fitted, side) for side in sides))):
            sums[k, indexed[asked]] += right_ranks(*z)[asked] == 1
        sums[2, indexed[asked]] += 1
    weights = pair_weights([np.arange(PAIRS, dtype=np.intp)], options.resamples, generator(0, "few_texts"))
    drawn = np.concatenate([rows @ sums.T for rows in weights])
    low, high = np.quantile(100 * (drawn[:, 1] - drawn[:, 0]) / drawn[:, 2], [0.025, 0.975])
    raw, whitened = 100 * sums[:2].sum(1) / sums[2].sum()
    found = {"raw": raw, "whitened": whitened, "low": low, "high": high}
    return {"texts": n, "seeds": options.seeds, **{key: round(float(value), 2) for key, value in found.items()}}


def few_to_markdown(few: Sequence[Row]) -> str:
    """A row a stand-in and number of directions, a column a number of texts."""
    lines = []
    for name, keeps in dict.fromkeys((row["stand-in"], row["keeps"]) for row in few):
        cells = [
            f"{row['raw']:.1f} to {row['whitened']:.1f} "
            f"({with_interval(row['whitened'] - row['raw'], row['low'], row['high'])})"
            for row in few
            if (row["stand-in"], row["keeps"]) == (name, keeps)
        ]
        lines.append((name, str(keeps or "all"), *cells))
    return (
        "An index of few texts, whitened (`sif`) by its own moments. hit@1, raw to whitened, and the difference with "
        f"its 95 % interval; {few[0]['seeds']} seeds, the reporting questions:\n\n"
        + table(("stand-in", "directions", *(f"{times:g} texts a direction" for times in TIMES)), lines)
    )


def page(every: Sequence[Row]) -> str:
    """Scores and differences of hit@1 with their intervals, and indexes of few texts; the MRR is in the JSON."""
    rows, few = [row for row in every if "reports" in row], [row for row in every if "times" in row]
    what = ("stand-in", "calibrator")
    text = (
        f"hit@1 x 100 on {PAIRS // 2} questions among {PAIRS} paragraphs; {ROWS} rows a fit, {rows[0]['seeds']} "
        f"seeds. The other {PAIRS // 2} questions chose. `all`: {PAIRS} indexed texts, or {OTHERS} other sentences.\n\n"
    )
    shown = {id(row): {kind: f"{row['reports'][kind][0]:.1f}" for kind in (*KINDS, *ALL)} for row in rows}
    text += table((*what, *KINDS, *ALL), ((*(row[one] for one in what), *shown[id(row)].values()) for row in rows))
    names = list(rows[0]["differences"])
    lines = []
    for row in rows:
        cells = [with_interval(*row["differences"][name][0]) for name in names]
        lines.append((*(row[one] for one in what), *cells))
    text += f"Differences of hit@1, with paired 95 % intervals:\n\n{table((*what, *names), lines)}"
    text += "Chosen by the other half (hit@1), among kinds of equal size:\n\n"
    for name in dict.fromkeys(row["stand-in"] for row in rows):
        choices = [(row["chooses"][kind][0], row, kind) for row in rows if row["stand-in"] == name for kind in KINDS]
        _, best, kind = max(choices, key=lambda each: each[0])
        text += f"* {name}: {best['calibrator']} on {kind}, which the reporting half scores {shown[id(best)][kind]}\n"
    return f"{text}\n{few_to_markdown(few)}"


def cases(options: Namespace) -> Iterator[Case]:
    """Each stand-in with each calibrator, and the small indexes."""
    collection = Collection(options.data_dir, options.cache)
    for name in CHOSEN:
        for calibrator in () if options.few else CALIBRATORS:
            case = {"stand-in": name, "calibrator": calibrator}
            yield case, partial(summary, collection, name, calibrator, options)
        for keeps in FIRST:
            for times in TIMES:
                case = {"stand-in": name, "keeps": keeps, "times": times}  # type: ignore[dict-item]
                yield case, partial(few_texts, collection, name, keeps, times, options)


STUDY = Study(
    __file__,
    __doc__,
    cases,
    page,
    "encoders",
    {
        "cache": (Path("embeddings"), "where embeddings are kept"),
        "seeds": (5, "draws of the rows, and of the flow"),
        "resamples": (2_000, "of the bootstrap"),
        "few": (False, "measure the small indexes alone"),
    },
)
if __name__ == "__main__":
    STUDY.main()

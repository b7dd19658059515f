"""Are the pairs of ``bertflow fix --ask`` worth more than random ones? Judged by the gold of ``tuning``.

    python benchmarks/ask.py --data_dir DATA

On layers of raw and of tuned encoders, raw and seven candidates are fitted on 3,000 lines of other text. Of 2,500
random pairs of ``tuning``, 100 are drawn again and again: at random, or by how much the systems disagree, to a power.
Their gold stands for a person's judgements. Then

    choice     the system with the best Spearman on the 100 pairs
    verdict    what ``bertflow fix --labels`` advises: the best candidate if it is proven to be better than raw, else
               raw; asked pairs choose and judge all together, with correction, random ones in halves

and what was chosen is compared with the best of the systems on all 5,369 pairs: how often is it the same, and how many
points (Spearman x 100, "all") does the choice cost? Writes ask.json.
"""

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from material import FIRST_OF_EACH_LINE, STAND_INS, TUNED, StandIn, evaluation_keys, folders
from numpy.typing import NDArray
from scipy.stats import rankdata
from study import Case, Row, Study, table

from bertflow.advise.asking import POWER, drawn
from bertflow.advise.candidates import fit_candidates, parse_candidates
from bertflow.advise.evidence import ASKED, LABELED, Evidence
from bertflow.calibration.spelling import RAW
from bertflow.data.corpus import load_sentences
from bertflow.data.docstrings import sentences as sentences_of
from bertflow.data.pairs import Pairs
from bertflow.data.sts import load_sts
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.evaluation.sides import pair_cosines
from bertflow.evaluation.systems import SharedPass
from bertflow.text_keys import text_key

CANDIDATES = "whitening,whitening(96),sif+whitening,sif+whitening(96),soft-sif+whitening,soft-sif+whitening(96),abtt(3)"
ROWS: Mapping[str, StandIn] = {
    **{name: STAND_INS[name] for name in ("L0", "L1L2", "L3", "MLM4")},
    "last two (tuned)": StandIn("minilm", "mean(-2,-1)", "sif(-2,-1)"),
    "last (tuned)": TUNED["last"],
}
ASKED_FOR, AT_HAND = 100, 2_500
POWERS = (0, 1, 2, 3, 4, 6, 20)
"""0 draws at random."""
Found = list[tuple[bool, float]]
"""Of each draw: whether the best system was found, and what the choice costs."""


def ranks_agree(cosines: NDArray[np.floating], gold: NDArray[np.floating]) -> NDArray[np.floating]:
    """Spearman of each of k systems (k, n) with the gold."""
    return np.array([np.corrcoef(rankdata(one), rankdata(gold))[0, 1] for one in cosines])


def measured(
    systems: Mapping[str, SentenceEncoder], tuning: Pairs, draws: int, verdicts: int, resamples: int
) -> dict[str, Any]:
    """By power, what 100 pairs choose and what ``fix`` makes of them."""
    names = list(systems)
    cosines = np.stack([pair_cosines(system, tuning) for system in systems.values()])
    whole = ranks_agree(cosines, tuning.target)
    number = {sentence: row for row, sentence in enumerate(tuning.sentences)}
    sides = tuning.rows(number)
    rng = np.random.default_rng(0)
    choice: dict[int, Found] = {power: [] for power in POWERS}
    verdict: dict[int, Found] = {0: [], POWER: []}

    def found(system: int) -> tuple[bool, float]:
        return bool(system == whole.argmax()), float(100 * (whole[system] - whole.max()))

    for draw in range(draws):
        rows = rng.permutation(len(tuning))[:AT_HAND]
        for power in POWERS:
            some = rows[drawn(cosines[:, rows], sides[:, rows], ASKED_FOR, rng, power)]
            choice[power].append(found(int(ranks_agree(cosines[:, some], tuning.target[some]).argmax())))
            if power in verdict and draw < verdicts:
                pairs = replace(tuning.taken(some), subsets=())  # sub-sets of a pair or two rank nothing
                evidence = Evidence(ASKED, pairs, pairs, ASKED_FOR)
                if not power:
                    evidence = Evidence(LABELED["graded"], pairs.taken(range(0, 100, 2)), pairs.taken(range(1, 100, 2)))
                judged = evidence.judge(systems, resamples, draw)
                verdict[power].append(found(names.index(judged.chosen if judged.chosen and judged.proves else RAW)))
    best = names[int(whole.argmax())]
    scores = {name: 100 * float(score) for name, score in zip(names, whole, strict=True)}
    kinds = {"choice": choice, "verdict": verdict}
    found_by = {
        kind: {str(power): summed(each) for power, each in by_power.items()} for kind, by_power in kinds.items()
    }
    return {"best": best, "scores": scores, **found_by}


def summed(found: Found) -> dict[str, float]:
    """Share of the draws that found the best system; mean and worst cost."""
    costs = [cost for _, cost in found]
    return {"found": float(np.mean([same for same, _ in found])), "cost": float(np.mean(costs)), "worst": min(costs)}


def page(rows: Sequence[Row]) -> str:
    """By stand-in, and the means."""
    powers = (0, POWER)  # the others are in the JSON
    titles = ["random", "asked"]
    lines, kinds = [], list[list[Mapping[str, float]]]()
    for row in rows:
        found = [row[kind][str(power)] for kind in ("choice", "verdict") for power in powers]
        kinds.append(found)
        cells = [f"{100 * one['found']:.0f} % ({one['cost']:+.2f}, {one['worst']:+.1f})" for one in found]
        raw, best = (row["scores"][name] for name in (RAW, row["best"]))
        lines.append((row["layers"], f"{raw:.1f}", f"{row['best']} {best:.1f}", *cells))
    every = [
        f"{100 * np.mean([one['found'] for one in each]):.0f} % ({np.mean([one['cost'] for one in each]):+.2f}, "
        f"{min(one['worst'] for one in each):+.1f})"
        for each in zip(*kinds, strict=True)
    ]
    said = (
        f"How often {ASKED_FOR} pairs find the system that all of `tuning` finds, and what the choice costs: mean and "
    )
    said += "worst draw, Spearman x 100.\n\n"
    header = ("layers", "raw", "best", *titles, "verdict, random", "verdict, asked")
    return said + table(header, [*lines, ("all", "", "", *every)])


def lines_to_fit(data_dir: Path) -> list[str]:
    """3,000 lines of books, Wikipedia and speech, in runs of 20; none of them is scored."""
    folder, seen = data_dir / "text", evaluation_keys(data_dir)

    def sampled(file: str, n: int) -> Iterator[str]:
        every = load_sentences(folder / file)
        return (every[row] for row in np.sort(np.random.default_rng(0).permutation(len(every))[:n]))

    wiki = load_sentences(data_dir / min(FIRST_OF_EACH_LINE), ["2"])
    lines = list[str]()
    for paragraphs in (
        map(sentences_of, sampled("books_paragraphs.txt.gz", 4_000)),
        ([part.strip() for part in line.split("<::::>")] for line in wiki),
        ([line] for line in sampled("commonvoice_en_sentences.txt.gz", 9_000)),
    ):
        known, found = set(seen), list[str]()
        for paragraph in paragraphs:
            new = {text_key(one): one for one in paragraph if text_key(one) not in known}
            known |= new.keys()
            found += list(new.values())[:1]
        lines += found[:2_500]
    lines = [lines[row] for row in np.random.default_rng(1).permutation(len(lines))]
    runs = [lines[start : start + 20] for start in range(0, len(lines), 20)]
    return [line for row in np.random.default_rng(0).permutation(len(runs)) for line in runs[row]][:3_000]


def cases(options: Namespace) -> Iterator[Case]:
    """One for each of ``ROWS``."""
    tuning, fitted = load_sts("tuning", options.data_dir / "sts"), lines_to_fit(options.data_dir)
    candidates = parse_candidates(CANDIDATES)
    poolings = {name: {row: row.pooling_for(one.pooling) for row in candidates} for name, one in ROWS.items()}

    @cache
    def source(encoder: str) -> SharedPass:
        folder = folders(options.data_dir)[encoder]
        shared = SharedPass(TransformerEncoder(folder, pooling="mean", device="cpu", max_length=128))
        for name, one in ROWS.items():  # all poolings share one pass if they are known before it
            for pooling in (one.pooling, *poolings[name].values()) if one.encoder == encoder else ():
                shared.pooled(pooling, fitted)
        return shared

    def fit(name: str, one: StandIn) -> dict[str, Any]:
        shared = source(one.encoder)
        systems = {**fit_candidates(shared, poolings[name], fitted, seed=0), RAW: shared.pooled(one.pooling)}
        return measured(systems, tuning, options.draws, options.verdicts, options.resamples)

    for name, one in ROWS.items():
        yield {"layers": name}, partial(fit, name, one)


STUDY = Study(
    __file__,
    __doc__,
    cases,
    page,
    "sts, text and encoders",
    {
        "draws": (200, "draws of 100 pairs"),
        "verdicts": (30, "draws of which the verdict is made, too"),
        "resamples": (500, "of every bootstrap"),
    },
)
if __name__ == "__main__":
    STUDY.main()

"""Are the pairs of ``bertflow fix --ask`` worth more than random ones? Judged by the gold of ``tuning``.

    python benchmarks/ask.py --data_dir DATA

On layers of raw and of tuned encoders, raw and seven candidates are fitted on 3,000 lines of other text. Of 2,500
random pairs of ``tuning``, 100 are drawn again and again: at random, or by how much the systems disagree, to a power.
Their gold stands for a person's judgements. Then

    choice     the system with the best Spearman on the 100 pairs
    verdict    what ``bertflow fix --labels`` advises: the best candidate if it is proven to be better than raw, else
               raw; asked pairs choose and judge all together, with correction, random ones in halves

and what was chosen is compared with the best of the systems on all 5,369 pairs: how often is it the same, and how many
points (Spearman x 100, "all") does the choice cost? Writes ask.json and ask.md.
"""

import argparse
import json
import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from material import STAND_INS, TUNED, StandIn
from numpy.typing import NDArray
from scipy.stats import rankdata
from weak_pairs import read_texts, split

from bertflow.advise.asking import POWER, drawn
from bertflow.advise.candidates import fit_candidates, parse_candidates
from bertflow.advise.evidence import ASKED, LABELLED, Evidence
from bertflow.calibration.spelling import RAW
from bertflow.data.pairs import Pairs
from bertflow.data.sts import load_sts
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.embedded import embedded_encoder
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import NullDirectionWarning
from bertflow.evaluation.systems import SharedPass, pair_cosines

HERE = Path(__file__).parent
logger = logging.getLogger("ask")
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
                    evidence = Evidence(
                        LABELLED["graded"], pairs.taken(range(0, 100, 2)), pairs.taken(range(1, 100, 2))
                    )
                judged = evidence.judge(systems, resamples, draw)
                verdict[power].append(found(names.index(judged.chosen if judged.chosen and judged.proves else RAW)))
    best = names[int(whole.argmax())]
    scores = {name: 100 * float(score) for name, score in zip(names, whole, strict=True)}
    kinds = {"choice": choice, "verdict": verdict}
    found_by = {kind: {power: summed(each) for power, each in by_power.items()} for kind, by_power in kinds.items()}
    return {"best": best, "scores": scores, **found_by}


def summed(found: Found) -> dict[str, float]:
    """Share of the draws that found the best system; mean and worst cost."""
    costs = [cost for _, cost in found]
    return {"found": float(np.mean([same for same, _ in found])), "cost": float(np.mean(costs)), "worst": min(costs)}


def to_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """By stand-in, and the means."""
    lines = [
        f"How often {ASKED_FOR} pairs find the system that all of `tuning` finds, and what the choice costs: mean and "
        "worst draw, Spearman x 100.",
        "",
        f"| layers | raw | best | {' | '.join('random' if not power else f'power {power}' for power in POWERS)} "
        "| verdict, random | verdict, asked |",
        "|---" * (5 + len(POWERS)) + "|",
    ]
    means: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
    for row in rows:
        cells = []
        for kind in ("choice", "verdict"):
            for power, one in row[kind].items():
                means.setdefault((kind, power), []).append((one["found"], one["cost"], one["worst"]))
                cells.append(f"{100 * one['found']:.0f} % ({one['cost']:+.2f}, {one['worst']:+.1f})")
        scores = row["scores"]
        lines.append(
            f"| {row['layers']} | {scores[RAW]:.1f} | {row['best']} {scores[row['best']]:.1f} | {' | '.join(cells)} |"
        )
    cells = [
        f"{100 * np.mean([share for share, *_ in each]):.0f} % ({np.mean([mean for _, mean, _ in each]):+.2f}, "
        f"{min(worst for *_, worst in each):+.1f})"
        for each in means.values()
    ]
    return "\n".join([*lines, f"| all | | | {' | '.join(cells)} |"]) + "\n"


def main() -> None:
    """Fit, draw, choose, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True, help="holds sts, text and encoders")
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--verdicts", type=int, default=30, help="draws of which the verdict is made, too")
    parser.add_argument("--resamples", type=int, default=500)
    parser.add_argument("--output", type=Path, default=HERE / "ask.json", help="and the same with .md")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    warnings.simplefilter("ignore", NullDirectionWarning)
    folders = {"minilm": embedded_encoder(), "mlm4": str(options.data_dir / "encoders" / "mlm-4x256")}
    tuning = load_sts("tuning", options.data_dir / "sts")
    fitted, _ = split(read_texts(options.data_dir)["all three, shuffled"], seed=0)
    candidates = parse_candidates(CANDIDATES)
    rows: list[dict[str, Any]] = []
    for encoder, folder in folders.items():
        source = SharedPass(TransformerEncoder(folder, pooling="mean", device="cpu", max_length=128))
        some = {name: one for name, one in ROWS.items() if one.encoder == encoder}
        poolings = {name: {row: row.pooling_for(one.pooling) for row in candidates} for name, one in some.items()}
        for name, one in some.items():  # all poolings share one pass if they are known before it
            for pooling in (one.pooling, *poolings[name].values()):
                source.pooled(pooling, fitted)
        for name, one in some.items():
            systems = {**fit_candidates(source, poolings[name], fitted, seed=0), RAW: source.pooled(one.pooling)}
            found = measured(systems, tuning, options.draws, options.verdicts, options.resamples)
            rows.append({"layers": name, **found})
            logger.info("%s: %s", name, found["best"])
            options.output.write_text(json.dumps({"resamples": options.resamples, "rows": rows}, indent=1) + "\n")
            options.output.with_suffix(".md").write_text(to_markdown(rows))


if __name__ == "__main__":
    main()

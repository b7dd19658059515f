"""What was tried in the first round: every recipe on every stand-in, scored on data that no table reports.

    python benchmarks/explore.py --data_dir DATA

STS: ``tuning`` (5,000 SICK and 369 STS-B pairs; the mean of the two Spearman correlations), fitted on its own
sentences (transductive) and on a mixture without them (inductive). Retrieval: 2,500 docstring pairs, hit@1,
fitted on 12,000 other sentences of docstrings. Writes explored.json and the tables of EXPLORED.md beside this file.
"""

import argparse
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from closed_forms import ALSO_TRIED, CLOSED_FORMS
from material import SETTINGS, STAND_INS, Embedded, Material

from bertflow.affine import whitening_map
from bertflow.flow.glow import FlowMap
from bertflow.moments import Moments
from bertflow.training.fitting import fit_flow

HERE = Path(__file__).parent
WIDTHS = (None, 192, 160, 128, 96)
"""How many of the flow's coordinates the embedding keeps; None for all."""


def flow(x: np.ndarray, seed: int, **changes: Any) -> torch.nn.Module:
    """The flow of the first round, eight epochs, with some fields changed; all of its coordinates kept."""
    fitted = fit_flow(x, random_state=seed, **{"epochs": 8, **changes}).map
    return FlowMap(fitted.affine, fitted.glow)


def flow_on_whitened(x: np.ndarray, seed: int, k: int) -> torch.nn.Module:
    """A flow that acts on the first k directions alone."""
    start = whitening_map(Moments.of(x), min(k, whitening_map(Moments.of(x)).dim_out))
    with torch.inference_mode():
        whitened = start(torch.from_numpy(np.array(x))).numpy()
    return torch.nn.Sequential(start, flow(whitened, seed))


def smoothed_flow(x: np.ndarray, seed: int, share: float = 1.0, copies: int = 3) -> torch.nn.Module:
    """A flow of the rows plus noise whose variance is that share of the median direction's."""
    variance = share * np.median(whitening_map(Moments.of(x)).inverse_weight.square().sum(1).numpy())
    random = np.random.default_rng(seed)
    noised = [x + np.sqrt(variance) * random.standard_normal(x.shape, dtype=np.float32) for _ in range(copies)]
    return flow(np.concatenate(noised).astype(np.float32), seed, epochs=8 / copies)


FLOWS: Mapping[str, Callable[[np.ndarray, int], torch.nn.Module]] = {
    "flow": flow,
    "flow, learned linear maps": lambda x, seed: flow(x, seed, glow={"permutation": "lu"}),
    "flow, affine couplings": lambda x, seed: flow(x, seed, glow={"coupling": "affine"}),
    "flow, 64 hidden": lambda x, seed: flow(x, seed, glow={"hidden": 64}),
    "flow, 2 epochs": lambda x, seed: flow(x, seed, epochs=2),
    "flow, averaged weights": lambda x, seed: flow(x, seed, ema=0.99),
    "flow on 128 directions": lambda x, seed: flow_on_whitened(x, seed, 128),
    "flow of smoothed rows": smoothed_flow,
}
"""Fits of flows; the first is the one that was chosen."""
VARIED_ON = (("L1L2", "inductive"), ("MLM4", "inductive"))
"""Where the other flows are tried, with the soft pooling."""


def recipes(stand_in: str, setting: str) -> Iterator[tuple[str, str]]:
    """The pairs (pooling, name of a map) that are tried on a stand-in."""
    one = STAND_INS[stand_in]
    for pooling in dict.fromkeys((one.pooling, one.sif, one.soft)):
        yield from ((pooling, name) for name in (*CLOSED_FORMS, *ALSO_TRIED))
    yield from ((pooling, "flow") for pooling in (one.pooling, one.soft))
    if (stand_in, setting) in VARIED_ON:
        yield from ((one.soft, name) for name in FLOWS if name != "flow")


def tried(material: Material, data: Embedded, pooling: str, name: str, seed: int) -> Iterator[tuple[str, list[float]]]:
    """Scores of one fit, for each width that is read off it."""
    x = np.array(data.fitted[pooling])
    if name not in FLOWS:
        closed = {**CLOSED_FORMS, **ALSO_TRIED}[name](Moments.of(x))
        yield name, material.score(closed, data, pooling)
        return
    fitted = FLOWS[name](x, seed)
    for width in WIDTHS:
        yield f"{name}, keeps {width or 'all'}", material.score(fitted, data, pooling, width)


def explore(material: Material, seed: int) -> list[dict[str, Any]]:
    """All rows, each once: stand-ins that share a pooling share its rows."""
    rows: list[dict[str, Any]] = []
    done = set()
    for stand_in, one in STAND_INS.items():
        for setting in SETTINGS:
            data = material.embedded(one.encoder, setting)
            for pooling, name in recipes(stand_in, setting):
                if (one.encoder, setting, pooling, name) in done:
                    continue
                done.add((one.encoder, setting, pooling, name))
                for recipe, scores in tried(material, data, pooling, name, seed):
                    row = {"encoder": one.encoder, "pooling": pooling, "setting": setting, "recipe": recipe}
                    rows.append({**row, "seed": seed, "score": float(np.mean(scores)), "parts": scores})
                    logging.info("%s %s %s %s %.2f", one.encoder, pooling, setting, recipe, rows[-1]["score"])
    return rows


def to_markdown(rows: list[dict[str, Any]]) -> str:
    """One table a pooling kind: recipes x stand-ins, three scores a cell."""
    score = {(row["encoder"], row["pooling"], row["setting"], row["recipe"]): row["score"] for row in rows}
    text = []
    for kind in ("pooling", "sif", "soft"):
        poolings = {name: (one.encoder, getattr(one, kind)) for name, one in STAND_INS.items()}
        if kind != "pooling":
            del poolings["CLS3"]  # the same as L3
        names = list(dict.fromkeys(row["recipe"] for row in rows))
        text += [f"| {', '.join(key[1] for key in poolings.values())} | {' | '.join(poolings)} |"]
        text += ["|---" * (len(poolings) + 1) + "|"]
        for name in names:
            cells = [[score.get((*key, setting, name)) for setting in SETTINGS] for key in poolings.values()]
            if any(score is not None for cell in cells for score in cell):
                text += [f"| {name} | {' | '.join(map(_cell, cells))} |"]
        text += [""]
    return "\n".join(text)


def _cell(scores: list[float | None]) -> str:
    return " / ".join("-" if score is None else f"{score:.1f}" for score in scores)


def main() -> None:
    """Fit, score, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True, help="holds sts, text, nli and encoders")
    parser.add_argument("--cache", type=Path, default=Path("embeddings"), help="where embeddings are kept")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    rows = explore(Material(options.data_dir, options.cache, ["tuning"]), options.seed)
    (HERE / "explored.json").write_text(json.dumps(rows, indent=1) + "\n")
    learned, mark, _ = (HERE / "EXPLORED.md").read_text().partition("<!-- tables -->\n")
    (HERE / "EXPLORED.md").write_text(f"{learned}{mark}\n{to_markdown(rows)}")


if __name__ == "__main__":
    main()

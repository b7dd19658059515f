"""When to stop a flow, and how many coordinates to keep: steps x widths, scored on data that no table reports.

    python benchmarks/stopping.py --data_dir DATA

The default's flow on the soft-sif pooling of each stand-in, stopped after some steps (its learning rate falls to zero
there); no steps are whitening. A cell holds, as in EXPLORED.md,

    tuning, fitted on its own 5,762 sentences / on 24,000 others / hit@1 of docstrings, fitted on 12,000 others

Writes stopping.json and stopping.md beside this file.
"""

import argparse
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from closed_forms import CLOSED_FORMS
from material import SETTINGS, STAND_INS, Embedded, Material, StandIn

from bertflow.files import write_json, write_text
from bertflow.flow.glow import FlowMap
from bertflow.moments import Moments
from bertflow.progress import unsaid
from bertflow.training.fitting import fit_flow

HERE = Path(__file__).parent
STEPS = (0, 90, 180, 250, 375, 500, 750)
WIDTHS = (64, 80, 96, 128, None)
"""Coordinates that are kept; None for all."""


def best_closed_form(material: Material, one: StandIn, data: Embedded) -> tuple[str, float]:
    """The best closed form over the stand-in's poolings."""
    scores = {}
    for pooling in dict.fromkeys((one.pooling, one.mean, one.sif, one.soft)):
        moments = Moments.of(np.array(data.fitted[pooling]))
        for name, form in CLOSED_FORMS.items():
            scores[f"{pooling} {name}"] = float(np.mean(material.score(form(moments), data, pooling)))
    return max(scores.items(), key=lambda found: found[1])


def stopped(x: np.ndarray, steps: int, seed: int) -> FlowMap:
    """The default's flow after so many steps, all of its coordinates kept."""
    with unsaid():
        return fit_flow(x, n_components="all", random_state=seed, trainer={"max_steps": steps}).map


def explore(material: Material, seed: int) -> Iterator[dict[str, Any]]:
    """One row a stand-in and setting. [CLS] of the third layer is pooled like the third layer."""
    for name, one in STAND_INS.items():
        if name == "CLS3":
            continue
        for setting in SETTINGS:
            logging.info("%s %s", name, setting)
            data = material.embedded(one.encoder, setting)
            x = np.array(data.fitted[one.soft])
            fits = {0: CLOSED_FORMS["whitening"](Moments.of(x))}
            fits |= {steps: stopped(x, steps, seed) for steps in STEPS if steps}
            scores = {
                f"{steps} steps, keeps {width or 'all'}": float(np.mean(material.score(fit, data, one.soft, width)))
                for steps, fit in fits.items()
                for width in WIDTHS
            }
            closed, value = best_closed_form(material, one, data)
            yield {"stand-in": name, "setting": setting, "closed": closed, "best closed form": value, **scores}


def to_markdown(rows: list[dict[str, Any]]) -> str:
    """Stops and widths by stand-ins."""
    cell: Mapping[tuple[str, str], dict[str, Any]] = {(row["stand-in"], row["setting"]): row for row in rows}
    names = list(dict.fromkeys(row["stand-in"] for row in rows))
    recipes = [key for key in rows[0] if key not in ("stand-in", "setting", "closed")]
    lines = [f"| soft-sif pooling | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for recipe in recipes:
        cells = [" / ".join(f"{cell[name, setting][recipe]:.1f}" for setting in SETTINGS) for name in names]
        lines.append(f"| {recipe} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Fit, score, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True, help="holds sts, text, nli and encoders")
    parser.add_argument("--cache", type=Path, default=Path("embeddings"), help="where embeddings are kept")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    rows = list(explore(Material(options.data_dir, options.cache, ["tuning"]), options.seed))
    write_json(HERE / "stopping.json", rows)
    write_text(HERE / "stopping.md", to_markdown(rows))


if __name__ == "__main__":
    main()

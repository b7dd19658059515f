"""The page of the harm suite: what each method gains and harms, by part of the texts and use; and a picture of it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertflow.plots import COLORS, GREY, Figure, save_figure

PICTURED = "packages"
"""The text of the picture: descriptions of installed packages, which are searched, and compared with their kind."""
ENCODERS = {"inner": "inner layers of MiniLM", "plain": "a plain BERT"}
MARKED = ("center", "abtt(1)", "ridge(16)", "ridge(1)", "two-band(0.5)", "soft-sif+whitening(96)", "whitening", "fix")
"""Methods of the picture."""
WORST = 3
"""Cells of the table of the worst ones."""
Cell = Mapping[str, Any]


def to_markdown(cells: Sequence[Cell], uses: Mapping[str, Sequence[str]], bar: float, worth: float) -> str:
    """Of the first and the last part: a line for each method and its uses, and the worst cells of what ``fix`` writes.

    Args:
        cells: What ``harm.py`` measured.
        uses: By method, the uses that it is held to; all of them where it has no row.
        bar: Points that the lower end of a gain has to be above.
        worth: Gain from which a cell is worth having.
    """
    lines, halves = [], list(dict.fromkeys(cell["half"] for cell in cells))
    for half in dict.fromkeys(halves[:1] + halves[-1:]):
        some = [cell for cell in cells if cell["half"] == half]
        methods = list(dict.fromkeys(name for cell in some for name in cell["scores"] if name != "raw"))
        held = {
            name: [cell for cell in some if name in cell["scores"] and cell["use"] in uses.get(name, (cell["use"],))]
            for name in methods
        }
        kinds = list(dict.fromkeys(cell["use"] for cell in some))
        lines += [
            f"## The {half} part",
            "",
            f"| method | {' | '.join(kinds)} | harmed, of all | lowest end | raw |",
            "|---|" + "---:|" * (len(kinds) + 3),
            *(_method(name, found, kinds, bar, worth) for name, found in held.items() if found),
            "",
            f"The {WORST} worst cells of what `fix` writes:",
            "",
            "| method | fitted on -> used on | encoder | use | raw | gain |",
            "|---|---|---|---|---:|---:|",
            *_worst({name: found for name, found in held.items() if name in uses}),
            "",
        ]
    return "\n".join(lines)


def _method(name: str, cells: Sequence[Cell], uses: Sequence[str], bar: float, worth: float) -> str:
    """By use the cells that are harmed and the mean gain; and how often nothing changes where much can be gained."""
    shown = []
    for use in uses:
        scores = [cell["scores"][name] for cell in cells if cell["use"] == use]
        gain = sum(one["gain"] for one in scores) / max(len(scores), 1)
        shown.append(f"{sum(one['low'] <= bar for one in scores)}, {gain:+.1f}" if scores else "")
    lows = [cell["scores"][name]["low"] for cell in cells]
    worthwhile = [cell for cell in cells if max(one["gain"] for one in cell["scores"].values()) >= worth]
    same = sum(cell["scores"][name]["gain"] == 0 == cell["scores"][name]["low"] for cell in worthwhile)
    harmed = f"{sum(low <= bar for low in lows)} of {len(lows)}"
    return f"| {name} | {' | '.join(shown)} | {harmed} | {min(lows):+.1f} | {same} of {len(worthwhile)} |"


def _worst(held: Mapping[str, Sequence[Cell]]) -> list[str]:
    """The lowest lower ends."""
    found = [(cell["scores"][name], name, cell) for name, cells in held.items() for cell in cells]
    lines = []
    for one, name, cell in sorted(found, key=lambda row: row[0]["low"])[:WORST]:
        where = cell["fitted"] if cell["fitted"] == cell["used"] else f"{cell['fitted']} -> {cell['used']}"
        gain = f"{one['gain']:+.1f} ± {one['gain'] - one['low']:.1f}"
        raw = cell["scores"]["raw"]["value"]
        lines.append(f"| {name} | {where} | {cell['encoder']} | {cell['use']} | {raw:.1f} | {gain} |")
    return lines


def draw(cells: Sequence[Cell], path: Path) -> None:
    """What methods gain in search against what they gain in neighbors of the same kind, on the same text."""
    found = {
        (cell["encoder"], cell["use"]): cell["scores"]
        for cell in cells
        if cell["half"] == "choosing" and cell["fitted"] == cell["used"] == PICTURED
    }
    figure = Figure(figsize=(8.6, 4.2), layout="constrained", facecolor="white")
    for axes, (encoder, title), color in zip(figure.subplots(1, len(ENCODERS)), ENCODERS.items(), COLORS, strict=False):
        topic, search = found[encoder, "topic"], found[encoder, "search"]
        for name in MARKED:
            at = topic[name]["gain"], search[name]["gain"]
            axes.scatter(*at, s=28, color=color, zorder=3)
            axes.annotate(name, at, xytext=(5, 4), textcoords="offset points", fontsize=8)
        axes.axhline(0, color=GREY, linewidth=0.8)
        axes.axvline(0, color=GREY, linewidth=0.8)
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_xlabel("gain in neighbors of the same kind (P@10 x 100)")
        axes.margins(0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("gain in search (hit@1 x 100)")
    save_figure(figure, path)

"""The page of the harm suite: which cells each method breaches, what it gains, and every cell; and a picture of it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertflow.plots import COLORS, GREY, Figure, save_figure

PICTURED = "packages"
"""The text of the picture: descriptions of installed packages, which are searched, and compared with their kind."""
ENCODERS = {"inner": "inner layers of MiniLM", "plain": "a plain BERT"}
MARKED = ("center", "abtt(1)", "ridge(16)", "ridge(1)", "two-band(0.5)", "soft-sif+whitening(96)", "whitening", "fix")
"""Methods of the picture."""
Cell = Mapping[str, Any]


def to_markdown(cells: Sequence[Cell], uses: Mapping[str, Sequence[str]], bar: float, worth: float) -> str:
    """A line a method, then a table a use with a line a cell.

    Args:
        cells: What ``harm.py`` measured.
        uses: By method, the uses that it is held to; all of them where it has no row.
        bar: Points that the lower end of a gain has to be above.
        worth: Gain from which a cell is worth having.
    """
    lines = []
    for half in dict.fromkeys(cell["half"] for cell in cells):
        some = [cell for cell in cells if cell["half"] == half]
        methods = list(dict.fromkeys(name for cell in some for name in cell["scores"] if name != "raw"))
        lines += [f"## The {half} half", "", *_methods(some, methods, uses, bar, worth)]
        for use in dict.fromkeys(cell["use"] for cell in some):
            lines += [
                "",
                f"### {use.capitalize()}",
                "",
                *_cells([cell for cell in some if cell["use"] == use], methods),
            ]
        lines.append("")
    return "\n".join(lines)


def _methods(
    cells: Sequence[Cell], methods: Sequence[str], uses: Mapping[str, Sequence[str]], bar: float, worth: float
) -> list[str]:
    """How often each method is below the bar, and how often it changes nothing where there is something to gain."""
    lines = [
        f"| method | cells | below the bar ({bar:g}) | smallest lower end | mean gain | unchanged, of those in which "
        f"some method gains {worth:g} |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name in methods:
        held = [cell for cell in cells if name in cell["scores"] and cell["use"] in uses.get(name, (cell["use"],))]
        if not held:
            continue
        lows = [cell["scores"][name]["low"] for cell in held]
        gains = [cell["scores"][name]["gain"] for cell in held]
        worthwhile = [cell for cell in held if max(one["gain"] for one in cell["scores"].values()) >= worth]
        same = sum(cell["scores"][name]["gain"] == 0 == cell["scores"][name]["low"] for cell in worthwhile)
        lines.append(
            f"| {name} | {len(held)} | {sum(low <= bar for low in lows)} | {min(lows):+.1f} | "
            f"{sum(gains) / len(gains):+.2f} | {same} of {len(worthwhile)} |"
        )
    return lines


def _cells(cells: Sequence[Cell], methods: Sequence[str]) -> list[str]:
    """Each cell: raw, and the gains of all methods with the half-widths of their intervals."""
    lines = [
        f"| fitted on -> used on | encoder | words, novelty | n | raw | {' | '.join(methods)} |",
        "|---|---|---|---:|---:|" + "---:|" * len(methods),
    ]
    for cell in cells:
        scores = cell["scores"]
        where = cell["fitted"] if cell["fitted"] == cell["used"] else f"{cell['fitted']} -> {cell['used']}"
        shown = [
            f"{one['gain']:+.1f} ± {one['gain'] - one['low']:.1f}" if (one := scores.get(name)) else "-"
            for name in methods
        ]
        raw = scores["raw"]
        broad = f"{cell['words']:.0f}, {cell['novelty']:.1f}"
        lines.append(
            f"| {where} | {cell['encoder']} | {broad} | {raw['n']:,} | {raw['value']:.1f} | {' | '.join(shown)} |"
        )
    return lines


def draw(cells: Sequence[Cell], path: Path) -> None:
    """What methods gain in search against what they gain in neighbors of one kind, on the same text."""
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
        axes.set_xlabel("gain in neighbors of one kind (P@10 x 100)")
        axes.margins(0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("gain in search (hit@1 x 100)")
    save_figure(figure, path)

"""What ``bertflow sweep`` does: load, sweep, print, write; and say what it took."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bertflow.cli.printing import print_lines, print_table
from bertflow.data.corpus import load_sentences
from bertflow.data.labels import load_labels
from bertflow.data.sts import expand_tasks, load_sts
from bertflow.encoder.devices import peak_memory
from bertflow.encoder.pooling import TOKEN_REDUCTIONS
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import MissingExtraError, UsageError
from bertflow.evaluation.probe import Probe, probe
from bertflow.evaluation.sweep import candidates, sweep
from bertflow.evaluation.sweep_table import Sweep
from bertflow.files import write_json, write_text
from bertflow.registry import lookup

OF_STS = ("tasks", "data_dir", "fit_on")
OF_PROBE = ("folds", "seed")
ALL_BLOCKS = "sif"
"""A pooling that reads the last layer, so that the encoder is loaded once, with all blocks."""


def run_sweep(options: argparse.Namespace, argv: Sequence[str]) -> int:
    """Carry out what the command line asks for; returns the exit code."""
    begin, out, progress = time.perf_counter(), Console(), sys.stderr.isatty()
    _refuse_mixture(options)
    given = {name: value for name in ("max_length", "dtype") if (value := getattr(options, name)) is not None}
    encoder = TransformerEncoder(options.model, pooling=ALL_BLOCKS, device=options.device, **given)
    poolings = _poolings(options, encoder.describe()["blocks"])
    result: Sweep | Probe
    if options.labels:
        settings = {name: value for name in OF_PROBE if (value := getattr(options, name)) is not None}
        result = probe(encoder, load_labels(options.labels), poolings, progress=progress, **settings)
    else:
        data_dir = options.data_dir or "hub"
        sets = [load_sts(task, data_dir) for task in expand_tasks(options.tasks or "tuning", data_dir)]
        corpus = load_sentences(options.fit_on) if options.fit_on else None
        result = sweep(encoder, sets, poolings, corpus, progress)
    seconds = time.perf_counter() - begin
    print_table(out, result.table())
    peak, disk = peak_memory(), round(result.scratch_bytes / 2**20)
    memory = f"at most {round(peak / 2**20)} MiB of memory, " if peak else ""
    cost = f"{seconds:.1f} s, {memory}{disk} MiB of scratch files."
    print_lines(out, [*result.summary(), cost])
    if options.output:
        _write(result, options.output, argv, seconds)
    return 0


def _refuse_mixture(options: argparse.Namespace) -> None:
    """An option of the other mode would be ignored: it is refused."""
    wrong = OF_STS if options.labels else OF_PROBE
    for name in wrong:
        if getattr(options, name) is not None:
            other = "which --labels does without" if options.labels else "which needs --labels"
            raise UsageError(
                f"--{name} belongs to the {'STS tasks' if options.labels else 'probe'}, {other}. Leave one out."
            )


def _poolings(options: argparse.Namespace, blocks: int) -> list[str]:
    """The candidates; those of one layer as the user chose them, and those of several."""
    layers = _numbers(options.layers, blocks) if options.layers else None
    tokens = options.tokens.split(",") if options.tokens else None
    for name in tokens or ():
        lookup("token reduction", TOKEN_REDUCTIONS, name)
    return candidates(blocks, layers, tokens)


def _numbers(spelling: str, blocks: int) -> list[int]:
    try:
        layers = [int(part) for part in spelling.split(",")]
    except ValueError:
        raise UsageError(f"--layers takes numbers with commas, as 0,3,6; got {spelling!r}.") from None
    for layer in layers:
        if not 0 <= layer <= blocks:
            raise UsageError(f"--layers go from 0 (embedding layer) to {blocks} for this encoder, got {layer}.")
    return layers


def _write(result: Sweep | Probe, folder: Path, argv: Sequence[str], seconds: float) -> None:
    write_text(folder / "sweep.json", result.to_json())
    write_text(folder / "sweep.md", result.to_markdown())
    write_text(folder / "sweep.csv", result.to_csv())
    run = {"arguments": list(argv), "seconds": round(seconds, 1), "peak_memory_bytes": peak_memory()}
    write_json(folder / "run.json", run | {"scratch_bytes": result.scratch_bytes})
    _draw(result, folder / "sweep.png")


def _draw(result: Sweep | Probe, path: Path) -> None:
    grid = result.grid()
    try:
        from bertflow.plots import heatmaps, save_figure
    except MissingExtraError as error:
        print(f"note: no heatmap was drawn. {error}", file=sys.stderr)
        return
    title = "accuracy of a linear probe x 100" if isinstance(result, Probe) else "Spearman x 100"
    layers = [f"layer {layer}" for layer in grid.layers]
    save_figure(heatmaps(grid.panels, layers, grid.tokens, f"{title}: {result.encoder['encoder']}"), path)

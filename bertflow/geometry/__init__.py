"""``inspect_geometry``: a report on the geometry of an encoder, before and after calibration.

measures      cloud.py  measures.py  pairs.py  frequency.py  contexts.py  history.py: numbers, and sections of them
report        card.py  inspecting.py: what is looked at, and which sections are made
records       report.py: the card, the sections, and the page; imports none of the others
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bertflow.data.sts import require_tasks
from bertflow.errors import require_between, require_seed
from bertflow.files import require_files, require_place
from bertflow.geometry.report import REPORT, GeometryReport, require_page, show_page
from bertflow.next_steps import next_command, option_words
from bertflow.opening import require_openable

if TYPE_CHECKING:
    from bertflow.data.pairs import Pairs
    from bertflow.encoder.abstract import SentenceEncoder

FEWEST = 24
"""Fewest sentences for a report: ten neighbors are then fewer than half of them."""
DOCSTRINGS, NONE = "docstrings", "none"
"""What ``pairs`` may be besides a task and a table."""


def inspect_geometry(
    model: "str | Path | SentenceEncoder | None" = None,
    text: "str | Path | Sequence[str] | None" = None,
    *,
    compare: str | None = None,
    sentences: int = 2000,
    pairs: "str | Path | Pairs" = DOCSTRINGS,
    data_dir: str = "hub",
    frequencies: str | Path | None = None,
    pooling: str | None = None,
    max_length: int | None = None,
    device: str = "auto",
    seed: int = 0,
    output: str | Path | None = None,
    open_report: bool = False,
    progress: bool | None = None,
) -> GeometryReport:
    """Report on the geometry of an encoder, before and after calibration.

    The report is one HTML file (no network, no script) and a JSON file with every number. Pictures need matplotlib:
    pip install 'bertflow[plots]'.

    Args:
        model: A hub id, the folder of an encoder, a folder that CalibratedEncoder.save wrote, the folder of a train.py
            run, or a file of word vectors; in Python also an encoder (default: inner layers of the embedded encoder).
        text: Sentences, of which some are looked at, and others are fitted on (default: docstrings).
        compare: Systems beside the model, as "raw,abtt(7),whitening" (default: raw,whitening,flow; for a calibrated
            model raw, and whitening if its calibrator is a flow). A flow has to be trained, so raw,whitening is faster.
        sentences: Number of sentences to look at, at most half of the text.
        pairs: An STS task, a table of scored pairs or of queries and texts, docstrings, or none.
        data_dir: Folder of the STS data; "hub" reads them from the hub, at pinned revisions.
        frequencies: Lines of a word and its count (default: counted in the text).
        pooling: Pooling of an encoder that is not calibrated: a name, or a row such as "mean(1,2)".
        max_length: Longest sentence of such an encoder, in tokens (default: its own, else 128).
        device: Where the encoder runs: cpu, cuda, ...
        seed: Random seed for the samples.
        output: Folder to write report.html and report.json to (on the command line by default: report, or RUN/report).
        open_report: Open report.html in the browser.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).

    Raises:
        UsageError: If an option cannot be used.
        DataError: If there are too few sentences, or data is missing or damaged.
    """
    require_between(FEWEST, sentences=sentences)
    require_seed(seed)
    require_page(output, open_report)
    require_place(output, folder=True)
    require_files(text, frequencies)
    from bertflow.calibration.spelling import parse_systems
    from bertflow.geometry import inspecting  # loads torch

    parse_systems(compare or "")
    if isinstance(pairs, str | Path) and pairs not in (NONE, DOCSTRINGS):
        require_tasks(str(pairs), data_dir)
    require_openable(model, pooling=pooling, max_length=max_length, device=device)
    opened = inspecting.open_encoder(model, device, pooling=pooling, max_length=max_length)
    drawn = inspecting.draw_text(text, pairs, data_dir, sentences, seed)
    options = option_words(pooling=pooling, max_length=max_length)
    then = next_command(model, calibrated=opened.calibrator is not None, text=text, options=options)
    report = inspecting.inspect_opened(opened, drawn, compare, frequencies, run_folder(model), progress, then)
    if output is None:
        return report
    report = replace(report, page=report.save(output) / REPORT)
    if open_report:
        show_page(Path(output) / REPORT)
    return report


def run_folder(model: "str | Path | SentenceEncoder | None") -> Path | None:
    """The folder of a training run, if that is what the user named."""
    return Path(model) if isinstance(model, str | Path) and (Path(model) / "run.json").is_file() else None

"""Reproducing: the published figures of an encoder, and the tables of the BERT-flow paper."""

from collections.abc import Callable
from pathlib import Path

from bertflow import kinds


def verify_paper(
    model: str, data_dir: str, max_length: int | None = None, device: str = "auto", progress: bool | None = None
) -> "kinds.Verification":
    """Check that this pipeline computes the published figures on your bert-base-uncased.

    Computes the figures of three poolings and of closed-form whitening, without training, and says PASS for each that
    is within 0.1, and FAIL for the others. The exit code is 4 if one fails.

    Args:
        model: bert-base-uncased: its folder, or its hub id.
        data_dir: Folder of the STS data, with the sub-sets of STS12-16.
        max_length: Longest sentence for all figures, in tokens (default: what each source used).
        device: cpu, cuda, ...
        progress: Whether to show a progress bar (default: in a terminal or a notebook).

    Returns:
        Every figure beside ours.

    Raises:
        DataError: If a task is missing, or has no sub-sets where its figure needs them.
    """
    from bertflow.studies.verification import verify_model

    return verify_model(model, data_dir, max_length, device, progress)


def paper_tables(
    models: list[str] | str,
    data_dir: str,
    output: str | Path = "runs/paper-tables",
    nli: list[str] | str | None = None,
    nli_models: list[str] | str | None = None,
    tasks: str = "sts7",
    seeds: int = 5,
    line: int | None = None,
    show_lines: bool = False,
    max_sentences: int | None = None,
    resamples: int = 1000,
    device: str = "auto",
    progress: bool | None = None,
    say: Callable[[str], None] | None = None,
) -> "kinds.PaperTables | kinds.PaperPlan":
    """Reproduce tables 2 and 3 of Li et al. 2020 on your encoders, with several seeds.

    Makes every line that is not done yet: avg, last2avg, flow (NLI) and flow (target), as the released code makes them.
    Then writes paper_tables.json and .md with means, standard deviations, paired intervals, and the published figures.
    It can be stopped at any time and goes on when it is called again; several jobs can make one line each.

    Args:
        models: BERT-base and BERT-large, or other encoders: hub ids or folders; for table 2.
        data_dir: Folder of the STS data, with the sub-sets of STS12-16.
        output: Folder of all lines and of the tables.
        nli: File of NLI sentences, or several, for the lines flow (NLI); without it they are left out.
        nli_models: An encoder after fine-tuning on NLI labels (configs/paper-nli.yaml), or several, for table 3.
        tasks: Tasks among the seven of the paper, with commas.
        seeds: Number of seeds of each flow.
        line: Make this line alone, by its number; in a SLURM array $SLURM_ARRAY_TASK_ID.
        show_lines: Show the lines with their numbers, and make none.
        max_sentences: Fit every flow on a random sample of this many sentences, as a rehearsal.
        resamples: Number of bootstrap resamples for the intervals; 0 for none.
        device: cpu, cuda, ...
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
        say: Called with a line before each line of the tables is made.

    Returns:
        The tables; with ``line`` or ``show_lines`` which lines are done.

    Raises:
        UsageError: For options that cannot be used, or lines in ``output`` that were made with others.
        DataError: For data that is missing, has no sub-sets, or has changed.

    Examples:
        ```bash
        bertflow paper-tables bert-base-uncased --data_dir data/sts --output runs/paper --list
        bertflow paper-tables bert-base-uncased bert-large-uncased --data_dir data/sts --nli snli.jsonl
        bertflow paper-tables bert-base-uncased --data_dir data/sts --tasks stsb --seeds 2 --max_sentences 500
        ```
    """
    from bertflow.studies.paper import make_tables

    counts = (seeds, line, show_lines, max_sentences, resamples)
    return make_tables(models, data_dir, output, nli, nli_models, tasks, *counts, device, progress, say)

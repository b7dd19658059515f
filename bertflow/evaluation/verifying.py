"""``verify_paper``: open an encoder, read the tasks, compute the published figures again."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bertflow.evaluation.paper_checks import CHECKS, tasks_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from bertflow.encoder.transformer import TransformerEncoder
    from bertflow.evaluation.verification import Verification


def verify_paper(
    model: str, data_dir: str, max_length: int | None = None, device: str = "auto", progress: bool = False
) -> "Verification":
    """Check that this pipeline computes the published figures on your bert-base-uncased.

    Without training: three poolings and closed-form whitening, computed again, PASS or FAIL within 0.1. Exit code 4 if
    one fails.

    Args:
        model: bert-base-uncased: its folder, or its hub id.
        data_dir: Folder of the STS data, with the sub-sets of STS12-16.
        max_length: Of all figures, in tokens (default: what each source used).
        device: cpu, cuda, ...
        progress: Show a bar on stderr.

    Returns:
        Every figure beside ours.

    Raises:
        DataError: If a task is missing, or has no sub-sets where its figure needs them.
    """
    from bertflow.data.sts import load_sts
    from bertflow.encoder.batching import tokenize
    from bertflow.encoder.checkpoint import Checkpoint
    from bertflow.encoder.folders import open_model
    from bertflow.encoder.transformer import TransformerEncoder
    from bertflow.evaluation.verification import verify

    checks = CHECKS if max_length is None else [replace(check, max_length=max_length) for check in CHECKS]
    longest = max(check.max_length for check in checks)

    def encoder_of(length: int) -> "TransformerEncoder":
        # "mean" reads the last layer, so that all blocks are loaded; the papers' encoders had no prompt.
        return TransformerEncoder(model, "mean", length, device=device, dtype="float32", prompt="")

    def tokens(sentences: Sequence[str]) -> "NDArray[np.integer[Any]]":
        return tokenize(sentences, Checkpoint.read(open_model(model, None)).tokenizer, longest).lengths

    sets = {task: load_sts(task, data_dir) for task in tasks_of(checks)}
    return verify(encoder_of, tokens, sets, checks, progress)

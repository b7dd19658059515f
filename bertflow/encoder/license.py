"""The license of a model, by the front matter of its README.md: of a hub repository, or of a folder in its format.

A saved encoder keeps in its record what the model said that it was made from, since what follows from the weights goes
on to everything that is made of them.
"""

import logging

import yaml
from huggingface_hub import metadata_load

from bertflow.encoder.folders import ModelFolder

logger = logging.getLogger("bertflow")

CARD = "README.md"
KEYS = ("license", "license_name", "license_link")
"""What the hub calls it; the last two where the first is "other"."""


def license_of(folder: ModelFolder) -> dict[str, str]:
    """What a model says of its license, by ``KEYS``; empty where it says nothing."""
    if folder.record:
        said = folder.record.get("license", {})
    else:
        # A sentence-transformers folder may keep its transformer in a folder of its own.
        places = (folder.path, folder.path.parent) if folder.modules else (folder.path,)
        card = next((place / CARD for place in places if (place / CARD).is_file()), None)
        try:
            said = (metadata_load(card) if card else None) or {}
        except (OSError, ValueError, yaml.YAMLError, RecursionError):
            logger.warning("%s cannot be read, so the license of %s is unknown.", card, folder.name)
            said = {}
    return {key: said[key] for key in KEYS if isinstance(said, dict) and isinstance(said.get(key), str)}

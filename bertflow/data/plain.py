"""Plain and awkward sentences that every machine has: golden vectors are of them, and encoders are told apart by them.

They never change: a golden file of today can be compared with one of next year.
"""

import json
from importlib.resources import files

PLAIN: tuple[str, ...] = tuple(
    json.loads((files("bertflow.data") / "plain_sentences.json").read_text(encoding="utf-8"))
)
"""26 short sentences: most are English, some other languages, code, and what a tokenizer stumbles over."""

"""Everything that decides an embedding, and what two encoders differ in.

    encoder.identity                 name, facts, calibrator and digest of an encoder
    held.differences(encoder.identity)
    held.require(encoder.identity, ...)   refuses what ``RULES`` refuses, logs the rest

A calibrator, a store, an index, scores and exports keep the identity of the encoder that their numbers are from, and
compare it before they are used with another one. A fact that one side does not have is not compared: encoders that
users write have fewer.
"""

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from bertflow.errors import DataError, logger
from bertflow.files import to_json
from bertflow.records import Checked

NO_FACTS = ("encoder", "labels", "tuned", "calibrator", "fitted_rows")
"""Keys of ``describe()`` that decide no raw embedding: names, and what the weights or the digest hold already."""


RULES: Mapping[str, tuple[bool, str]] = {
    "weights": (True, "other weights make other embeddings"),
    "blocks": (True, "layers are counted from the end of another model"),
    "pooling": (True, "another pooling makes other embeddings"),
    "layers": (True, "other layers are read"),
    "max_length": (True, "long sentences are cut elsewhere"),
    "prompt": (True, "the prompt is part of every embedding"),
    "query_prompt": (True, "the prompt is part of every embedding of a query"),
    "chunks": (True, "long texts are read in other parts"),
    "template": (True, "the template is part of every embedding"),
    "sif_a": (True, "tokens have other weights"),
    "token_counts": (True, "tokens have other weights"),
    "calibrator": (True, "another calibrator makes other embeddings"),
    "dtype": (False, "half precision moves an embedding a little; calibration may amplify it"),
    "graph": (False, "another backend gives other last digits"),
}
"""Fact -> whether a difference in it is refused unless it is forced, or only logged; and why."""
DIGESTS = ("weights", "token_counts")
"""Facts that are SHA-256 digests, whose beginning tells them apart."""
OF_ITS_OWN = (True, "the encoder says that it decides its embeddings")
"""Rule for facts that other kinds of encoder tell of themselves."""


UNSAID = "(not recorded)"


@dataclass(frozen=True)
class Mismatch:
    """One fact in which two encoders differ."""

    key: str
    mine: Any
    theirs: Any
    refused: bool
    reason: str


@dataclass(frozen=True)
class Identity:
    """Everything that decides an embedding. Two are equal if their embeddings are.

    Attributes:
        name: Name of the model; decides nothing.
        facts: What ``describe()`` says of the raw encoder, ``NO_FACTS`` left out; empty if nothing is known.
        calibrator: The calibrator with its parameters, for messages; empty for raw embeddings.
        digest: Fingerprint of the fitted map; empty for raw embeddings, or where it is unknown.
    """

    name: str = field(default="", compare=False)
    facts: Mapping[str, Any] = field(default_factory=dict)
    calibrator: str = field(default="", compare=False)
    digest: str = ""

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Identity":
        """The inverse of ``as_dict``; also reads an encoder's ``describe()``."""
        if not isinstance(recipe := record.get("recipe", record) or {}, Mapping):
            raise DataError(f"recipe should be an object that describes an encoder, got {recipe!r}. Write it again.")
        digest = record.get("digest", "") if "recipe" in record else ""  # of a ``describe()``, a fact of that name
        return cls(str(recipe.get("encoder", "")), _facts(recipe), str(record.get("calibrator", "")), str(digest))

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        recipe = {"encoder": self.name, **self.facts} if self.facts else None
        return {"recipe": recipe, "calibrator": self.calibrator, "digest": self.digest}

    def calibrated(self, calibrator: str, module: Any) -> "Identity":
        """The identity of this encoder followed by a fitted map."""
        digest = map_digest(module)
        if self.digest:
            digest = hashlib.sha256(f"{self.digest} {digest}".encode()).hexdigest()
        return Identity(self.name, self.facts, ", ".join(filter(None, (self.calibrator, calibrator))), digest)

    @property
    def raw(self) -> "Identity":
        """This identity without the calibrator."""
        return Identity(self.name, self.facts)

    @functools.cached_property
    def key(self) -> str:
        """Equal for equal identities; can be a key of a dictionary."""
        return to_json([self.facts, self.digest])

    def differences(self, other: "Identity") -> list[Mismatch]:
        """The facts that both know and that differ, refused ones first."""
        if not (self.facts and other.facts):
            return []
        sides = ((key, self.fact(key), other.fact(key)) for key in sorted({*self.facts, *other.facts}))
        found = [
            Mismatch(key, mine, theirs, *RULES.get(key, OF_ITS_OWN))
            for key, mine, theirs in sides
            if UNSAID not in (mine, theirs) and mine != theirs
        ]
        known = self.digest and other.digest
        mine, theirs = (self.digest, other.digest) if known else (self.calibrator, other.calibrator)
        if mine != theirs:
            found.append(Mismatch("calibrator", self.spelled(), other.spelled(), *RULES["calibrator"]))
        return sorted(found, key=lambda one: not one.refused)

    def require(
        self, given: "Identity", what: str, do: str, force: bool = False, exact: bool = False, other: str = "this is"
    ) -> None:
        """Refuse another encoder, or log how it differs.

        Args:
            given: The identity of the encoder at hand.
            what: What this identity belongs to, as the beginning of a sentence: "The calibrator was fitted on".
            do: What the user can do, as a sentence.
            force: Log what would be refused.
            exact: Refuse every difference: for numbers that stand beside those that are there.
            other: Leads to the encoder at hand in messages.

        Raises:
            DataError: For differences that are refused; the message gives all of them, on both sides.
        """
        found = self.differences(given)
        refused = [] if force else [one for one in found if exact or one.refused]
        if refused:
            raise DataError(f"{what} {self._told(given, refused, other)}. {do}")
        if found:
            logger.warning("%s %s.", what, self._told(given, found, other))

    def spelled(self) -> str:
        """The calibrator in words: "Whitening(n_components=None) (3fa21b90)", or "none"."""
        return f"{self.calibrator} ({self.digest[:8]})" if self.digest else self.calibrator or "none"

    def fact(self, key: str) -> Any:
        """What it says of a key, or the word for nothing."""
        if key == "query_prompt" and key not in self.facts:  # without roles, one prompt is for all
            key = "prompt"
        return self.facts.get(key, "none" if key == "chunks" else UNSAID)  # who does not speak of chunks has none

    def _told(self, given: "Identity", differences: list[Mismatch], other: str) -> str:
        """Both encoders by their names, their poolings, and what they differ in; and why that matters."""
        mine = self.told({one.key: one.mine for one in differences})
        theirs = given.told({one.key: one.theirs for one in differences})
        return f"{mine}; {other} {theirs} ({'; '.join(dict.fromkeys(one.reason for one in differences))})"

    def told(self, facts: Mapping[str, Any]) -> str:
        """Its name, its pooling and some facts, in words."""
        named = {"pooling": self.facts["pooling"], **facts} if "pooling" in self.facts else facts
        short = {key: value[:8] if key in DIGESTS and value else value for key, value in named.items()}
        shown = (f"{key} {value if key == 'calibrator' else repr(value)}" for key, value in short.items())
        return f"{self.name or 'an encoder'} with {', '.join(shown)}"


def _known(record: dict[str, Any]) -> dict[str, Any]:
    Identity.from_record(record)
    return record


MadeBy = Annotated[dict[str, Any], Checked(_known)]
"""What ``Identity.from_record`` reads, in a record."""


def _facts(description: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a ``describe()``, as they are after JSON."""
    facts = {key: value for key, value in description.items() if key not in NO_FACTS}
    return dict(json.loads(to_json(facts)))


def map_digest(module: Any) -> str:
    """Fingerprint of a fitted map: its class, its sizes and every number in it."""
    sha = hashlib.sha256(to_json({"map": type(module).__name__, **module.spec()}).encode())
    for name, tensor in sorted(module.state_dict().items()):
        array = np.ascontiguousarray(tensor.detach().cpu().numpy())
        sha.update(f"{name} {array.dtype.str} {array.shape}".encode() + array.tobytes())
    return sha.hexdigest()

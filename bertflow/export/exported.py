"""What an export gives back."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertflow.export.approximation import Int8Loss
from bertflow.results import AbstractResult


@dataclass(frozen=True, repr=False)
class Exported(AbstractResult):
    """An encoder that was written for other tools.

    Attributes:
        folder: Where it was written.
        target: A row of ``TARGETS``.
        describe: ``describe()`` of the encoder.
        ours: Modules of bertflow in it, for which sentence-transformers asks for a flag.
        facts: What was chosen or measured: layout and modules, or the difference from torch.
        stand_in: What an affine stand-in for a flow costs, in words; empty without one.
        int8: What int8 costs; None without it.
        distance: Distance of what sentence-transformers computes from the golden vectors, as a share of their length;
            None where that was not checked.
        commit: Address of the commit on the hub; empty if it was not pushed.
    """

    folder: Path
    target: str
    describe: Mapping[str, Any]
    ours: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    stand_in: tuple[str, ...] = ()
    int8: Int8Loss | None = None
    distance: float | None = None
    commit: str = ""

    def parts(self) -> Iterator[str]:
        """What a person reads."""
        what, facts = self.describe, self.facts
        names = ", ".join(sorted(path.name for path in self.folder.iterdir()))
        yield from self.stand_in
        yield f"encoder   {what['encoder']}, {what['pooling']}, {what.get('calibrator', 'as it comes')}"
        yield f"written   {self.folder} ({names})"
        if "modules" in facts:
            yield f"modules   {' -> '.join(['Transformer', *facts['modules']])}"
        if "chunks" in facts:
            yield f"chunks    {facts['long_texts']}"
        if self.ours:
            flag = f"trust_remote_code=True, as {' and '.join(self.ours)} is bertflow's"
            call = f"bertflow.load_sentence_transformer({str(self.folder)!r})"
            yield f"load      {call}; SentenceTransformer asks for {flag}"
        if "largest_difference_from_torch" in facts:
            yield f"checked   within {facts['largest_difference_from_torch']:.1e} of torch on unseen shapes"
        if self.int8:
            yield f"int8      {self.int8}"
        if self.distance is not None:
            yield f"checked   sentence-transformers gives the golden vectors within {self.distance:.1e} of their length"
        elif self.target == "sentence-transformers":
            yield "checked   not yet: sentence-transformers is not installed here; run `bertflow doctor` elsewhere"
        if self.commit:
            yield f"pushed    {self.commit}"

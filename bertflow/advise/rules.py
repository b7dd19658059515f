"""The rules of the verdict: from figures to the candidate that is used, and its grade.

They apply in this order:

    a change      the candidate that the choosing half prefers, if the 95 % interval of its gain over raw lies above 0
                  on the judging half; a flow is preferred only if it beats the best closed form in the same way.
                  Mined pairs measure search: for another use they prove a change only of a raw encoder, for search
    no proof      a recipe for raw encoders, where the geometry is theirs; it is likely, and proven if labels that chose
                  another find it better by more than chance. Labels, and pairs that measure the use, must not find it
                  worse, not even by chance; other pairs not by more than chance
    a veto        either stands beside the encoder and not in its place where something speaks against it: a narrow
                  text, queries of another kind, other neighbors. Labels outrank that if they are the use itself: of
                  search, or of similarity for similarity alone. In its place is a gentler change, where the text
                  has words enough and neither labels find it worse nor mined pairs by more than chance; or else the
                  encoder as it is
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from bertflow.advise.evidence import Judgement, proven
from bertflow.advise.likely import Geometry, Shape
from bertflow.calibration.spelling import RAW
from bertflow.evaluation.significance import Difference

PROVEN = "proven on your text"
LIKELY = "likely, not proven on your text"
GENTLE = "from other narrow texts, not proven on yours"
FOR_SEARCH = "proven on your text for search, likely for other uses"
WORSE = "So {} is not used."


@dataclass(frozen=True)
class Known:
    """What is known before anything is decided.

    Attributes:
        raw: Geometry of the raw embeddings.
        shape: What the geometry of the plain mean says.
        evidence: What each kind of evidence measured, the one that decides first.
        missing: Why there is no evidence, if there is none.
        purpose: What the encoder is used for: a row of ``bertflow.advise.likely.PURPOSES``.
        likely: The candidates to use where the geometry is that of raw encoders, the first one by default.
        stand_in: What pairs of other text say of ``likely``; None where they were not asked.
        safe: The candidate that takes the place of one that something speaks against; empty for none.
    """

    raw: Geometry
    shape: Shape
    evidence: Sequence[Judgement]
    missing: str
    purpose: str
    likely: Sequence[str]
    stand_in: Judgement | None
    safe: str

    def limited(self, among: Collection[str]) -> Self:
        """What is known where only some candidates may be advised."""
        evidence, likely = [one.limited(among) for one in self.evidence], [one for one in self.likely if one in among]
        if self.purpose != "search":
            # Mined pairs measure search: for other uses they judge what is likely, and choose nothing.
            evidence = [one.limited(likely) if one.evidence.mined else one for one in evidence]
        stand_in = self.stand_in.limited(among) if self.stand_in and likely else None
        safe = self.safe if self.safe in among else ""
        return replace(self, evidence=evidence, likely=likely, stand_in=stand_in, safe=safe)

    @property
    def recipe(self) -> str:
        """The candidate that is likely to help a raw encoder; empty for none."""
        return (self.stand_in.chosen or "") if self.stand_in else next(iter(self.likely), "")

    @property
    def untuned(self) -> bool:
        """Whether the geometry is that of encoders that calibration helped."""
        return looks_raw(self.raw, self.shape)

    @property
    def mined(self) -> bool:
        """Whether mined pairs decide."""
        return any(one.evidence.mined for one in self.evidence[:1])

    @property
    def refused(self) -> bool:
        """Whether pairs of other text find the recipe worse."""
        return self.stand_in is not None and self.stand_in.refuses(self.stand_in.chosen)


@dataclass(frozen=True)
class Ruling:
    """What the rules come to.

    Attributes:
        known: What they were applied to.
        worse: Candidates that the first evidence finds worse, and its words.
        wanted: What evidence or geometry asks for; raw for nothing.
        proved: Whether evidence proves it.
        gave_way: Whether it is the safe candidate, since the recipe was found worse.
        signs: What speaks against it, or against the recipe that gave way.
        system: The candidate to use; raw for none.
        likely: Whether something is likely to help, and not proven.
    """

    known: Known
    worse: Mapping[str, str]
    wanted: str
    proved: bool
    gave_way: bool
    signs: Sequence[str]
    system: str
    likely: bool

    @property
    def safe(self) -> str:
        """The safe candidate; empty for none, or where it was found worse."""
        return "" if self.known.safe in self.worse else self.known.safe

    @property
    def labeled(self) -> bool:
        """Whether labels prove what is wanted."""
        return self.proved and not self.known.mined

    @property
    def outranked(self) -> bool:
        """Whether these labels outrank what speaks against it: those of search, or of similarity if it is all."""
        similarity = self.known.purpose == "similarity"
        return self.labeled and (similarity or self.known.evidence[0].evidence.kind.metric == "mrr")

    @property
    def vetoed(self) -> bool:
        """Whether what speaks against it counts."""
        return bool(self.signs) and not self.outranked

    @property
    def put_aside(self) -> list[str]:
        """The candidates that are not used since they were found worse."""
        return [name for name in self.worse if not self.proved or name == self.known.safe]

    @property
    def replaced(self) -> bool:
        """Whether the safe candidate takes the place of another."""
        doubted = self.signs or self.put_aside or self.known.refused
        return self.likely and self.system == self.safe and bool(doubted)

    @property
    def gain(self) -> Difference | None:
        """Gain over raw of the candidate to use, on the pairs that judged it; None where there were none."""
        if self.known.evidence and self.system != RAW:
            return self.known.evidence[0].lead(self.system)
        return self.known.stand_in.gain if self.known.stand_in else None

    @property
    def standing(self) -> str:
        """The grade of its evidence; empty where nothing is changed."""
        if self.system == RAW:
            return ""
        known = self.known
        if not self.likely or (known.evidence and not known.mined and proven(self.gain)):
            return FOR_SEARCH if known.mined and known.purpose != "search" else PROVEN
        if known.purpose == "all" and known.mined and proven(self.gain) and not self.vetoed:
            return FOR_SEARCH
        return GENTLE if self.replaced else LIKELY


def rule(known: Known, vetoes: Callable[[str], Sequence[str]]) -> Ruling:
    """Apply the rules; ``vetoes`` says of a candidate what speaks against it, where no labels prove it."""
    asked = [name for name in (known.recipe, known.safe) if name and known.evidence]
    worse = {name: said for name in asked if (said := _found_worse(known, name))}
    recipe = "" if known.refused or known.recipe in worse else known.recipe
    safe = "" if known.safe in worse else known.safe
    wanted, proved = _wanted(known, recipe, safe)
    likely = wanted != RAW and not proved
    gave_way = bool(known.recipe and not recipe) and likely and wanted == safe
    signs = () if wanted == RAW else vetoes(known.recipe if gave_way else wanted)
    ruling = Ruling(known, worse, wanted, proved, gave_way, signs, wanted, likely)
    if not ruling.vetoed:
        return ruling
    harmful = bool(safe and vetoes(safe))
    return replace(ruling, system=RAW if harmful else safe or RAW, likely=not harmful)


def looks_raw(raw: Geometry, shape: Shape) -> bool:
    """Whether the geometry is that of encoders that calibration helped."""
    return shape.raw and not raw.centered


def _wanted(known: Known, recipe: str, safe: str) -> tuple[str, bool]:
    """The candidate that evidence or geometry asks for, raw for none; and whether evidence proves it."""
    for first in known.evidence[:1]:
        if first.chosen and first.proves and (not known.mined or known.purpose == "search" or known.untuned):
            return first.chosen, True
    return (recipe if recipe and known.untuned else safe or RAW), False


def _found_worse(known: Known, name: str) -> str:
    """What the first evidence says of a candidate that it finds worse.

    By chance is enough if it measures the use, but for mined pairs and the safe candidate, which does little harm: in
    text from templates such pairs are hardly found at all.
    """
    first = known.evidence[0]
    measures = not first.evidence.mined or (known.purpose in ("search", "all") and name != known.safe)
    worse = first.lead(name).difference < 0 if measures else first.refuses(name)
    return f"{first.said_of(name)} {WORSE.format(name)}" if worse else ""

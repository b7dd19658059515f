"""The steps of ``bertflow.fix`` once everything is read.

FitPlan    what is fitted, and what of it is used without proof
Findings   what that measured
Advice     what to do
"""

import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

from bertflow.advise import candidates as trying
from bertflow.advise.advice import Advice
from bertflow.advise.asked_queries import AskedQueries
from bertflow.advise.asking import choose_pairs
from bertflow.advise.case import Case, Request
from bertflow.advise.evidence import Judgement, docstring_evidence
from bertflow.advise.keeping import AGAIN, KEEP, Choice, choose
from bertflow.advise.likely import (
    COSTS,
    ONE_TOKEN_COST,
    WEIGHTS,
    Geometry,
    Shape,
    fallbacks,
    layers_are_open,
    plain_pooling,
    reads_one_token,
    recipes,
)
from bertflow.advise.reasons import COST, FOR_TOPIC, NAMING, NOTHING, SPANS_FEWER
from bertflow.advise.rules import PROVEN, Known, looks_raw
from bertflow.advise.verdict import Decision, decide
from bertflow.advise.vetoes import Vetoes
from bertflow.breadth import are_titles
from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.spelling import RAW, SystemSpec
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.cutting import Cut, measure_cut
from bertflow.encoder.pooling import parse_pooling
from bertflow.evaluation.sides import Systems
from bertflow.progress import unsaid
from bertflow.scoring.domain import DomainCheck
from bertflow.training import Purpose

STEEP_OR_NOT = (True, False)
"""Both cases: few directions hold the variance, or many do."""


@dataclass(frozen=True)
class FitPlan:
    """What is fitted.

    Attributes:
        tried: Candidate -> its pooling.
        not_tried: Spelling of a candidate -> why it is not tried.
        likely: Candidates to use without proof, the first by default, where few directions hold the variance (True),
            and where many do: the embeddings will tell.
        search: The same for search alone, where pairs can say what naming that purpose would gain.
        safe: The same for what may take the place of either, where something speaks against it.
        usable: Spellings of the candidates that may be advised.
    """

    tried: Mapping[SystemSpec, str]
    not_tried: Mapping[str, str]
    likely: Mapping[bool, Sequence[str]]
    search: Mapping[bool, Sequence[str]]
    safe: Mapping[bool, Sequence[str]]
    usable: AbstractSet[str]

    @classmethod
    def of(cls, case: Case) -> Self:
        """All candidates that can be fitted; where no pairs can choose, only what is likely."""
        request, source, dim, n = case.request, case.source, case.own.dim, len(case.split.fitted)
        named = trying.parse_candidates(request.candidates)
        choose = case.labeled or (case.evidence and request.purpose == "search")
        chosen = named if choose or request.candidates or request.ask else []
        tried, not_tried = trying.select_candidates(chosen, source, n)
        add = partial(trying.add_likely, tried, source, n, request.keeps)
        if request.candidates is None:
            by_name, one = isinstance(request.encoder, str | Path), reads_one_token(source)
            free = by_name and layers_are_open(source, request.options.get("pooling"))
            likely = {steep: add(recipes(request.purpose, dim, steep, free, one, n)) for steep in STEEP_OR_NOT}
            search, safe = {}, dict[bool, list[str]]()
            if request.purpose == "all" and case.evidence:
                search = {steep: add(recipes("search", dim, steep, free)) for steep in STEEP_OR_NOT}
            for steep in STEEP_OR_NOT:
                rows = fallbacks(request.purpose, case.words, steep, one) if case.doubtful else []
                safe[steep] = add([row for row in rows if row.calibrator])
                safe[steep] += add([row for row in rows if not row.calibrator])
        else:
            likely, search, safe = dict.fromkeys(STEEP_OR_NOT, add(named)), {}, {}
        usable = {row.spelling for row in tried if not (request.keeps and row.pooling)}
        return cls(tried, not_tried, likely, search, safe, usable)

    @property
    def poolings(self) -> dict[str, str]:
        """Spelling of a candidate -> its pooling."""
        return {row.spelling: pooling for row, pooling in self.tried.items()}


@dataclass(frozen=True)
class Findings:
    """What was measured.

    Attributes:
        known: What the verdict is decided by.
        cut: How many sentences are longer than the encoder reads.
        encoding: Seconds that 1,000 sentences take.
        systems: Raw and the fitted candidates, by name.
        vetoes: Says of a candidate what speaks against it without labels.
    """

    known: Known
    cut: Cut | None
    encoding: float
    systems: Systems
    vetoes: Vetoes

    @classmethod
    def of(cls, case: Case, plan: FitPlan) -> Self:
        """Encode all sentences, fit all candidates, and judge them."""
        request, fitted, seed = case.request, case.split.fitted, case.request.seed
        for pooling in (plain_pooling(case.source), *plan.tried.values()):  # one pass, if known before it
            case.source.pooled(pooling, case.split.lines if case.doubtful else fitted)
        if cut := measure_cut(case.encoder, case.sentences, seed):
            request.say(f"cut       {cut}")
        request.say(f"time      {trying.estimate_time(case.own, case.sentences, len(fitted), plan.tried)}")
        begin = time.perf_counter()
        raw = Geometry.of(case.own.encode(case.sentences, progress=request.progress)[: len(fitted)], seed)
        encoding = (time.perf_counter() - begin) / len(case.sentences) * 1000
        request.say(f"geometry  {raw}")
        shape = Shape.of(case.source, fitted)
        preset: Purpose = "similarity" if request.purpose == "topic" else request.purpose
        systems = trying.fit_candidates(case.source, plan.tried, fitted, seed, preset, case.split.lines)
        judged = tuple(one.judge(systems, request.resamples, seed) for one in case.evidence)
        likely = [name for name in plan.likely[shape.steep] if name in systems and looks_raw(raw, shape)]
        proven = any(one.limited(plan.usable).proves for one in judged[:1])
        doubted = likely and not proven and not shape.bare and request.purpose != "topic"
        stand_in = _ask_docstrings(case, {name: systems[name] for name in (RAW, *likely)}) if doubted else None
        spare = _safe(plan.safe, case, shape)
        against = Vetoes(systems, case.split, case.queries, spare)
        safe = next((name for name in spare if looks_raw(raw, shape) and not against(name)), "")
        known = Known(raw, shape, judged, case.missing, request.purpose, likely, stand_in, safe)
        return cls(known, cut, encoding, systems, against)


def _safe(names: Mapping[bool, Sequence[str]], case: Case, shape: Shape) -> Sequence[str]:
    """The safe candidates that suit the text and the encoder, the best one first. None gains on titles."""
    if not names or (case.request.purpose != "topic" and not shape.bare and are_titles(case.split.read)):
        return ()
    steep = shape.steep and not shape.bare
    if steep:  # perhaps only since the text is narrow
        steep = reads_one_token(case.source) if case.general is None else case.general.steep
    return names[steep]


def _ask_docstrings(case: Case, systems: Systems) -> Judgement | None:
    """What pairs of docstrings say of some systems; None where they are in another language."""
    request = case.request
    if (evidence := docstring_evidence(case.encoder, case.split.fitted)) is None:
        request.say("evidence  docstring pairs are not used: the text or the encoder lacks the common words of English")
        return None
    request.say("evidence  the geometry suggests a change; docstring pairs test it")
    with unsaid():  # a note on docstrings that are cut would read as one on the text
        return evidence.judge(systems, request.resamples, request.seed)


def advise(request: Request) -> Advice:
    """Read, measure, try, judge and decide."""
    request.require_usable()
    case = Case.read(request)
    plan = FitPlan.of(case)
    for line in case.lines:
        request.say(line)
    found = Findings.of(case, plan)
    known, systems = found.known, found.systems
    decision = decide(known, plan.usable, found.vetoes)
    naming, at_length = _naming(case, plan, found, decision)
    left_out = {**plan.not_tried, **dict.fromkeys(plan.poolings.keys() - systems.keys(), SPANS_FEWER)}
    nothing = NOTHING.format(*next(iter(left_out.items()))) if left_out and systems.keys() == {RAW} else ""
    choices = _choices(case, plan, found, decision)
    split, seed, advised = case.split, request.seed, systems[decision.system]
    asked = choose_pairs(systems, [*split.reference, *split.fitted], request.ask, seed) if request.ask else None
    scores, thresholds = trying.fit_scores(advised, split.whole, case.queries, case.labeled, seed)
    between = "" if scores.queries_ else trying.threshold_between(advised, split, seed)
    domain, note = trying.fit_domain(advised.raw, split)
    geometry = {
        "fitted_raw": known.raw,
        "reference_raw": Geometry.of(case.own.encode(split.reference), seed),
        "reference_advised": Geometry.of(advised.encode(split.reference), seed),
    }
    best, beside = (_best(case, plan, name, systems[name]) for name in (decision.system, decision.beside or RAW))
    return Advice(
        of=case.name,
        verdict=decision.verdict,
        system=decision.system,
        standing=decision.standing,
        reasons=tuple(filter(None, (case.unread, nothing, *decision.reasons, at_length))),
        naming=naming,
        shape=known.shape,
        cut=found.cut,
        geometry=geometry,
        evidence=tuple(one.limited(plan.usable) for one in known.evidence),
        stand_in=known.stand_in,
        choices=choices,
        asked=asked,
        scores=scores,
        between=between,
        domain=domain,
        queries=_look_at_queries(case, found, decision.system, domain) if case.queries else None,
        notes=(*case.about_text, *thresholds, *note),
        text=split,
        systems=systems,
        not_tried=left_out,
        encoder=best,
        beside=decision.beside,
        beside_encoder=beside,
        labels_sha256=case.labels_sha256 if decision.system != RAW else "",
        seed=seed,
    )


def _naming(case: Case, plan: FitPlan, found: Findings, decision: Decision) -> tuple[str, str]:
    """Gain of naming a purpose, or what the named one may cost others: in short, and at length."""
    request, known = case.request, found.known
    if decision.standing == PROVEN and not known.mined:  # labels are the use
        return "", ""
    if request.purpose in COSTS and decision.system not in (RAW, known.safe):
        one = request.purpose == "search" and reads_one_token(case.source)
        return COST.format(ONE_TOKEN_COST if one else COSTS[request.purpose]), ""
    names = {*plan.search.get(known.shape.steep, ())} & plan.usable & found.systems.keys()
    pairs = next((one for one in known.evidence[:1] if one.evidence.choosing.kind == "retrieval"), None)
    best = pairs.limited(names).chosen if pairs else None
    if pairs and best is not None and not (pairs.evidence.mined and found.vetoes(best)):
        more, now = (100 * pairs.lead(name).difference if name != RAW else 0.0 for name in (best, decision.system))
        instead = f" instead of {now:.1f}" if now else ""
        said = f"--purpose search would gain {more:.1f} points on these pairs{instead}"
        on_these = pairs.said_of(best)
        return (said, f"For search alone, {on_these[0].lower()}{on_these[1:]}") if more - now >= 0.1 else ("", "")
    free = request.candidates is None and request.vectors is None
    more_to_use = decision.system != RAW or any(fallbacks("search", case.words, steep=True))
    helps = request.purpose == "all" and free and more_to_use and known.untuned
    if decision.system == known.safe and not reads_one_token(case.source):  # search would have it, too
        return FOR_TOPIC if helps and decision.system == WEIGHTS else "", ""
    return NAMING if helps else "", ""


def _look_at_queries(case: Case, found: Findings, system: str, domain: DomainCheck | None) -> AskedQueries:
    """What the queries find before and after; where nothing is changed, after with the best of what was tried."""
    known, systems = found.known, found.systems
    best = [one.chosen for one in (*known.evidence, known.stand_in) if one] + [*known.likely, *systems]
    after = next((name for name in (system, *best) if name not in (None, RAW)), RAW)
    named = [(RAW, systems[RAW]), (after if after == system else f"{after}, not used", systems[after])]
    texts = list(dict.fromkeys([*case.split.fitted, *case.split.reference]))
    percentiles = None
    if domain is not None:
        percentiles = domain.percentile(domain.log_likelihood(systems[system].raw.encode_query(case.queries)))
    return AskedQueries.of(case.queries, texts, named, percentiles, case.request.seed)


def _choices(case: Case, plan: FitPlan, found: Findings, decision: Decision) -> tuple[Choice, ...]:
    """Choices for vectors that are kept: their best map, and the best overall where it needs to encode again."""
    if not case.request.keeps:
        return ()
    fitted, systems = case.split.fitted, found.systems
    keep = choose(KEEP, decision, systems[decision.system], fitted, None)
    if not case.request.keep_vectors:
        return (keep,)
    overall = decide(found.known, systems.keys(), found.vetoes)
    if overall.system in (*plan.usable, RAW):
        return (keep,)
    return keep, choose(AGAIN, overall, systems[overall.system], fitted, found.encoding)


def _best(case: Case, plan: FitPlan, system: str, advised: SentenceEncoder) -> SentenceEncoder:
    """The encoder to use, which remembers no sentences."""
    own = case.source.own_pooling
    pooling = plan.poolings.get(system, own)
    best = case.source.encoders[pooling]
    if advised.calibrator is not None:
        best = CalibratedEncoder(best, advised.calibrator)
        if pooling != own and {*parse_pooling(own).layers} <= {*parse_pooling(pooling).layers}:
            best.before = own  # whose blocks are kept
    return best.forget_text() if case.request.without_text_hashes else best

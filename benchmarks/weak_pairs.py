"""Can pairs that any text gives stand in for labels? What each kind would choose, beside what ``tuning`` says.

    python benchmarks/weak_pairs.py --data_dir DATA

For each stand-in and each plain text, raw and the candidates of ``bertflow fix`` are fitted on 3,000 lines that hold no
scored sentence. Then each kind of evidence chooses as ``fix`` does (half of the pairs choose, the other half has to
prove the gain over raw), by pairs of other lines of the same text:

    first and rest   the first sentence of a paragraph, and the rest of it: what ``fix`` calls mined pairs
    neighbors        lines 1 and 2, 3 and 4, ... of the text as it lies in its file
    halves           the first and the second half of a sentence of ten words or more
    docstrings       pairs of the installed docstrings: natural pairs, but not of this text

and without pairs:

    geometry         where the plain mean's participation ratio is above 75, leave it; else the flow on soft-sif, all
                     directions or the first 96

A kind holds up if what it chooses costs little on ``tuning`` (Spearman x 100, mean of the sub-sets) and if it leaves
the tuned layer as it is. Writes weak_pairs.json and weak_pairs.md beside this file.
"""

import argparse
import json
import logging
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from material import FIRST_OF_EACH_LINE, STAND_INS, TUNED, StandIn, evaluation_keys

from bertflow.advise.candidates import fit_candidates, parse_candidates
from bertflow.advise.evidence import MINED, Evidence, Judgement, proven
from bertflow.calibration.spelling import RAW
from bertflow.data.corpus import load_sentences
from bertflow.data.docstrings import docstring_corpus
from bertflow.data.docstrings import sentences as sentences_of
from bertflow.data.pairs import Pairs, unique_pairs
from bertflow.data.sts import load_sts
from bertflow.encoder.embedded import embedded_encoder
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import NullDirectionWarning
from bertflow.evaluation.report import score_sets
from bertflow.evaluation.systems import SharedPass
from bertflow.moments import Moments
from bertflow.text_keys import text_key
from bertflow.training.rows import CALIBRATED, STEEP, effective_rank, participation_ratio

HERE = Path(__file__).parent
logger = logging.getLogger("weak_pairs")
CANDIDATES = (
    "whitening,whitening(128),sif+whitening,sif+whitening(128),soft-sif+whitening,soft-sif+whitening(128),"
    "soft-sif+flow,soft-sif+flow(96)"
)
STAND_IN_ROWS = {**{name: STAND_INS[name] for name in ("L0", "L1L2", "L3", "MLM4")}, "last (tuned)": TUNED["last"]}
FITTED, MOST_PAIRS, FEWEST_PAIRS = 3_000, 600, 300
HALVED = range(10, 61)
"""Sentences of so many words are cut in halves."""
Text = list[list[str]]
"""Paragraphs of sentences, in the order of the file."""
Found = Iterable[tuple[str, str]]


def first_and_rest(text: Text) -> Found:
    """A paragraph's first sentence must find the rest."""
    return ((paragraph[0], " ".join(paragraph[1:])) for paragraph in text if len(paragraph) > 1)


def neighbors(text: Text) -> Found:
    """A line must find the next one."""
    lines = [sentence for paragraph in text for sentence in paragraph]
    return zip(lines[::2], lines[1::2], strict=False)


def halves(text: Text) -> Found:
    """Half a sentence must find the other half."""
    words = [sentence.split() for paragraph in text for sentence in paragraph]
    return ((" ".join(w[: len(w) // 2]), " ".join(w[len(w) // 2 :])) for w in words if len(w) in HALVED)


KINDS: Mapping[str, Callable[[Text], Found]] = {
    "first and rest": first_and_rest,
    "neighbors": neighbors,
    "halves": halves,
}
"""Pairs of a text by what they are."""


def read_texts(data_dir: Path) -> dict[str, Text]:
    """Plain texts by name; nothing that is scored, no sentence twice."""
    folder, seen = data_dir / "text", evaluation_keys(data_dir)

    def kept(paragraphs: Iterable[Sequence[str]]) -> Text:
        known, found = set(seen), []
        for paragraph in paragraphs:
            new = {text_key(one): one for one in paragraph if text_key(one) not in known}
            known |= new.keys()
            found.append(list(new.values()))
        return [each for each in found if each]

    books = load_sentences(folder / "books_paragraphs.txt.gz")
    sample = np.sort(np.random.default_rng(0).permutation(len(books))[:4_000])
    files = [data_dir / file for file in sorted(FIRST_OF_EACH_LINE)]
    voice = load_sentences(folder / "commonvoice_en_sentences.txt.gz")
    some = np.sort(np.random.default_rng(0).permutation(len(voice))[:9_000])
    split = load_sentences(files[0], ["2"])
    texts = {
        "books": kept(sentences_of(books[row]) for row in sample),
        "wikisplit": kept([part.strip() for part in line.split("<::::>")] for line in split),
        "common voice": kept([voice[row]] for row in some),
    }
    every = [[line] for text in texts.values() for each in text[:2_500] for line in each[:1]]
    return {"all three, shuffled": [every[row] for row in np.random.default_rng(1).permutation(len(every))], **texts}


def split(text: Text, seed: int) -> tuple[list[str], Text]:
    """Lines to fit on, and the paragraphs that are put aside: runs of paragraphs, so that neighbors stay together."""
    runs = [text[start : start + 20] for start in range(0, len(text), 20)]
    order = np.random.default_rng(seed).permutation(len(runs))
    fitted: list[str] = []
    aside: Text = []
    for row in order:
        lines = [line for paragraph in runs[row] for line in paragraph]
        if len(fitted) < FITTED:
            fitted += lines
        else:
            aside += runs[row]
    return fitted[:FITTED], aside


def evidence_of(pairs: Found, name: str) -> Evidence | None:
    """Pairs in two halves; none where there are too few."""
    usable = unique_pairs(pair for pair in pairs if all(len(side.split()) >= 3 for side in pair))
    if len(usable) < FEWEST_PAIRS:
        return None
    order = np.random.default_rng(0).permutation(len(usable))[:MOST_PAIRS]
    first, second = zip(*(usable[row] for row in order), strict=True)
    held = Pairs(name, first, second, kind="retrieval", source=name)
    return Evidence(MINED, held.taken(range(0, len(held), 2)), held.taken(range(1, len(held), 2)))


def by_geometry(source: SharedPass, one: StandIn, fitted: list[str]) -> str:
    """What the preset would do, without pairs."""
    mean, soft = (Moments.of(source.pooled(pooling, fitted).encode(fitted)) for pooling in (one.mean, one.soft))
    if participation_ratio(mean) > CALIBRATED:
        return "raw"
    return "soft-sif+flow" if effective_rank(soft) <= STEEP else "soft-sif+flow(96)"


def measured(
    folder: str, stand_ins: Mapping[str, StandIn], text: Text, tuning: Pairs, docstrings: Pairs, resamples: int
) -> Iterator[dict[str, Any]]:
    """What each kind of evidence chooses on the stand-ins of an encoder, and the score of all candidates on tuning."""
    source = SharedPass(TransformerEncoder(folder, pooling="mean", device="cpu", max_length=128))
    fitted, aside = split(text, seed=0)
    found = {kind: evidence_of(make(aside), kind) for kind, make in KINDS.items()}
    found["docstrings"] = evidence_of(zip(docstrings.first, docstrings.second, strict=True), "docstrings")
    rows = parse_candidates(CANDIDATES)
    for one in stand_ins.values():  # all poolings share one pass if they are known before it
        for pooling in (one.mean, *(row.pooling_for(one.pooling) for row in rows)):
            source.pooled(pooling, fitted)
    for name, one in stand_ins.items():
        poolings = {row: row.pooling_for(one.pooling) for row in rows}
        systems = {**fit_candidates(source, poolings, fitted, seed=0), RAW: source.pooled(one.pooling)}
        report = score_sets(systems, [tuning], resamples=0)
        scores = {system: 100 * report.value(system, "tuning", "mean") for system in systems}
        chosen: dict[str, Any] = {"geometry": {"chosen": by_geometry(source, one, fitted)}}
        for kind, evidence in found.items():
            if evidence is not None:
                chosen[kind] = said_by(evidence.judge(systems, resamples, 0))
        yield {"stand-in": name, "tuning": scores, "chosen": chosen}


def said_by(judgement: Judgement) -> dict[str, Any]:
    """What evidence prefers, its gain, and what ``fix`` would make of it."""
    gain = judgement.gain
    assert gain is not None
    return {
        "pairs": len(judgement.evidence.choosing) + len(judgement.evidence.judging),
        "preferred": judgement.chosen,
        "chosen": judgement.chosen if proven(gain) else RAW,
        "gain": [100 * value for value in (gain.difference, gain.ci_low, gain.ci_high) if value is not None],
        "mrr": {key: 100 * value for key, value in judgement.judging.values("mrr").items()},
    }


def to_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """What each kind chooses and what that costs on tuning; then the sums by kind."""
    kinds = ["geometry", *KINDS, "docstrings"]
    lines = [
        "Chosen by each kind of evidence, and in brackets what the choice scores on `tuning` less the best candidate.",
        "",
        f"| stand-in | text | raw | best on tuning | {' | '.join(kinds)} |",
        "|---" * (4 + len(kinds)) + "|",
    ]
    costs: dict[str, list[tuple[str, float, float]]] = {kind: [] for kind in kinds}
    for row in rows:
        scores = row["tuning"]
        best = max(scores, key=lambda name: scores[name])
        cells = []
        for kind in kinds:
            said = row["chosen"].get(kind)
            if said is None:
                cells.append("-")
                continue
            cost = scores[said["chosen"]] - scores[best]
            costs[kind].append((row["stand-in"], cost, scores[said["chosen"]] - scores["raw"]))
            cells.append(f"{said['chosen']} ({cost:+.1f})")
        lines.append(
            f"| {row['stand-in']} | {row['text']} | {scores['raw']:.1f} | {best} {scores[best]:.1f} "
            f"| {' | '.join(cells)} |"
        )
    lines += [
        "",
        "| kind | raw layers: mean cost, largest cost | mean gain over raw | kept raw | tuned layer: left as it is |",
        "|---|---|---|---|---|",
    ]
    for kind, each in costs.items():
        raw = [one for one in each if "tuned" not in one[0]]
        tuned = [one for one in each if "tuned" in one[0]]
        if not tuned:
            continue  # while it runs
        lines.append(
            f"| {kind} | {np.mean([cost for _, cost, _ in raw]):+.2f}, {min(cost for _, cost, _ in raw):+.1f} "
            f"| {np.mean([gain for *_, gain in raw]):+.1f} | {sum(gain == 0 for *_, gain in raw)} of {len(raw)} "
            f"| {sum(gain == 0 for *_, gain in tuned)} of {len(tuned)} "
            f"(worst {min((gain for *_, gain in tuned), default=0.0):+.1f}) |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Fit, choose, score, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True, help="holds sts, text and encoders")
    parser.add_argument("--resamples", type=int, default=300)
    parser.add_argument("--output", type=Path, default=HERE / "weak_pairs.json", help="and the same with .md")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    warnings.simplefilter("ignore", NullDirectionWarning)
    folders = {"minilm": embedded_encoder(), "mlm4": str(options.data_dir / "encoders" / "mlm-4x256")}
    tuning, texts = load_sts("tuning", options.data_dir / "sts"), read_texts(options.data_dir)
    docstrings, rows = docstring_corpus(MOST_PAIRS, 1)[1], []
    for text_name, text in texts.items():
        for encoder, folder in folders.items():
            begin = time.perf_counter()
            some = {name: one for name, one in STAND_IN_ROWS.items() if one.encoder == encoder}
            for found in measured(folder, some, text, tuning, docstrings, options.resamples):
                rows.append({"text": text_name, **found})
                said = {kind: each["chosen"] for kind, each in found["chosen"].items()}
                logger.info("%s, %s: %s %.0f s", found["stand-in"], text_name, said, time.perf_counter() - begin)
                options.output.write_text(json.dumps({"resamples": options.resamples, "rows": rows}, indent=1) + "\n")
                options.output.with_suffix(".md").write_text(to_markdown(rows))


if __name__ == "__main__":
    main()

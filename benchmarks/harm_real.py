"""The texts of the harm suite that nobody generated: those of the machine, and of the folder of the evaluation data.

Each function reads one half and gives the fields of a ``harm_texts.Text``, or None where the machine lacks the text.
Halves share no text: what belongs to a name (a package, a command) is in the half that the name's hash says.
"""

import gettext
import os
import random
import re
import shutil
import subprocess
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from itertools import chain
from pathlib import Path

import material

from bertflow.data.docstrings import sentences
from bertflow.data.sts import load_sts
from bertflow.text_keys import text_key

HALVES = ("choosing", "reporting")
Fields = Mapping[str, tuple]
BROAD: Mapping[str, tuple[str, ...]] = {
    **{kind: tuple(files) for kind, files in material.MIXTURE.items() if kind != "nli"},
    "wikitext": ("text/wikitext2_valid.txt.gz", "text/wikitext2_test.txt.gz"),
}
"""Kinds of text of the broad mixture, as many sentences of each, and their files."""
BROAD_DOCUMENTS = 3_000
MOST = 3_000
"""The most documents that are taken of what a machine has."""
FEWEST = 400
"""The fewest short texts that a machine must have, both halves together."""
SMALLEST_KIND = 20
"""The fewest texts of a kind that is kept, both halves together."""


def data_dir() -> Path | None:
    """Folder of the evaluation data: $BERTFLOW_DATA, or ../shared/data beside the repository; None if there is none."""
    named = os.environ.get("BERTFLOW_DATA")
    folder = Path(named) if named else Path(__file__).resolve().parents[2] / "shared" / "data"
    return folder if folder.is_dir() else None


def broad(half: str, seed: int) -> Fields | None:
    """Sentences of encyclopedias, books and speech, shuffled; the pairs are those of the ``tuning`` task."""
    if (folder := data_dir()) is None:
        return None
    rng = random.Random(f"broad/{half}/{seed}")
    scored = material.evaluation_keys(folder)
    documents: dict[str, None] = {}
    for files in BROAD.values():
        texts = _broad_sentences(folder, files)
        found = [text for text in texts if in_half(text, half) and text_key(text) not in scored]
        documents.update(dict.fromkeys(rng.sample(found, min(len(found), BROAD_DOCUMENTS // len(BROAD)))))
    pairs = load_sts("tuning", folder / "sts")
    rows = zip(pairs.first, pairs.second, pairs.target, strict=True)
    of_half = [(one, two, float(score)) for one, two, score in rows if in_half(min(one, two), half)]
    return {"documents": _shuffled(documents, rng), "pairs": tuple(of_half)}


def _broad_sentences(folder: Path, files: tuple[str, ...]) -> list[str]:
    texts = material.texts_of(folder, files)
    found = chain.from_iterable(map(sentences, texts)) if "wikitext" in files[0] else texts
    return list(dict.fromkeys(found))


def docstrings(half: str, seed: int) -> Fields:
    """Paragraphs of docstrings, looked for by the summary lines above them; halves and draw of ``material``."""
    pairs = material.docstrings()[1]
    rows = material.halves(len(pairs))[half]
    documents, queries = (tuple(side[row] for row in rows) for side in (pairs.second, pairs.first))
    return {"documents": documents, "queries": queries, "right": tuple(range(len(rows)))}


def packages(half: str, seed: int) -> Fields | None:
    """Long descriptions of the installed packages of Debian, looked for by their summaries; kinds are the sections."""
    rng = random.Random(f"packages/{half}/{seed}")
    found: dict[str, tuple[str, str, str]] = {}  # by summary, the section, the name and the description
    seen: set[str] = set()
    for name, section, summary, description in _installed():
        if description not in seen and summary not in found:
            seen.add(description)
            found[summary] = (section, name, description)
    if len(found) < 300:
        return None
    often = Counter(section for section, _, _ in found.values())
    kept = [
        (summary, section, description)
        for summary, (section, name, description) in found.items()
        if often[section] >= SMALLEST_KIND and in_half(name, half)
    ]
    rng.shuffle(kept)
    queries, kinds, documents = zip(*kept, strict=True)
    return {"documents": documents, "kinds": kinds, "queries": queries, "right": tuple(range(len(kept)))}


def _installed() -> Iterator[tuple[str, str, str, str]]:
    """Name, section, summary and long description of each installed package that has all of them."""
    if shutil.which("dpkg-query") is None:
        return
    form = "${Package}\t${Section}\t${Description}\x1e"
    answer = subprocess.run(["dpkg-query", "-W", "-f", form], capture_output=True, check=True).stdout
    for record in answer.decode("utf-8", "replace").split("\x1e"):
        head, _, body = record.partition("\n")
        description = " ".join(line.strip() for line in body.splitlines() if line.strip() != ".")
        if head.count("\t") == 2 and description:
            name, section, summary = head.split("\t")
            yield name, section.rpartition("/")[2].replace("oldlibs", "libs"), summary.strip(), description


def in_half(name: str, half: str) -> bool:
    """Whether a name belongs to a half, by its hash."""
    return half == HALVES[sha256(name.encode()).digest()[0] % 2]


def _shuffled(texts: Iterable[str], rng: random.Random) -> tuple[str, ...]:
    kept = list(texts)
    rng.shuffle(kept)
    return tuple(kept)


def commands(half: str, seed: int) -> Fields | None:
    """One-line summaries of the manual pages of commands; kinds are the packages that they belong to."""
    if shutil.which("whatis") is None:
        return None
    package_of = _pages()
    answer = subprocess.run(["whatis", "-l", "-w", "*"], capture_output=True, check=False).stdout.decode(
        "utf-8", "replace"
    )
    lines = re.findall(r"^(\S+) \([18]\w*\)\s+- (.+)$", answer, re.MULTILINE)
    texts = ((package_of[name], text.strip()) for name, text in lines if name in package_of)
    return _of_kinds(texts, half, random.Random(f"commands/{half}/{seed}"))


def _pages() -> dict[str, str]:
    """The package of each manual page of a command, by the lists of dpkg."""
    found: dict[str, str] = {}
    for path in sorted(Path("/var/lib/dpkg/info").glob("*.list")):
        for name in re.findall(r"^/usr/share/man/man[18]/(.+?)\.[18]\w*\.gz$", path.read_text("utf-8"), re.MULTILINE):
            found[name] = path.stem.partition(":")[0]
    return found


def messages(half: str, seed: int) -> Fields | None:
    """The English messages of the catalogues of translations; kinds are the programs."""
    places = [Path("/usr/share/locale"), Path("/usr/share/vim"), Path(sysconfig.get_path("purelib"))]
    paths = {path.stem: path for place in places for path in sorted(place.rglob("*.mo"))}
    texts = ((domain, message) for domain, path in sorted(paths.items()) for message in _originals(path))
    return _of_kinds(texts, half, random.Random(f"messages/{half}/{seed}"))


def _originals(path: Path) -> Iterator[str]:
    """The messages that a catalogue translates, white space collapsed; none of a damaged one."""
    try:
        with path.open("rb") as file:
            catalogue = gettext.GNUTranslations(file)._catalog  # the only way to its messages
    except (OSError, ValueError):
        return
    for message in catalogue:
        text = message[0] if isinstance(message, tuple) else message
        yield " ".join(text.split())


def _of_kinds(texts: Iterable[tuple[str, str]], half: str, rng: random.Random) -> Fields | None:
    """Distinct texts of 3 to 60 words with their kinds, at most a fifth of one kind; None where there are too few."""
    kind_of: dict[str, str] = {}
    for kind, text in texts:
        if 3 <= len(text.split()) <= 60:
            kind_of.setdefault(text, kind)
    by_kind: dict[str, list[str]] = {}
    for text, kind in kind_of.items():
        by_kind.setdefault(kind, []).append(text)
    large = {kind: found for kind, found in by_kind.items() if len(found) >= SMALLEST_KIND}
    if sum(map(len, large.values())) < FEWEST:
        return None
    kept: list[tuple[str, str]] = []
    for kind, found in large.items():
        of_half = [text for text in found if in_half(text, half)]
        kept += [(text, kind) for text in rng.sample(of_half, min(len(of_half), MOST // 5))]
    rng.shuffle(kept)
    documents, kinds = zip(*kept[:MOST], strict=True)
    return {"documents": documents, "kinds": kinds}

"""The texts of the harm suite that nobody generated: those of the machine, and of the folder of the evaluation data.

Each function reads one half and gives the fields of a ``harm_texts.Text``, or None where the machine lacks the text.
Halves share no text: what belongs to a name (a package, a command) is in the half that the name's hash says. The first
two halves use up their sources, so "confirming" has others of the same sort, and "closing" those of harm_closing.py:

    broad         sentences that neither of the two draws; no pairs, because all are used
    docstrings    those of installed packages that ``bertflow.data.docstrings`` does not read
    packages      modules of Perl: their names in a line, and the first paragraphs of their descriptions
    commands      manual pages of what commands call and read: system calls, libraries, file formats
    messages      messages of errors in the sources of Python packages

"final" has more of those of "confirming" (docstrings, messages) and of "closing" (broad), and no packages and commands.
"""

import gettext
import os
import random
import re
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from hashlib import sha256
from itertools import chain
from pathlib import Path

import harm_closing
import material

from bertflow.data.docstrings import LEFT_OUT, PACKAGES, is_summary, paragraphs, read_docstrings, sentences
from bertflow.data.sts import load_sts
from bertflow.text_keys import text_key

HALVES = ("choosing", "reporting", "confirming", "closing", "final")
HASHED, (CONFIRMING, CLOSING, FINAL) = HALVES[:2], HALVES[2:]
"""The halves of one source, told apart by hashes; and the halves of other sources."""
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
ONE_FILE_IN = 4
"""Source files are told apart by the hash of their path into this many buckets: all of them take a minute."""
BUCKETS = {CONFIRMING: range(1), FINAL: range(1, 3)}
"""Those that a half reads; for messages, the first of them."""
DOCSTRINGS = 1_250
"""Pairs of a seed, of the docstrings of other packages: as many as the halves of ``material`` have."""
RAISED = re.compile(r"""\braise \w[\w.]*\(\s*f?(?:"((?:[^"\\\n]|\\.)*)"|'((?:[^'\\\n]|\\.)*)')\s*[,)%]""")
"""The message of an error that is one literal."""
POD_NAME = re.compile(r"^=head1 NAME\s*\n\s*\n?(\S+)\s+-+\s+(.+?)\n\s*\n", re.MULTILINE | re.DOTALL)
POD_TEXT = re.compile(r"^=head1 (?i:description|abstract|overview)\s*\n\s*\n(\S.+?)\n\s*\n", re.MULTILINE | re.DOTALL)


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
    if half in (CLOSING, FINAL):
        used = _scored(folder)
        if half == FINAL:
            closing = (broad(CLOSING, other) or {} for other in (0, 1))
            used = used | {text_key(text) for fields in closing for text in fields["documents"]}
        entailed = harm_closing.nli(folder, lambda text: text_key(text) not in used, rng)
        said = dict.fromkeys(text for one, two, _ in entailed for text in (one, two))
        return {"documents": _shuffled(said, rng), "pairs": tuple(entailed)}
    if half == CONFIRMING:
        used = {text for other in HASHED for one in (0, 1) for text in _broad_documents(folder, other, one)}
        rest = [[text for text in _unscored(folder, files) if text not in used] for files in BROAD.values()]
        return {"documents": _shuffled(_of_each(rest, rng), rng)}
    documents = _broad_documents(folder, half, seed, rng)
    pairs = load_sts("tuning", folder / "sts")
    rows = zip(pairs.first, pairs.second, pairs.target, strict=True)
    of_half = [(one, two, float(score)) for one, two, score in rows if in_half(min(one, two), half)]
    return {"documents": _shuffled(documents, rng), "pairs": tuple(of_half)}


def _broad_documents(folder: Path, half: str, seed: int, rng: random.Random | None = None) -> dict[str, None]:
    """What a hashed half draws."""
    found = [[text for text in _unscored(folder, files) if in_half(text, half)] for files in BROAD.values()]
    return _of_each(found, rng or random.Random(f"broad/{half}/{seed}"))


def _of_each(kinds: Iterable[list[str]], rng: random.Random) -> dict[str, None]:
    """As many sentences of each kind."""
    drawn = (rng.sample(found, min(len(found), BROAD_DOCUMENTS // len(BROAD))) for found in kinds)
    return dict.fromkeys(chain.from_iterable(drawn))


@cache
def _unscored(folder: Path, files: tuple[str, ...]) -> list[str]:
    """The sentences of some files that no task scores."""
    texts = material.texts_of(folder, files)
    found = chain.from_iterable(map(sentences, texts)) if "wikitext" in files[0] else texts
    scored = _scored(folder)
    return [text for text in dict.fromkeys(found) if text_key(text) not in scored]


@cache
def _scored(folder: Path) -> set[str]:
    return material.evaluation_keys(folder)


def docstrings(half: str, seed: int) -> Fields | None:
    """Paragraphs of docstrings, looked for by the summary lines above them; halves and draw of ``material``."""
    if half not in HASHED:
        return _other_docstrings(half, seed)
    pairs = material.docstrings()[1]
    rows = material.halves(len(pairs))[half]
    documents, queries = (tuple(side[row] for row in rows) for side in (pairs.second, pairs.first))
    return {"documents": documents, "queries": queries, "right": tuple(range(len(rows)))}


def _other_docstrings(half: str, seed: int) -> Fields | None:
    """Those that ``material`` does not read; no two seeds share a pair, so the last have fewer or none."""
    below = random.Random(f"docstrings/{half}").sample(found := _unread_docstrings(half), len(found))
    kept = below[seed * DOCSTRINGS :][:DOCSTRINGS]
    if len(kept) < FEWEST:
        return None
    asked = [row for row, (_, (_, module)) in enumerate(kept) if half != CLOSING or module in harm_closing.ASKED]
    queries = tuple(kept[row][1][0] for row in asked)
    return {"documents": tuple(paragraph for paragraph, _ in kept), "queries": queries, "right": tuple(asked)}


@cache
def _unread_docstrings(half: str) -> list[tuple[str, tuple[str, str]]]:
    """Paragraphs, and above each its summary line and module, of packages that no half before reads; no text of it."""
    pairs = material.docstrings()[1]
    used = {text_key(text) for text in (*pairs.first, *pairs.second)}
    for before in HALVES[2 : HALVES.index(half)]:
        used |= {text_key(text) for below, (above, _) in _unread_docstrings(before) for text in (below, above)}
    found: dict[str, tuple[str, str]] = {}  # by summary, the module and the paragraph
    for module, path in harm_closing.python() if half == CLOSING else _sources(BUCKETS[half]):
        if module in {*PACKAGES, *sys.stdlib_module_names}:
            continue
        try:
            prose = [list(paragraphs(text)) for text in read_docstrings(path)]
        except (SyntaxError, ValueError, RecursionError):
            continue
        for summary, paragraph in (texts[:2] for texts in prose if len(texts) > 1):
            if is_summary(summary) and sentences(paragraph) and not {text_key(summary), text_key(paragraph)} & used:
                found.setdefault(summary, (module, paragraph))
    return list({paragraph: (summary, module) for summary, (module, paragraph) in found.items()}.items())


@cache
def _sources(buckets: range) -> list[tuple[str, Path]]:
    """The names of modules and some of their source files: of the standard library, and of installed packages."""
    found: list[tuple[str, Path]] = []
    for root in (Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib")):
        for folder, inside, files in os.walk(root):
            inside[:] = sorted(name for name in inside if name not in LEFT_OUT)  # os.walk does not go there then
            paths = [Path(folder, name) for name in sorted(files) if name.endswith(".py")]
            found += [
                (path.relative_to(root).parts[0].removesuffix(".py"), path)
                for path in paths
                if sha256(path.relative_to(root).as_posix().encode()).digest()[0] % ONE_FILE_IN in buckets
            ]
    return found


def _modules_of_perl() -> Iterator[tuple[str, str, str, str]]:
    """Name, first part of the name, summary and first paragraph of the description of each module of Perl."""
    if shutil.which("perl") is None:
        return
    places = subprocess.run(["perl", "-e", r'print join "\n", @INC'], capture_output=True, check=True).stdout
    for path in (path for place in places.decode().splitlines() for path in sorted(Path(place).rglob("*.p[mo]*"))):
        text = path.read_text("utf-8", "replace")
        name, body = POD_NAME.search(text), POD_TEXT.search(text)
        if path.suffix in {".pm", ".pod"} and name and body:
            summary, description = (
                " ".join(re.sub(r"[A-Z]<([^<>|]*\|)?([^<>]*)>", r"\2", one).split()) for one in (name[2], body[1])
            )
            yield name[1], name[1].partition("::")[0], summary, description


def packages(half: str, seed: int) -> Fields | None:
    """Long descriptions of the installed packages of Debian, looked for by their summaries; kinds are the sections."""
    if half == FINAL:
        return None
    rng = random.Random(f"packages/{half}/{seed}")
    found: dict[str, tuple[str, str, str]] = {}  # by summary, the section, the name and the description
    seen = set() if half in HASHED else {description for *_, description in _installed()}  # which are in those halves
    entries = {CONFIRMING: _modules_of_perl, CLOSING: harm_closing.reference}.get(half, _installed)
    for name, section, summary, description in entries():
        if description not in seen and summary not in found:
            seen.add(description)
            found[summary] = (section, name, description)
    if len(found) < 300:
        return None
    often = Counter(section for section, _, _ in found.values())
    kept = [
        (summary, section, description)
        for summary, (section, name, description) in found.items()
        if often[section] >= (SMALLEST_KIND if half in HASHED else SMALLEST_KIND // 2) and in_half(name, half)
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
    """Whether a name belongs to a half, by its hash; to a half that has sources of its own, all do."""
    return half not in HASHED or half == HASHED[sha256(name.encode()).digest()[0] % 2]


def _shuffled(texts: Iterable[str], rng: random.Random) -> tuple[str, ...]:
    kept = list(texts)
    rng.shuffle(kept)
    return tuple(kept)


def commands(half: str, seed: int) -> Fields | None:
    """One-line summaries of the manual pages of commands; kinds are the packages that they belong to."""
    if half == CLOSING:
        return _of_kinds(harm_closing.options(), half, random.Random(f"commands/{half}/{seed}"))
    if half == FINAL or shutil.which("whatis") is None:
        return None
    sections = "23457" if half == CONFIRMING else "18"
    package_of = _pages(sections)
    answer = subprocess.run(["whatis", "-l", "-w", "*"], capture_output=True, check=False).stdout.decode(
        "utf-8", "replace"
    )
    lines = re.findall(rf"^(\S+) \([{sections}]\w*\)\s+- (.+)$", answer, re.MULTILINE)
    used = set(re.findall(r"^\S+ \([18]\w*\)\s+- (.+)$", answer, re.MULTILINE)) if half == CONFIRMING else set()
    texts = ((package_of[name], text.strip()) for name, text in lines if name in package_of and text not in used)
    return _of_kinds(texts, half, random.Random(f"commands/{half}/{seed}"))


def _pages(sections: str) -> dict[str, str]:
    """The package of each manual page of some sections, by the lists of dpkg."""
    found: dict[str, str] = {}
    for path in sorted(Path("/var/lib/dpkg/info").glob("*.list")):
        form = rf"^/usr/share/man/man[{sections}]/(.+?)\.[{sections}]\w*\.gz$"
        for name in re.findall(form, path.read_text("utf-8"), re.MULTILINE):
            found[name] = path.stem.partition(":")[0]
    return found


def messages(half: str, seed: int) -> Fields | None:
    """The English messages of the catalogues of translations; kinds are the programs."""
    texts = _translated() if half in HASHED else harm_closing.changes() if half == CLOSING else _raised(half)
    return _of_kinds(texts, half, random.Random(f"messages/{half}/{seed}"))


@cache
def _translated() -> list[tuple[str, str]]:
    """Programs and the messages of their catalogues."""
    places = ("/usr/share/locale", "/usr/share/vim", sysconfig.get_path("purelib"))
    paths = {path.stem: path for place in places for path in sorted(Path(place).rglob("*.mo"))}
    return [(domain, message) for domain, path in sorted(paths.items()) for message in _originals(path)]


@cache
def _raised(half: str) -> tuple[tuple[str, str], ...]:
    """Modules and the messages of the errors that they raise, which no half before has."""
    before = [messages(one, seed) or {} for one in HALVES[:-1] for seed in (0, 1)] if half == FINAL else []
    used = {text for fields in before for text in fields.get("documents", ())}
    found = (
        (module, RAISED.findall(path.read_text("utf-8", "replace"))) for module, path in _sources(BUCKETS[half][:1])
    )
    said = ((module, " ".join((one or other).split())) for module, texts in found for one, other in texts)
    return tuple((module, text) for module, text in said if text not in used)


def _originals(path: Path) -> Iterator[str]:
    """The messages that a catalogue translates, white space collapsed; none of a damaged one."""
    try:
        with path.open("rb") as file:
            catalogue = gettext.GNUTranslations(file)._catalog  # the only way to its messages
    except (OSError, ValueError):
        return
    for message in catalogue:
        yield " ".join((message[0] if isinstance(message, tuple) else message).split())


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

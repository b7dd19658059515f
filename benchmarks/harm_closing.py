"""What the half "closing" of the harm suite reads of the machine and of the evaluation data.

    broad         premises and hypotheses of language inference; pairs mean the same where one entails the other
    docstrings    those of Debian's packages of Python; only a few packages are asked about
    packages      CMake's reference: first sentences, and the paragraphs below them; kinds are the folders
    commands      what manual pages say of single options
    messages      entries of the changelogs of Debian's packages

harm_real.py makes texts of it.
"""

import gzip
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import material

from bertflow.data.docstrings import LEFT_OUT, paragraphs

PYTHON = Path("/usr/lib/python3/dist-packages")
ASKED = frozenset({"apt", "oauthlib", "pygments"})
"""The packages of Python that are asked about; paragraphs of the others are searched too."""
NLI = ("snli", "conjnli", "cad_nli")
"""Starts of the names of the files, by source."""
NLI_PAIRS = 500
"""Pairs of each source."""
ONE_IN = 4
"""One changelog is read out of this many."""
OPTION = re.compile(r"^(?:\.B\w* |\\fB)?\\?-.*\n(?:\.RS 4\n)?([A-Z].+(?:\n[^.\n].*)*)", re.MULTILINE)
"""What follows the line of an option, in roff."""
CHANGE = re.compile(r"^  \* (.+(?:\n    .+)*)", re.MULTILINE)


def python() -> Iterator[tuple[str, Path]]:
    """The names of packages, and their source files; not what they copied of other packages."""
    for path in sorted(PYTHON.rglob("*.py")):
        inside = path.relative_to(PYTHON).parts
        if not {"_vendor", *LEFT_OUT} & {*inside}:
            yield inside[0].removesuffix(".py"), path


def nli(folder: Path, is_new: Callable[[str], bool], rng: random.Random) -> list[tuple[str, str, float]]:
    """Pairs of new sentences, and whether the first entails the second; as many of each source."""
    drawn: list[tuple[str, str, float]] = []
    for source in NLI:
        files = [file for file in material.MIXTURE["nli"] if Path(file).name.startswith(source)]
        lines = (line for file in files for line in gzip.decompress((folder / file).read_bytes()).splitlines()[1:])
        rows = dict.fromkeys(tuple(line.decode().split("\t")[:3]) for line in lines)
        pairs = [(one, two, float(label == "entailment")) for one, two, label in rows if is_new(one) and is_new(two)]
        drawn += rng.sample(pairs, NLI_PAIRS)
    return drawn


def reference() -> Iterator[tuple[str, str, str, str]]:
    """Name, folder, first sentence and next paragraph of each entry of CMake's reference."""
    for path in sorted(Path("/usr/share").glob("cmake-*/Help/*/*.rst")):
        text = re.sub(r":\w+:`([^`<]*?)(?: <[^`]*)?`|``", r"\1", path.read_text("utf-8", "replace"))
        prose = list(paragraphs(text))
        if len(prose) > 1:
            yield path.stem, path.parent.name, prose[0], prose[1]


def options() -> Iterator[tuple[str, str]]:
    """Commands, and the first sentences on each of their options."""
    for path in sorted(Path("/usr/share/man").glob("man[18]/*.gz")):
        for said in OPTION.findall(gzip.decompress(path.read_bytes()).decode("utf-8", "replace")):
            text = " ".join(re.sub(r"\\f\w|\\&|\\", "", said.replace(r"\(cq", "'")).split())
            yield path.name.partition(".")[0], re.split(r"(?<=[.:]) ", text)[0]


def changes() -> Iterator[tuple[str, str]]:
    """Packages, and the entries of their changelogs."""
    for path in sorted(Path("/usr/share/doc").glob("*/changelog.Debian.gz"))[::ONE_IN]:
        for said in CHANGE.findall(gzip.decompress(path.read_bytes()).decode("utf-8", "replace")):
            yield path.parent.name, " ".join(said.split())

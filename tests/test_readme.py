"""The README and every page of docs/ is a test: its blocks run, in order, in one folder, unless marked ``no-run``.

A block that names ``data/sts`` needs the STS data, which is not ours to ship. A ``text`` block right after one that
runs is its output: Python's with the same numbers, nearly; a command's with the same words, since times differ.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = {
    path.relative_to(ROOT).with_suffix("").as_posix(): path.read_text("utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if path.parent.name != "hooks"  # tests/test_examples.py
}
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```(?:\n\n```text\n(.*?)^```)?", re.DOTALL | re.MULTILINE)
BLOCKS = [(page, *block) for page, text in PAGES.items() for block in BLOCK.findall(text)]
NUMBER = re.compile(r"[-+]?\d+(?:[.,]\d+)*\.?")
NEARLY = 0.1
"""Docstrings, which are the text of the examples, differ between versions of Python and of its packages."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder for each page."""
    folders = {page: tmp_path_factory.mktemp(page.replace("/", "-")) for page in PAGES}
    data = ROOT.parent / "shared" / "data"
    for folder in folders.values():
        for name in ("train.py", "evaluate.py", "configs", "benchmarks"):
            (folder / name).symlink_to(ROOT / name)
        if data.is_dir():
            (folder / "data").symlink_to(data)
    return folders


@pytest.mark.usefixtures("minilm")
@pytest.mark.parametrize(
    ("page", "language", "code", "printed"),
    [pytest.param(*block, marks=[] if block[0] == "README" else [pytest.mark.slow]) for block in BLOCKS],
    ids=[f"{page}: {code.strip().splitlines()[-1][:60]}" for page, _, code, _ in BLOCKS],
)
def test_what_is_written_runs(page, language, code, printed, folders):
    folder = folders[page]
    if "data/sts" in code and not (folder / "data").exists():
        pytest.skip("needs the STS data, as data/sts")
    shell = [sys.executable, "-c"] if language == "python" else ["bash", "-euc"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    finished = subprocess.run(
        [*shell, code], cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    compare = same_numbers if language == "python" else same_words
    compare(printed, finished.stdout)


def same_numbers(printed, stdout):
    if printed:
        assert words(printed) == words(stdout)
        told, found = ([float(one) for one in NUMBER.findall(text)] for text in (printed, stdout))
        assert found == pytest.approx(told, abs=NEARLY)


def words(text):
    """What is printed, however wide its numbers are."""
    return NUMBER.sub("#", text).replace("]", " ]").split()


def same_words(printed, stdout):
    """Each line, in order; the numbers may be others."""
    lines = iter(NUMBER.sub("#", stdout).splitlines())
    for line in NUMBER.sub("#", printed).splitlines():
        assert line in lines, f"{line!r} is not in:\n{stdout}"


def test_a_wrong_output_is_found():
    same_numbers("a [0.5\n -1.]", "a [0.49 -1.0]\n")
    same_words("took 3 s\nend", "begin\ntook 2.5 s\nmore\nend\n")
    for compare, printed, stdout in (
        (same_numbers, "a 0.5", "a 0.8"),
        (same_numbers, "a 0.5", "b 0.5"),
        (same_words, "took 3 s", "lasted 3 s"),
        (same_words, "b\na", "a\nb"),
    ):
        with pytest.raises(AssertionError):
            compare(printed, stdout)


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 140
    assert all((ROOT / "docs" / name).stat().st_size <= 150 * 1024 for name in ("cone.svg", "cone-dark.svg"))


def test_the_readme_tells_the_numbers_of_its_picture():
    medians = json.loads((ROOT / "benchmarks" / "picture.json").read_text("utf-8"))["median cosines"]
    for one in medians.values():
        assert f"{one['random']:.2f}" in PAGES["README"]
        assert f"{one['together']:.2f}" in PAGES["README"]


def test_the_readme_tells_what_the_notebook_of_the_search_printed():
    cells = json.loads((ROOT / "examples" / "search_an_faq.ipynb").read_text("utf-8"))["cells"]
    printed = "".join(line for cell in cells for out in cell.get("outputs", []) for line in out.get("text", []))
    table = re.findall(r"^\| (?:before|after) \| (.*) \| (0\.\d+) \|$", PAGES["README"], re.M)
    shares = re.findall(r"(\d+\.\d) %", PAGES["README"].split("## A search")[1].split("## Your own")[0])
    places = re.findall(r"^ +(\d+) -> +(\d+) ", printed, re.M)
    assert len(table) == len(shares) == 2
    assert all(re.search(rf"1\. {cosine}  [\w-]+  {re.escape(text)}", printed) for text, cosine in table)
    assert all(re.search(rf"{share} \(.*\) +(raw|two-band)$", printed, re.M) for share in shares)
    earlier = sum(int(after) < int(before) for before, after in places)
    assert (earlier, len(places) - earlier) == (5, 3)
    assert "55.0 (" in printed
    assert "55.0 %" in PAGES["README"]


def test_what_fix_prints_in_the_readme_is_what_the_guide_runs():
    (printed,) = (
        block for block in re.findall(r"^```text\n(.*?)^```", PAGES["README"], re.DOTALL | re.M) if "VERDICT" in block
    )
    assert printed in PAGES["docs/get-started"]


LINK = re.compile(r"(?<!`)\[[^\]\n]*\]\(([^)\s]+)\)")
LINKED = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG", "SECURITY")]
LINKED += [*sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "benchmarks").glob("*.md"))]


def anchors_of(text):
    """As forges make them of headings."""
    heads = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.M), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_link_is_dead(page):
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.M)
    for target in LINK.findall(text):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors_of(file.read_text("utf-8")), target


def test_every_page_is_in_the_navigation_of_the_site():
    nav = (ROOT / "mkdocs.yml").read_text("utf-8").split("\nnav:\n")[1]
    pages = {page.removeprefix("docs/") for page in PAGES if page != "README"}
    assert {page for page in pages if f": {page}.md\n" not in nav} == set()

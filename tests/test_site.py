"""The site as `make docs` builds it: it loads nothing from elsewhere, and searches from the disk."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bertflow
from bertflow.cli.command import command
from bertflow.cli.commands import COMMANDS

ROOT = Path(__file__).parents[1]
LOADED = re.compile(
    r"<(?:script|img|iframe)[^>]* src=\"?([^\" >]+)|<link[^>]* rel=\"?(?:stylesheet|preload|icon)[^>]*>"
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Its folder."""
    pytest.importorskip("material", reason="the extra docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_nothing_is_loaded_from_elsewhere(site):
    loaded = {found[0] for page in site.rglob("*.html") for found in LOADED.finditer(page.read_text("utf-8"))}
    assert loaded
    assert not [one for one in loaded if "//" in one and "data:image/" not in one]


def test_every_public_name_has_a_page_with_its_example_above_parameters_and_methods(site):
    for name in sorted(set(bertflow.__all__) - {"__version__"}):
        page = (site / "reference" / "python" / f"{name}.html").read_text("utf-8")
        assert page.count('<h2 id="example">') == 1
        above = page.partition('<h2 id="example">')[0]
        assert not re.search(r'class="doc-section-title|class="doc doc-children', above), name


def test_every_command_has_a_page_with_each_of_its_options(site):
    found = 0
    for name in [f"{name} {action}".strip() for name, row in COMMANDS.items() for action in row.actions or [""]]:
        page = (site / "reference" / "commands" / f"{name.replace(' ', '-')}.html").read_text("utf-8")
        one = command(name)
        for option in one.options:
            shown = option.metavar if option.name in one.row.places else f"--{option.name}{'.' * bool(option.group)}"
            assert shown in page, (name, shown)
            found += 1
    assert found > 300


BROKEN = """() => {
  const texts = document.createTreeWalker(document.querySelector("article"), NodeFilter.SHOW_TEXT), broken = [];
  while (texts.nextNode()) for (const found of texts.currentNode.data.matchAll(/--[a-z][\\w.]*/g)) {
    const range = document.createRange();
    range.setStart(texts.currentNode, found.index);
    range.setEnd(texts.currentNode, found.index + found[0].length);
    if (range.getClientRects().length > 1) broken.push(found[0]);
  }
  return broken;
}"""


@pytest.mark.parametrize("page", ["index.html", "finetune.html", "results.html"])
def test_no_option_is_broken_on_a_phone(site, browser, page):
    tab = browser.new_page(viewport={"width": 375, "height": 800})
    tab.goto((site / page).as_uri())
    broken = tab.evaluate(BROKEN)
    tab.close()
    assert broken == []


@pytest.mark.parametrize("page", ["index.html", "reference/python/fix.html"])
def test_it_searches_from_the_disk(site, browser, page):
    tab = browser.new_page()
    asked = []
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto((site / page).as_uri())
    tab.click(".md-search__input")
    tab.keyboard.type("whitening")
    tab.wait_for_selector(".md-search-result__link")
    found = tab.locator(".md-search-result__link").first.get_attribute("href")
    tab.close()
    assert found.startswith((site / "concepts" / "whitening.html").as_uri())
    assert not [url for url in asked if not url.startswith(("file:", "data:", "blob:"))]

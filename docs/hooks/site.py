"""What mkdocs adds to the pages of docs/: the front page, the reference, the tables of benchmarks/.

    README.md, CONTRIBUTING.md ...     -> index.md, contributing.md ...     with links turned to pages of the site
    benchmarks/*.md                    -> benchmarks/*.md
    examples/*.ipynb                   -> examples/*.md                     code, outputs and pictures as they are kept
    bertflow/__init__.pyi, examples.md -> reference/python/NAME.md          a page for each public name, by mkdocstrings
    bertflow.cli.commands.COMMANDS     -> reference/commands/NAME.md        the options, as their parsers have them

Nothing of it is committed. PyTorch is not loaded.
"""

import ast
import json
import os
import posixpath
import re
import subprocess
from argparse import SUPPRESS
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ROOMS = {
    "advise": "Advice",
    "advising": "Advice",
    "calibrated": "Calibrated encoders",
    "calibration": "Calibrators",
    "databases": "Databases: reindex",
    "data": "Data",
    "encoder": "Encoders",
    "evaluation": "Evaluation",
    "export": "Export",
    "exporting": "Export",
    "geometry": "Geometry and words",
    "looking": "Geometry and words",
    "measuring": "Evaluation",
    "moments": "Calibrators",
    "opening": "Encoders",
    "reproducing": "The paper",
    "retrieval": "Search",
    "runs": "Runs: train, embed, fit, transform",
    "scoring": "Scores and domains",
    "searching": "Search",
    "serve": "Serving",
    "store": "Embeddings on disk",
    "training": "Training",
    "vectors": "Runs: train, embed, fit, transform",
    "words": "Geometry and words",
}
"""What the names of a folder of the package, or of a file of its desk, are about."""
PICTURE = re.compile(
    r'<picture>\s*<source [^>]*srcset="([^"]+)">\s*<img src="([^"]+)"[^>]* alt="([^"]+)">\s*</picture>'
)
LINK = re.compile(r"(?<!`)(!?)\[([^\]\n]*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
SHORT_CODE = re.compile(r"<code>(?=[^<>\n]{1,34}</code>)")
CODE = re.compile(r"<code.*?</code>", re.DOTALL)
OPTION = re.compile(r"(?<![\w-])--?[a-zA-Z][\w.-]*")
BELOW_AN_EXAMPLE = re.compile(r'<p><span class="doc-section-title">|<div class="doc doc-children">')


def public_names() -> dict[str, str]:
    """Where each public name is defined: {"fix": "bertflow.api.advising"}."""
    stub = ast.parse((ROOT / "bertflow" / "__init__.pyi").read_text("utf-8"))
    imports = (one for one in stub.body if isinstance(one, ast.ImportFrom))
    return {alias.name: f"bertflow.{one.module}" for one in imports for alias in one.names}


def examples() -> dict[str, str]:
    """The example of each public name, as a block: that of examples.md, which the tests run."""
    text = (Path(__file__).parent / "examples.md").read_text("utf-8")
    return dict(re.findall(r"^## (\w+)\n\n(```.*?^```\n)", text, re.DOTALL | re.MULTILINE))


def copied() -> dict[str, str]:
    """Pages that stand outside of docs/: {page of the site: file of the repository}."""
    pages = {"index.md": "README.md"}
    pages |= {f"{name.lower()}.md": f"{name}.md" for name in ("CONTRIBUTING", "CHANGELOG", "SECURITY")}
    pages |= {f"examples/{path.stem}.md": f"examples/{path.name}" for path in sorted(ROOT.glob("examples/*.ipynb"))}
    return pages | {
        f"benchmarks/{path.name}": f"benchmarks/{path.name}" for path in sorted(ROOT.glob("benchmarks/*.md"))
    }


def notebook_page(notebook: Mapping[str, Any]) -> str:
    """A notebook as Markdown: its text, its code, and what it printed and drew."""
    parts, heading = [], ""
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            heading = (re.findall(r"^#+ (.*)$", source, re.MULTILINE) or [heading])[-1]
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            shown = {mime: "".join(text) for mime, text in output.get("data", {}).items()}
            if "image/png" in shown:
                parts.append(f"![{heading}](data:image/png;base64,{''.join(shown['image/png'].split())})")
            elif "text/markdown" in shown:
                parts.append(shown["text/markdown"])
            else:
                parts.append(f"```text\n{''.join(output.get('text', shown.get('text/plain', ''))).rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def turned(text: str, page: str) -> str:
    """A page's links, between files of the repository, as links between pages of the site.

    A link to a file that is not a page, as a script, becomes its text.
    """
    source = copied().get(page, f"docs/{page}")
    pages = {file: at for at, file in copied().items()}

    def turn(link: re.Match[str]) -> str:
        image, shown, target = link.groups()
        path, _, anchor = target.partition("#")
        if not path or ":" in path:
            return link[0]
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if file not in pages and not file.startswith("docs/"):
            return shown if (ROOT / file).exists() else link[0]
        at = posixpath.relpath(pages.get(file, file.removeprefix("docs/")), posixpath.dirname(page) or ".")
        return f"{image}[{shown}]({at}{'#' * bool(anchor)}{anchor})"

    text = PICTURE.sub(r"![\3](\2#only-light)![\3](\1#only-dark)", text)
    ends = [0, *(end for fence in FENCE.finditer(text) for end in fence.span()), len(text)]
    parts = [text[begin:end] for begin, end in pairwise(ends)]
    return "".join(part if at % 2 else LINK.sub(turn, part) for at, part in enumerate(parts))


def commands() -> Iterator[tuple[str, str, Any]]:
    """Every command with what it does; the actions of one, as of search, each alone."""
    from bertflow.cli.command import command
    from bertflow.cli.commands import COMMANDS

    for name, row in COMMANDS.items():
        for action, one in (row.actions or {"": row}).items():
            full = f"{name} {action}".strip()
            yield full, f"{one.does[0].upper()}{one.does[1:]}.", command(full)


def command_page(name: str, command: Any) -> str:
    """How a command is called, what it does, its options, and examples."""
    parser = command.parser(helping=True)
    lines = [f"# bertflow {name}", "", "```text", parser.usage, "```", "", _prose(parser.description or "")]
    groups: Mapping[str, list[Any]] = {
        "Arguments": [one for one in parser._positionals._group_actions if one.help != SUPPRESS],
        "Options": [one for one in parser._actions if one.option_strings and one.help != SUPPRESS],
    }
    placed = {id(one) for one in groups["Arguments"]}
    for title, actions in groups.items():
        kept = [one for one in actions if title == "Arguments" or id(one) not in placed]
        if kept:
            lines += ["", f"## {title}", "", f"| {title[:-1].lower()} | what it does |", "| --- | --- |"]
            lines += [_row(one, title == "Options") for one in kept]
    if command.examples:
        lines += ["", "## Examples", "", "```bash", *command.examples, "```"]
    return "\n".join(lines) + "\n"


def _row(action: Any, is_option: bool) -> str:
    metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    takes = action.nargs != 0 and action.default is not False and type(action).__name__ != "_ActionPrintConfig"
    spelled = ", ".join(f"`{one}`" for one in action.option_strings if not one.endswith("+"))
    name = (
        f"{spelled} {_cell(metavar)}" if is_option and takes and metavar else spelled if is_option else f"`{metavar}`"
    )
    default = action.default
    said = (
        ""
        if default in (None, SUPPRESS, False, [], ()) or "default" in (action.help or "")
        else f" Default: `{default}`."
    )
    return f"| {name} | {_cell(_prose(action.help or '') + said)} |"


def _cell(text: str) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


def _prose(text: str) -> str:
    """Text of a help, in which nothing is markup: <task> and *, and names with underscores."""
    return re.sub(r"([>*_\[\]])", r"\\\1", text).replace("<", "&lt;")


def generated() -> dict[str, str]:
    """Text by page."""
    pages = {page: (ROOT / file).read_text("utf-8") for page, file in copied().items()}
    pages |= {page: notebook_page(json.loads(text)) for page, text in pages.items() if page.startswith("examples/")}
    rooms, names, shown = defaultdict(list), public_names(), examples()
    for name, module in sorted(names.items(), key=lambda pair: pair[0].lower()):
        example = f"\n## Example\n\n{shown[name]}" if name in shown else ""
        pages[f"reference/python/{name}.md"] = f"---\ntitle: {name}\n---\n\n::: {module}.{name}\n{example}"
        rooms[ROOMS[module.removeprefix("bertflow.api.").removeprefix("bertflow.").split(".")[0]]].append(name)
    lines = ["# Python", "", "Every public name, as `bertflow.NAME`. They are loaded when they are first used.", ""]
    for room, listed in sorted(rooms.items()):
        lines += [f"**{room}**: {', '.join(f'[{name}](python/{name}.md)' for name in listed)}", ""]
    pages["reference/python.md"] = "\n".join(lines)
    lines = ["# Commands", "", "`bertflow COMMAND --help` prints the same.", "", "| command | |", "| --- | --- |"]
    for name, summary, command in commands():
        page = f"commands/{name.replace(' ', '-')}.md"
        pages[f"reference/{page}"] = command_page(name, command)
        lines.append(f"| [{name}]({page}) | {_cell(_prose(summary))} |")
    codes = "0 done, 1 interrupted, 2 usage, 3 data or disk, 4 a threshold was missed, 5 an error of bertflow itself"
    pages["reference/commands.md"] = "\n".join([*lines, "", f"Exit codes: {codes}.", ""])
    return pages


def repository() -> str | None:
    """The address of the repository that the site is made from, as its clone has it."""
    asked = ["git", "-C", str(ROOT), "config", "--get", "remote.origin.url"]
    try:
        address = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return None
    address = re.sub(r"^(?:ssh://)?git@([^:/]+)[:/]", r"https://\1/", address).removesuffix(".git")
    return address if address.startswith("https://") else None


def on_config(config: Any) -> Any:
    """Put what is generated into the navigation."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    config["generated"] = generated()
    pages = sorted(config["generated"], key=str.lower)
    titled = lambda folder: [page for page in pages if page.startswith(folder)]  # noqa: E731
    for entry in config["nav"]:
        if "Reference" in entry:
            entry["Reference"] = [
                {"Python": ["reference/python.md", *titled("reference/python/")]},
                {"Commands": ["reference/commands.md", *titled("reference/commands/")]},
                *entry["Reference"],
            ]
        if "Results" in entry:
            entry["Results"].append({"Every figure": [{Path(page).stem: page} for page in titled("benchmarks/")]})
    if address := repository():
        config["repo_url"], config["repo_name"] = address, "/".join(address.split("/")[-2:])
    config["nav"].append({"More": ["security.md", "changelog.md"]})
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages."""
    from mkdocs.structure.files import File

    for page, text in config["generated"].items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn the links of a page to pages of the site; "no-run" is for the tests."""
    return turned(re.sub(r"^(```\w+) no-run$", r"\1", markdown, flags=re.MULTILINE), page.file.src_uri)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Move an example right under the description of its name, and keep options and short code on one line."""
    html = SHORT_CODE.sub('<code class="whole">', html)
    html = CODE.sub(lambda code: OPTION.sub(r'<span class="whole">\g<0></span>', code[0]), html)
    above, heading, example = html.partition('<h2 id="example">')
    below = BELOW_AN_EXAMPLE.search(above)
    if not (heading and below):
        return html
    contents = page.toc.items[0].children
    contents.insert(0, contents.pop())
    return above[: below.start()] + heading + example + above[below.start() :]

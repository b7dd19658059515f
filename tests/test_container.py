"""The container recipes, walked through without a container engine: what they copy, and what they run."""

import importlib.metadata
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PINS = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)


@dataclass(frozen=True)
class Recipe:
    """What a recipe starts from, copies and runs."""

    base: str
    copies: list[str]
    commands: list[str]


def read_dockerfile():
    text = (ROOT / "Dockerfile").read_text()
    lines = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line]
    arguments = dict(value.split("=", 1) for name, value in steps if name == "ARG")
    copies = [source for name, value in steps if name == "COPY" for source in value.split()[:-1]]
    commands = [value for name, value in steps if name == "RUN"]
    for argument, value in arguments.items():
        commands = [command.replace(f"${argument}", value) for command in commands]
    return Recipe(next(value for name, value in steps if name == "FROM"), copies, commands)


def read_apptainer():
    text = (ROOT / "apptainer.def").read_text()
    head, *sections = re.split(r"^%", text, flags=re.MULTILINE)
    parts = {name: [line.strip() for line in lines if line.strip()] for name, *lines in map(str.splitlines, sections)}
    commands = parts["post"]
    for argument, value in (line.split("=", 1) for line in parts["arguments"]):
        commands = [command.replace(f"{{{{ {argument} }}}}", value) for command in commands]
    copies = [line.split()[0] for line in parts["files"]]
    return Recipe(re.search(r"^From: (\S+)", head, re.MULTILINE)[1], copies, commands[2:])


RECIPES = {"Dockerfile": read_dockerfile, "apptainer.def": read_apptainer}


@pytest.fixture(params=RECIPES)
def recipe(request):
    return RECIPES[request.param]()


def test_the_base_has_the_python_of_the_constraints(recipe):
    version = re.search(r"Python (\d+\.\d+)", (ROOT / "constraints.txt").read_text())[1]
    assert recipe.base.startswith(f"python:{version}-")


def test_what_is_copied_is_there_and_is_sent(recipe):
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert set(recipe.copies) == sent
    assert all((ROOT / source).exists() for source in recipe.copies)


def test_every_installation_is_pinned(recipe):
    installations = [command for command in recipe.commands if "pip install" in command]
    assert len(installations) == 2
    assert all("-c constraints.txt" in command for command in installations)


def test_both_recipes_run_the_same():
    docker, apptainer = (read() for read in RECIPES.values())
    assert docker.commands == apptainer.commands
    assert sorted(docker.copies) == sorted(apptainer.copies)


@pytest.mark.slow
def test_the_steps_can_be_walked_through(recipe, tmp_path):
    image, site = tmp_path / "image", tmp_path / "site"
    image.mkdir()
    for source in recipe.copies:
        origin = ROOT / source
        if origin.is_dir():
            shutil.copytree(origin, image / source, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(origin, image)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    for command in recipe.commands:
        words = shlex.split(command)
        assert words[0] == "python"
        if words[1:4] != ["-m", "pip", "install"]:
            # From elsewhere, so that what was installed is what is run.
            printed = run([sys.executable, *words[1:]], tmp_path, environment)
            assert re.fullmatch(r"bertflow \d+\.\d+\.\d+\n", printed)
        elif words[-1].startswith("."):
            # Its dependencies are those of this test; only the package itself is built and installed.
            offline = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", f"--target={site}"]
            run([sys.executable, "-m", "pip", "install", *offline, "."], image, environment)
            assert (site / "bertflow" / "cli" / "command.py").is_file()
        else:
            installed = importlib.metadata.version(words[-1]).split("+")[0]
            assert installed == PINS[words[-1]]


def run(command, folder, environment):
    finished = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout

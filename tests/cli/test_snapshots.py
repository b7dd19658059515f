"""What every command prints and writes on small data, kept in ``tests/snapshots``, one file a command.

Of files, JSON and text are kept in short, headings of HTML, names and shapes of tensors; of all others their names.
What differs between machines and from day to day (places, times, versions, digests) is replaced by a word.
"""

import html
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from bertflow.cli import main

from .conftest import SENTENCES, read_json, write_table
from .test_every_command import LINES, words

pytestmark = [
    pytest.mark.usefixtures("few_docstrings", "minilm"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),  # logged every 50 steps
]
OTHER = {
    "compare": "compare BERT BERT distinct.txt --queries distinct.txt --output out/new --device cpu",
    "fit a flow": "fit --vectors x.npy --calibrator flow(3) --preset similarity-2 --output out/new",
    "fix vectors": "fix --vectors x.npy --output out/new",
    "evaluate with baselines": "evaluate BERT --tasks mine --data_dir data --fit_on text.txt --resamples 0 "
    "--compare raw,center,whitening(4),sif+abtt(1) --output out/new --device cpu",
    "sweep": "sweep BERT --tasks mine --data_dir data --layers 0 --fit_on text.txt --output out/new --device cpu",
    "tokens of the vocabulary": "tokens --vocabulary --model BERT",
    "score by labels": "score BERT same.tsv --fit_on text.txt --labels same.tsv --precision 0.9 "
    "--output out/new.tsv --device cpu",
    "verify-paper": "verify-paper BERT --data_dir sts --max_length 16 --output out/new --device cpu",
    "paper-tables": "paper-tables BERT --data_dir sts --tasks stsb --nli text.txt --seeds 2 --resamples 400 "
    "--max_sentences 64 --output out/new --device cpu",
}
"""Command lines that have another form here, or none in ``LINES``."""
LEFT_OUT = ("serve", "export to onnx")
"""The first does not end, the second takes the time of all others; they have tests of their own."""
COMMANDS = {name: line for name, line in (LINES | OTHER).items() if name not in LEFT_OUT}

SAID = {
    r"docstrings of Python [^:\n\"]*": "docstrings of VERSIONS",
    r"\b\d{4}-\d\d-\d\dT[\d:.+Z-]+": "TIME",
    r"(?<![\w.])[0-9a-f]{16,}\b": "DIGEST",
    r"\b[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}\b": "UUID",
    r"\b[\d.,]+( s\b| MiB| rows a second)": r"N\1",
    r"\n[^\n]* a second, [^\n]* left(?=\n)": "",  # progress
    r"events\.out\.\S+": "EVENTS",
    "([-─ ])\\1{2,}": r"\1\1\1",  # tables as wide as their cells
}
"""What differs from run to run -> what stands for it."""
VARYING = re.compile("bytes$|command|float16|host|memory|onednn|platform|processor|python|seconds|version")
"""Keys of JSON whose values do."""
THEIRS = "_transactions|_versions|events|hparams|model.safetensors|model_meta|tokenizer|/config.json"
NAMED = re.compile(f"{THEIRS}|/geometry/|/report/|/lines/")
"""Files of which the name is enough: others decide what stands there, or other commands show it."""
SHOWN = {"md": 30, "yaml": 99, "safetensors": 9, "csv": 4, "tsv": 4, "jsonl": 4, "txt": 4}
"""Kind of a text -> lines that are kept."""
ITEMS = 3
"""Items of a list that are kept."""


def brief(value):
    """A value of JSON in short."""
    if isinstance(value, dict):
        return {key: "VARIES" if VARYING.search(key) else brief(one) for key, one in value.items()}
    if isinstance(value, list):
        more = [f"{len(value)} in all" if len(value) < 100 else "and many more"] if len(value) > ITEMS else []
        return [*map(brief, value[:ITEMS]), *more]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def content(path):
    """What is kept of a file."""
    kind = path.suffix[1:]
    if NAMED.search(str(path)):
        return ""
    if kind == "json":
        value = brief(read_json(path))
        return yaml.safe_dump(value, default_flow_style=None, width=10**6, sort_keys=False, allow_unicode=True)
    if kind == "html":
        return html.unescape("\n".join(re.findall(r"<h[1-4][^>]*>([^<]*)<", path.read_text("utf-8"))))
    if kind == "npy":
        return "{0.dtype} {0.shape}".format(np.load(path))
    if kind not in SHOWN:
        return ""
    if kind == "safetensors":
        lines = [f"{name} {array.dtype} {array.shape}" for name, array in sorted(load_file(path).items())]
    else:
        lines = path.read_text("utf-8").splitlines()
    more = [f"{len(lines)} lines in all"] if len(lines) > SHOWN[kind] else []
    return "\n".join([*lines[: SHOWN[kind]], *more])


@pytest.mark.parametrize("name", COMMANDS)
def test_what_a_command_prints_and_writes(name, place, inputs, minilm, sts, capsys, snapshot, monkeypatch):
    monkeypatch.setattr("bertflow.store.shards.SAY_SHARD_EVERY", 1e9)  # only the first shard is said, on any machine
    distinct = [one for one in SENTENCES if not re.search("old|tall", one)][:120:6]
    (place / "distinct.txt").write_text("\n".join(distinct))
    same = [(one, other, int(one == other)) for one in distinct for other in (one, distinct[3], distinct[7])]
    write_table(place / "same.tsv", "sentence1 sentence2 label", same)
    line = words(COMMANDS[name])
    code = main(line)
    printed = capsys.readouterr()
    text = f"$ bertflow {' '.join(line)}\n{printed.out}{printed.err}exit code {code}\n"
    seen = {}
    for path in sorted(path for path in (place / "out").rglob("*") if path.is_file()):
        name_here, found = str(path.relative_to(place)), content(path)
        text += f"\n=== {name_here}{f': as {seen[found]}' if found in seen else ''}\n"
        text += "" if found in seen else found
        seen |= {found: seen.get(found, name_here)} if found else {}
    for folder, word in {place: "PLACE", inputs: "INPUTS", minilm: "MINILM"}.items():
        text = text.replace(str(folder), word)
    for pattern, word in SAID.items():
        text = re.sub(pattern, word, text)
    snapshot(f"bertflow {name}", "\n".join(one.rstrip() for one in text.splitlines()), rtol=0.02)


def test_every_kept_command_is_run():
    folder = Path(__file__).parents[1] / "snapshots"
    assert {path.stem for path in folder.glob("bertflow *.txt")} == {f"bertflow {name}" for name in COMMANDS}

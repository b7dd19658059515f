"""Files of a few lines, written for one test."""

from pathlib import Path

import datasets
import pytest


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    """Each test runs in a folder of its own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def write(tmp_path):
    """Write a file of text or bytes under the test's folder and give its path."""

    def write_file(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write_file


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """Keep what ``datasets`` caches inside the test's folder."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))

"""The benchmark of a GPU runs, on a CPU and in small: what it finds there says nothing of a GPU."""

import importlib
import json

import pytest
import torch

from .conftest import read_json


@pytest.fixture(scope="module")
def bench(benchmark):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISABLE_CUPTI_LAZY_REINIT", "1")
        patch.setenv("TEARDOWN_CUPTI", "0")
        yield benchmark("bench_gpu")


def test_all_parts_run_and_what_was_kept_before_stays(bench, tmp_path, capsys):
    row = {"name": "a", "value": 1.4, "unit": "x", "target": 1.5, "at_most": True, "met": True, "facts": {"ms": 1234.5}}
    before = {"NVIDIA H100": {"flow-step": {"conditions": {"cores": 16}, "seconds": 1, "rows": [row]}}}
    (tmp_path / "found.json").write_text(json.dumps(before))
    bench.main(["--device", "cpu", "--tiny", "--output", str(tmp_path / "found.json")])
    kept = read_json(tmp_path / "found.json")
    (device,) = kept.keys() - before.keys()
    parts = kept[device]
    assert {**kept, **before} == kept
    cells = [cell.strip() for cell in bench.section(before).splitlines()[4].split("|")[1:-1]]
    assert cells == ["a", "1,234", "1.4, met", "≤ 1.5"]
    assert list(parts) == list(bench.PARTS)
    names = [row["name"] for row in parts["encode"]["rows"]]
    shapes = importlib.import_module("bench_gpu_material").SHAPES
    assert names == [f"{shape}, up to 8 tokens, bfloat16" for shape in shapes]
    for part in parts.values():
        for row in part["rows"]:
            assert row["value"] > 0, row
            assert row["met"] is None, "a CPU has no targets"
    said = capsys.readouterr().out
    assert f"#### {device}\n" in said
    assert bench.section(kept) in said


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(bench, capsys):
    with pytest.raises(SystemExit) as caught:
        bench.main([])
    assert caught.value.code == 2
    assert capsys.readouterr().err == "bench_gpu.py: there is no CUDA GPU. Show that it runs by --device cpu --tiny.\n"


def test_the_page_quotes_what_is_kept(bench):
    kept = read_json(bench.RESULTS) if bench.RESULTS.exists() else {}
    begin = importlib.import_module("bench_page").BEGIN.format("bench_gpu.py")
    assert f"{begin}\n{bench.section(kept)}\n" in bench.PAGE.read_text("utf-8")

"""The benchmark of a GPU runs, on a CPU and in small: what it finds there says nothing of a GPU."""

import importlib
import json
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def bench():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)  # they import one another by name
        patch.setenv("DISABLE_CUPTI_LAZY_REINIT", "1")
        patch.setenv("TEARDOWN_CUPTI", "0")
        yield importlib.import_module("bench_gpu")


def test_all_parts_run(bench, tmp_path, capsys):
    bench.main(["--device", "cpu", "--tiny", "--output", str(tmp_path / "found.json")])
    kept = json.loads((tmp_path / "found.json").read_text())
    ((device, parts),) = kept.items()
    assert list(parts) == list(bench.PARTS)
    names = [row["name"] for row in parts["encode"]["rows"]]
    assert names == [
        f"{shape}, up to 8 tokens, bfloat16, {way}"
        for shape in importlib.import_module("bench_gpu_material").SHAPES
        for way in ("packed", "padded")
    ]
    for part in parts.values():
        for row in part["rows"]:
            assert row["value"] > 0, row
            assert row["met"] is None, "a CPU has no targets"
    said = capsys.readouterr().out
    assert f"#### {device}\n" in said
    assert bench.section(kept) in said


def test_what_was_kept_before_stays(bench, tmp_path):
    row = {"name": "a", "value": 1.4, "unit": "x", "target": 1.5, "at_most": True, "met": True, "facts": {"ms": 1234.5}}
    before = {"NVIDIA H100": {"flow-step": {"conditions": {"cores": 16}, "seconds": 1, "rows": [row]}}}
    (tmp_path / "found.json").write_text(json.dumps(before))
    bench.main(["--device", "cpu", "--tiny", "--only", "flow-step", "--output", str(tmp_path / "found.json")])
    kept = json.loads((tmp_path / "found.json").read_text())
    assert kept.pop("CPU, tiny models")["flow-step"]["rows"]
    assert kept == before
    assert [cell.strip() for cell in bench.section(kept).splitlines()[4].split("|")[1:-1]] == [
        "a",
        "1,234",
        "1.4, met",
        "≤ 1.5",
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(bench, capsys):
    with pytest.raises(SystemExit) as caught:
        bench.main([])
    assert caught.value.code == 2
    assert capsys.readouterr().err == "bench_gpu.py: there is no CUDA GPU. Show that it runs by --device cpu --tiny.\n"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--only", "nothing"], "unknown 'nothing'; known: encode"),
        (["--dtypes", "int8"], "unknown 'int8'; known: float32"),
        (["--device", "cpu"], "Add --tiny"),
        (["--device", "cpu", "--tiny", "--only", "tokenize"], "--only encode,tokenize"),
    ],
)
def test_what_cannot_be_measured_is_refused(bench, given, said, capsys):
    with pytest.raises(SystemExit) as caught:
        bench.main(given)
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H200", 989),
        ("NVIDIA A100-SXM4-40GB", 312),
        ("NVIDIA H100 NVL", 12.5),
        ("NVIDIA H200 NVL", 12.5),
        ("Tesla T4", 12.5),
    ],
)
def test_a_device_that_is_not_known_is_compared_with_a_product(bench, name, peak, monkeypatch, tmp_path):
    here = bench.Bench("cpu", bench.TINY, ["bfloat16"], tmp_path)
    monkeypatch.setattr(bench.Bench, "products", lambda self, dtype: 12.5)
    here.__dict__["name"] = name
    assert here.peak("bfloat16") == peak
    assert here.peak("tf32") == (12.5 if peak == 12.5 else peak / 2)
    assert here.peak("float32") == 12.5


@pytest.mark.slow
def test_the_tokenizer_is_run_with_so_many_cores(bench, tmp_path):
    parts, here = importlib.import_module("bench_gpu_parts"), bench.Bench("cpu", bench.TINY, ["bfloat16"], tmp_path)
    folders = [here.model(shape) for shape in importlib.import_module("bench_gpu_material").SHAPES]
    (tmp_path / parts.TEXT).write_text(json.dumps(here.sentences))
    assert all(rate > 0 for rate in parts.in_a_process(folders, 1))


def test_the_page_quotes_what_is_kept(bench):
    kept = json.loads(bench.RESULTS.read_text("utf-8")) if bench.RESULTS.exists() else {}
    assert (
        f"{importlib.import_module('bench_page').BEGIN.format('bench_gpu.py')}\n{bench.section(kept)}\n"
        in bench.PAGE.read_text("utf-8")
    )

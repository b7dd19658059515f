import shutil
from argparse import Namespace
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from bertflow.api.looking import report_place
from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.closed_forms import Whitening
from bertflow.cli import main
from bertflow.encoder.abstract import AbstractEncoder
from bertflow.geometry.fitted import read_history, read_kept, show_training
from bertflow.geometry.inspecting import write_report
from bertflow.records import write_record
from bertflow.training.record import FitRecord, gaussianity

from ..encoder.conftest import make
from ..texts import TWELVE as WORDS
from ..texts import drawn
from .conftest import SCORED, read_json, write_table

RAW = ("--pairs", "none", "--compare", "raw")


def sentences(n=60):
    return list(dict.fromkeys(drawn(WORDS, 2 * n, 0, 4, 7)))[:n]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Text, scored pairs, natural pairs and a frequency list."""
    folder, rng = tmp_path_factory.mktemp("files"), np.random.default_rng(1)
    (folder / "text.txt").write_text("\n".join(sentences()))
    scored = zip(sentences(40), sentences(40)[::-1], rng.integers(0, 6, 40), strict=True)
    write_table(folder / "scored.tsv", SCORED, scored)
    write_table(folder / "natural.tsv", "query text", zip(sentences()[:20], sentences()[20:40], strict=True))
    (folder / "counts.txt").write_text("".join(f"{word} {100 - at}\n" for at, word in enumerate(WORDS)))
    return folder


@pytest.fixture
def blank_pictures():
    """Pictures are made, but not drawn, which is what takes the time."""
    plots = pytest.importorskip("bertflow.plots", reason="the plots extra is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "to_svg", lambda figure: b"<svg/>")
        yield patch


@pytest.fixture
def inspect(files, capsys, blank_pictures):
    """Runs the command on the text; gives exit code, stdout, stderr and the JSON twin."""

    def call(*arguments, flow=False):
        output = Path("report")
        shutil.rmtree(output, ignore_errors=True)  # no report is replaced
        given = [*map(str, arguments), "--text", str(files / "text.txt"), "--output", str(output), "--device", "cpu"]
        given += [] if "--compare" in given or flow else ["--compare", "raw,whitening"]
        code = main(["inspect", *given])
        twin = output / "report.json"
        return code, *capsys.readouterr(), read_json(twin) if twin.exists() else None

    return call


@pytest.fixture
def mine(tiny_bert):
    """The folder of an encoder that was calibrated on some of the text."""
    encoder = make(tiny_bert, pooling="mean(1,2)")
    CalibratedEncoder.fit(encoder, Whitening(n_components=4), sentences()[:20]).save("mine")
    return "mine"


def test_it_measures_before_and_after_and_says_what_it_left_out(inspect, tiny_bert, files):
    code, out, _, twin = inspect(
        tiny_bert, "--pooling", "mean(1,2)", "--pairs", files / "scored.tsv", "--frequencies", files / "counts.txt"
    )
    assert code == 0
    assert out.splitlines()[3].split() == ["raw", "whitening", "wanted"]
    values = twin["sections"]["Measures"]["values"]
    assert values["raw"]["mean_cosine"] > 0.3 > abs(values["whitening"]["mean_cosine"])
    assert twin["facts"]["fitted on"] == "30 other sentences of this text"
    assert twin["facts"]["word frequencies"] == "counts of counts.txt"
    assert "; 0 % of these sentences in the fitting text" in twin["facts"]["whitening"]
    assert set(twin["left_out"]) == {"Training", "Masked words"}
    assert "left out  Training, Masked words (why: --details)" in out
    said = f"fix needs 200 different sentences or more, and {files / 'text.txt'} has 60"
    assert out.splitlines()[-3:] == ["report    report/report.html", "", f"next: give more text: {said}"]
    assert out.splitlines()[1] == twin["card"]["verdict"]
    histogram = twin["sections"]["Cosines"]["histogram"]
    assert sum(histogram["counts"]["raw"]["random pairs"]) > 0 == len(histogram["edges"]) - 61
    page = Path("report/report.html").read_text()
    assert page.count("<img alt=") == page.count("data:image/svg+xml;base64,") == 11


def test_the_columns_of_a_table_are_named_and_wrong_ones_refused(tiny_bert, capsys, refused):
    table = Path("mine.csv")
    table.write_text("".join(["sku,said\n", *(f"{at},{text}\n" for at, text in enumerate(sentences()))]))
    given = ["inspect", tiny_bert, "--text", table, *RAW, "--device", "cpu"]
    assert main([*map(str, [*given, "--columns", "said", "--output", "seen"])]) == 0
    assert "using column said" in capsys.readouterr().err
    assert "no column 'nope'" in refused(3, *given, "--columns", "nope")
    assert "Give the table as text" in refused(2, "inspect", tiny_bert, "--columns", "said")


def test_a_flow_that_was_not_trained_has_no_column(inspect, tiny_bert):
    code, out, err, _ = inspect(tiny_bert, "--pairs", "none", flow=True)
    assert (code, out.splitlines()[3].split()) == (0, ["raw", "whitening", "wanted"])
    assert "30 rows are too few to train a flow" in err


def test_pictures_are_files_of_the_formats_that_were_asked_for(inspect, tiny_bert, blank_pictures):
    blank_pictures.undo()
    begins = {"pdf": b"%PDF", "svg": b"<?xml", "png": b"\x89PNG"}
    pictures = Path("pictures")
    code, out, *_ = inspect(tiny_bert, *RAW, "--figures", pictures, "--format", "pdf,svg,png")
    assert (code, f"pictures  {pictures}" in out) == (0, True)
    for kind, first in begins.items():
        assert (pictures / f"cosines.{kind}").read_bytes().startswith(first)
    code, _, err, _ = inspect(tiny_bert, "--figures", "more", "--format", "gif")
    assert (code, "Unknown format of a picture 'gif'. Known: png, pdf, svg." in err) == (2, True)
    assert inspect(tiny_bert, "--format", "pdf")[0] == 2


@pytest.mark.parametrize("found", [True, False])
def test_with_open_the_browser_is_asked_for_the_report(inspect, tiny_bert, monkeypatch, found):
    asked = []
    monkeypatch.setattr("webbrowser.open", lambda address: asked.append(address) or found)
    code, _, err, _ = inspect(tiny_bert, *RAW, "--open")
    assert (code, asked) == (0, [Path("report/report.html").absolute().as_uri()])
    said = "No browser can be opened here. The report is report/report.html."
    assert (said in err) != found


def test_scored_pairs_give_spearman_and_natural_pairs_hits(inspect, tiny_bert, files):
    twins = {kind: inspect(tiny_bert, "--pairs", files / f"{kind}.tsv")[3] for kind in ("scored", "natural")}
    metrics = {kind: twin["sections"]["Scores"]["metric"] for kind, twin in twins.items()}
    assert metrics == {"scored": "Spearman on scored", "natural": "hit@1 on natural"}
    rules = {kind: twin["sections"]["Paraphrases"]["rule"] for kind, twin in twins.items()}
    assert rules == {"scored": "human score of at least 4", "natural": "a query and its text"}


def test_a_report_that_is_there_is_left_alone_and_one_of_a_run_is_beside_it(monkeypatch):
    write_record(Path("run/run.json"), {})
    Path("run/report").mkdir()
    places = [report_place(Namespace(model=model)) for model in ("bert", "run")]
    assert places == [{"output": "report"}, {"output": "run/report-2"}]


def test_equal_calls_write_equal_files(inspect, tiny_bert, blank_pictures):
    blank_pictures.undo()
    pages = []
    for _ in range(2):
        inspect(tiny_bert, *RAW)
        pages.append(Path("report/report.html").read_bytes())
    assert pages[0] == pages[1]


def test_what_is_calibrated_is_compared_with_raw_and_keeps_its_own_text(inspect, mine):
    code, out, _, twin = inspect(mine, "--pairs", "none", flow=True)
    assert code == 0
    assert out.splitlines()[3].split() == ["raw", "mine", "wanted"]
    assert twin["facts"]["fitted on"] == "what mine was fitted on"
    assert "an unknown share" not in twin["facts"]["mine"]
    assert {"Paraphrases", "Scores"} <= set(twin["left_out"])


def test_a_baseline_that_needs_text_leaves_the_others_on_the_text_of_the_encoder(inspect, mine):
    given = (mine, "--pairs", "none", "--compare")
    *_, alone = inspect(*given, "raw,center")
    code, _, err, both = inspect(*given, "raw,center,sif+center")
    assert code == 0
    values = [twin["sections"]["Measures"]["values"] for twin in (alone, both)]
    assert {name: values[1][name] for name in values[0]} == values[0]
    where = "what mine was fitted on; sif+center on 30 other sentences of this text"
    assert both["facts"]["fitted on"] == where
    assert f"note: baselines are fitted on {where}" in err


def test_word_vectors_have_no_layers(inspect):
    vectors, rng = Path("glove.txt"), np.random.default_rng(0)
    vectors.write_text("".join(f"{word} {' '.join(map(str, rng.normal(size=6).round(3)))}\n" for word in WORDS))
    code, _, _, twin = inspect(vectors, *RAW)
    assert code == 0
    assert twin["left_out"]["Layers"] == "No transformer was given by its name, so layers and vocabulary are not known."


def test_measures_that_are_not_defined_are_left_out(inspect, tiny_bert):
    code, out, _, twin = inspect(tiny_bert, "--pairs", "none", "--compare", "raw,whitening(1)", "--details")
    assert code == 0
    reason = "IsoScore needs embeddings of at least 2 dimensions, got 1. Keep more directions."
    assert twin["left_out"]["Measures"] == reason
    assert f"left out: Measures: {reason}" in out
    assert "A plane needs" in twin["left_out"]["Word frequency in the plane"]


def test_too_little_text_is_refused(tiny_bert, refused):
    Path("few.txt").write_text("\n".join(sentences(10)))
    line = refused(3, "inspect", tiny_bert, "--text", "few.txt", "--pairs", "none")
    assert line == "error: A report needs at least 48 different sentences, got 10. Give more text."


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "mine"
    folder.mkdir()
    rows = ["epoch,step,train/bits_per_dim,val/bits_per_dim", "0,10,1.5,", "0,20,1.25,", "0,20,,1.4", "1,40,,1.3"]
    (folder / "metrics.csv").write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that kept its step 32, with a report on the fit."""
    folder = tmp_path_factory.mktemp("runs") / "trained"
    (folder / "report").mkdir(parents=True)
    rows = ["step,train/bits_per_dim,val/bits_per_dim", "7,-0.738,", "7,,-0.736", "31,-0.727,", "31,,-0.74"]
    (folder / "metrics.csv").write_text("\n".join(rows) + "\n")
    record = FitRecord(
        "similarity-2", 0, 284, 16, 16, 15, 1, 15, 32, 0.5, "step 32", None, False, False, -0.79, -0.78, -0.74, -0.739,
        gaussianity(np.random.default_rng(0).normal(size=(16, 15))),
    )  # fmt: skip
    write_record(folder / "report/fit.json", asdict(record))
    return folder


def test_the_history_is_read_from_the_metrics(run_folder):
    found = read_history(run_folder)
    assert {name: (steps.tolist(), bits.tolist()) for name, (steps, bits) in found.items()} == {
        "training": ([10, 20], [1.5, 1.25]),
        "held out": ([20, 40], [1.4, 1.3]),
    }


def test_the_history_says_which_state_was_kept_and_why(run_folder, trained):
    kept = read_kept(trained)
    section = show_training(read_history(trained), kept)
    assert section.sees.endswith("Kept: step 32, the fewest held-out bits (-0.740).")
    assert "training do not fall" in section.sees
    for changes, why in (
        ({"kept": "start"}, "since no step had fewer held-out bits"),
        ({"held_out_bits": None}, "since no rows were held out to choose by"),
        ({"held_out_bits": 0.0}, "since the recipe keeps the last state, whatever its held-out bits"),
    ):
        assert show_training(read_history(trained), replace(kept, **changes)).numbers["kept"]["why"] == why
    assert read_kept(run_folder) is None
    assert "Kept" not in show_training(read_history(run_folder)).sees


def test_the_mark_stands_at_the_step_that_was_kept(trained):
    plots = pytest.importorskip("bertflow.plots", reason="the plots extra is not installed")
    (axis,) = show_training(read_history(trained), read_kept(trained)).draw(plots).axes
    (mark,) = [line for line in axis.lines if line.get_label() == "kept"]
    assert set(mark.get_xdata()) == {31}


def test_one_value_is_no_history(refusal):
    Path("metrics.csv").write_text("step,train/bits_per_dim\n1,2.0\n")
    assert "fewer than two values were logged" in refusal(read_history, Path())


class Refusing(AbstractEncoder):
    """An encoder that has been asked for enough already."""

    def __init__(self, encoder):
        self.encoder, self.dim = encoder, encoder.dim

    def _encode(self, sentences, *_):
        raise AssertionError("the embeddings are at hand")

    def describe(self):
        return self.encoder.describe()

    def fitted_hashes(self):
        return self.encoder.fitted_hashes()


@pytest.mark.usefixtures("blank_pictures")
def test_a_training_run_ends_with_a_report_and_embeds_nothing_again(tiny_bert, run_folder):
    encoder, text = make(tiny_bert, pooling="mean(1,2)"), sentences()
    x = encoder.encode([*text, text[0]])
    calibrator = Whitening().fit_sentences(encoder, text)
    system = CalibratedEncoder(Refusing(encoder), calibrator)
    systems, recipe = {"raw": system.encoder, "flow": system}, {"model": str(tiny_bert), "device": "cpu"}
    title, folder = "Geometry of the run mine", run_folder / "report"
    path = write_report(folder, title, systems, [*text, text[0]], recipe=recipe, run=run_folder, x=x)
    assert path == run_folder / "report/report.html"
    twin = read_json(path.with_suffix(".json"))
    assert list(twin["facts"]) == sorted(twin["facts"])
    assert twin["facts"]["sentences"] == "60"
    assert twin["sections"]["Training"]["held out"] == {"first": 1.4, "last": 1.3, "least": 1.3}
    assert twin["sections"]["Training"]["sees"].startswith(
        "Bits per dimension: training fall, from 1.500 to 1.250; held out"
    )
    assert {"Latent", "Layers", "Hubs"} <= set(twin["sections"])


PROBE = """() => {
  const all = [...document.querySelectorAll("body *:not(.wide *)")];  // a wide table scrolls by itself
  const root = document.documentElement;
  const parts = [...document.querySelectorAll("section, figure, img, table, .card")];
  const boxes = parts.map(e => e.getBoundingClientRect());
  return {
    scrolls: root.scrollWidth > root.clientWidth,
    clipped: [...document.querySelectorAll(".wide")].filter(e => e.scrollWidth > e.clientWidth).length,
    beyond: all.filter(e => e.getBoundingClientRect().right > innerWidth + 1).length,
    empty: boxes.filter(b => b.width < 50 || b.height < 20).length,
    images: [...document.images].map(i => [i.complete, i.naturalWidth]),
    card: document.querySelector(".card").getBoundingClientRect().bottom,
    wide: document.querySelector(".card .wide").scrollWidth - document.querySelector(".card .wide").clientWidth,
    ground: getComputedStyle(document.body).backgroundColor,
  };
}"""
"""What the tests ask the page about itself."""


@pytest.fixture
def tab(browser, rendered):
    """A function that opens the report in a new tab. It loads nothing, and no error is logged."""
    problems, uri = [], (rendered / "report.html").as_uri()

    def opened(width, **options):
        page = browser.new_page(viewport={"width": width, "height": 800}, **options)
        page.on("console", lambda line: problems.append(line.text))
        page.on("request", lambda sent: sent.url.startswith((uri, "data:")) or problems.append(sent.url))
        page.goto(uri)
        return page

    yield opened
    assert problems == []


@pytest.mark.slow
@pytest.mark.usefixtures("minilm")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 600, 375])
def test_a_browser_shows_nothing_empty_and_nothing_cut_off(tab, width, scheme):
    found = tab(width, color_scheme=scheme).evaluate(PROBE)
    assert not found["scrolls"]
    assert found["beyond"] == found["empty"] == found["wide"] == 0
    assert found["clipped"] == 0 or width < 1000
    assert len(found["images"]) == 11
    assert all(complete and natural > 300 for complete, natural in found["images"])
    assert found["card"] < 800, "the card is on the first screen"
    assert (found["ground"] == "rgb(255, 255, 255)") == (scheme == "light")


@pytest.mark.slow
@pytest.mark.usefixtures("minilm")
def test_the_contents_lead_there_and_paper_is_white(tab):
    page = tab(1280, color_scheme="dark")
    page.click("nav a >> text=Hubs")
    assert abs(page.evaluate("document.querySelector('#hubs').getBoundingClientRect().top")) < 60
    page.emulate_media(media="print")
    assert page.evaluate(PROBE)["ground"] == "rgb(255, 255, 255)"
    assert page.is_hidden("nav")


@pytest.fixture(scope="module")
def rendered(minilm, tmp_path_factory):
    """A report on the real encoder, with everything but what needs other models or data."""
    pytest.importorskip("matplotlib", reason="the plots extra is not installed")
    output = tmp_path_factory.mktemp("rendered")
    options = ["--pooling", "mean(1,2)", "--sentences", "300", "--compare", "raw,whitening", "--output", str(output)]
    assert main(["inspect", str(minilm), *options]) == 0
    return output

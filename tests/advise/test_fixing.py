"""``bertflow.fix`` from Python: encoders and sentences in, advice out."""

import json
import shutil

import numpy as np
import pytest

import bertflow
from bertflow.encoder.static import StaticEncoder
from bertflow.errors import UnknownNameError, UsageError

WORDS = ["man", "dog", "cat", "bird", "house", "garden", "runs", "sleeps", "eats", "big", "small", "red", "green", "in"]
SICK = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"
pytestmark = [
    pytest.mark.filterwarnings("ignore::bertflow.errors.NullDirectionWarning"),
    pytest.mark.filterwarnings("ignore:.*:UserWarning:pytorch_lightning"),
]


def neighbors(n, seed=0):
    """Pairs of sentences that share all words but one."""
    rng = np.random.default_rng(seed)
    pairs = []
    for _ in range(n):
        words = [str(word) for word in rng.choice(WORDS, rng.integers(5, 10))]
        pairs.append((" ".join(words), " ".join(rng.permutation([str(rng.choice(WORDS)), *words[1:]]))))
    return pairs


def lines_of(pairs):
    """The pairs as a text: a blank line after each."""
    return [line for pair in pairs for line in (*pair, "")]


@pytest.fixture(scope="module")
def encoder(tiny_bert):
    return bertflow.TransformerEncoder(tiny_bert, device="cpu")


@pytest.fixture(scope="module")
def advice(encoder):
    return bertflow.fix(encoder, lines_of(neighbors(600)), candidates="whitening,whitening(8)", resamples=200)


def test_an_encoder_and_sentences_are_enough(advice, encoder):
    assert (advice.verdict, advice.system) == ("whiten", "whitening")
    assert advice.reasons[0].startswith("Two random texts have a cosine of ")
    assert advice.geometry["reference_raw"].median > 0.8 > 0.1 > abs(advice.geometry["reference_advised"].median)
    (mined,) = advice.evidence
    assert mined.chosen == "whitening"
    assert mined.gain.ci_low > 0
    assert advice.folder is None


def test_the_encoder_of_the_advice_is_the_one_that_was_judged(advice, encoder):
    sentences = [a for a, _ in neighbors(20, seed=5)]
    judged = advice.candidates.systems["whitening"].encode(sentences)
    np.testing.assert_allclose(advice.encoder.encode(sentences), judged, atol=1e-6)
    assert advice.encoder.raw is encoder


def test_the_advice_in_short_and_at_length(advice):
    assert repr(advice) == f"<Advice: {advice.of}: whiten (whitening)>"
    assert json.loads(advice.to_json())["verdict"] == "whiten"
    for text in (advice.to_markdown(), advice._repr_markdown_()):
        assert text.startswith(f"# {advice.of}: whiten\n")


def test_what_is_saved_is_what_the_advice_says(advice, tmp_path):
    assert advice.save(tmp_path / "fixed") == tmp_path / "fixed"
    saved, held = json.loads((tmp_path / "fixed" / "fix.json").read_text()), json.loads(advice.to_json())
    assert saved.pop("said")[:-1] == held.pop("said")
    assert saved == held
    sentences = [a for a, _ in neighbors(20, seed=6)]
    opened = bertflow.CalibratedEncoder.load(tmp_path / "fixed" / "encoder", device="cpu")
    np.testing.assert_allclose(opened.encode(sentences), advice.encoder.encode(sentences), atol=1e-6)


def test_the_command_and_the_function_agree(advice, tiny_bert, tmp_path, capsys):
    from bertflow.cli import main

    (tmp_path / "text.txt").write_text("\n".join(lines_of(neighbors(600))))
    argv = ["fix", str(tiny_bert), str(tmp_path / "text.txt"), "--output", str(tmp_path / "out"), "--device", "cpu"]
    assert main([*argv, "--candidates", "whitening,whitening(8)", "--resamples", "200"]) == 0
    record, held = json.loads((tmp_path / "out" / "fix.json").read_text()), json.loads(advice.to_json())
    assert record["geometry"] == held["geometry"]
    assert record["reasons"] == held["reasons"]


def test_lines_are_said_before_the_result(encoder):
    said = []
    bertflow.fix(encoder, lines_of(neighbors(350)), candidates="whitening(8)", resamples=100, say=said.append)
    assert [line.split()[0] for line in said] == ["encoder", "text", "time", "geometry"]


@pytest.mark.parametrize("header", [SICK, "sentence1\tsentence2\tscore"], ids=["SICK", "STS-B"])
def test_labels_may_have_the_columns_of_the_known_tasks(encoder, header, tmp_path):
    cells = "{k}\t{a}\t{b}\t{score}\tNEUTRAL" if header == SICK else "{a}\t{b}\t{score}"
    rows = [cells.format(k=k, a=a, b=b, score=1 + k % 5) for k, (a, b) in enumerate(neighbors(150, seed=2))]
    (tmp_path / "labels.tsv").write_text("\n".join([header, *rows]) + "\n")
    text, labels = lines_of(neighbors(400)), tmp_path / "labels.tsv"
    advice = bertflow.fix(encoder, text, labels, candidates="whitening(8)", resamples=100)
    assert [one.evidence.kind.title for one in advice.evidence] == ["graded labels", "mined pairs"]


def test_for_search_mined_pairs_decide_before_graded_labels(encoder, tmp_path):
    rows = [f"{a}\t{b}\t{k % 5}" for k, (a, b) in enumerate(neighbors(150, seed=2))]
    (tmp_path / "labels.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *rows]) + "\n")
    given = (encoder, lines_of(neighbors(600)), tmp_path / "labels.tsv")
    advice = bertflow.fix(*given, purpose="search", candidates="whitening", resamples=100)
    assert [one.evidence.kind.title for one in advice.evidence] == ["mined pairs", "graded labels"]
    assert advice.verdict == "whiten"
    assert not any("Mined pairs measure search" in reason for reason in advice.reasons)


def test_an_encoder_without_tokens_is_judged_with_its_own_pooling(tiny_bert, tmp_path):
    static = StaticEncoder(tiny_bert)
    advice = bertflow.fix(static, lines_of(neighbors(400)), candidates="whitening(8),sif+whitening(8)", resamples=100)
    assert advice.candidates.left_out == {"sif+whitening(8)": "its pooling needs the tokens"}
    assert advice.encoder.raw is static
    advice.save(tmp_path / "fixed")
    assert {path.name for path in (tmp_path / "fixed").iterdir()} >= {"fix.json", "fix.md", "geometry"}


def test_what_cannot_be_judged_is_refused_in_one_line(encoder, advice):
    text = lines_of(neighbors(300))
    with pytest.raises(UsageError, match=r"is already calibrated by Whitening\(.*\)\. Give the encoder without its"):
        bertflow.fix(advice.encoder, text)
    with pytest.raises(UnknownNameError, match=r"Unknown purpose 'poetry'\. Known: similarity, search\."):
        bertflow.fix(encoder, text, purpose="poetry")
    with pytest.raises(UsageError, match=r"An encoder and a text are needed"):
        bertflow.fix(encoder)


PROMPTS = {"query": "big red ", "passage": "small ", "other": "dog "}


@pytest.mark.parametrize(
    ("prompts", "default", "given"),
    [
        ({"other": "dog "}, "other", None),
        ({"other": "dog "}, "other", ""),
        ({"other": "dog "}, None, "other"),
        (PROMPTS, None, None),
        ({}, None, "in "),
    ],
    ids=["the folder's default", "switched off", "by its name", "of both roles", "as text"],
)
def test_the_prompt_is_that_of_every_other_command(tiny_bert, tmp_path, prompts, default, given):
    folder = tmp_path / "model"
    shutil.copytree(tiny_bert, folder)
    config = {"prompts": prompts, "default_prompt_name": default}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(config))
    (folder / "modules.json").write_text(
        json.dumps([{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}])
    )
    text = lines_of(neighbors(350))
    how = {"candidates": "whitening(8)", "resamples": 100, "device": "cpu"}
    advice = bertflow.fix(str(folder), text, prompt=given, **how)
    expected = bertflow.load(folder, prompt=given, device="cpu")
    assert advice.encoder.raw.identity == expected.identity
    sentences = [a for a, _ in neighbors(10, seed=3)]
    raw = advice.candidates.systems["raw"]
    np.testing.assert_allclose(raw.encode(sentences), expected.encode(sentences), atol=1e-6)
    np.testing.assert_allclose(raw.encode_query(sentences), expected.encode_query(sentences), atol=1e-6)

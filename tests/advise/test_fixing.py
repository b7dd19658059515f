"""``bertflow.fix`` and ``bertflow fix``: encoders or vectors and text in, advice out."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

import bertflow
from bertflow.advise import candidates as fix_candidates
from bertflow.advise.evidence import LABELED, load_evidence
from bertflow.advise.reading import read_documents
from bertflow.advise.rules import LIKELY
from bertflow.advise.split import split_text
from bertflow.breadth import RICH
from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.spelling import load_calibrator
from bertflow.cli import main
from bertflow.data.corpus import load_sentences
from bertflow.data.docstrings import docstring_corpus
from bertflow.data.docstrings import sentences as complete_sentences
from bertflow.data.sts import load_sts
from bertflow.encoder.cutting import measure_cut
from bertflow.encoder.transformer import StaticEncoder, TransformerEncoder
from bertflow.errors import DataError
from bertflow.evaluation.bm25 import BM25, bm25_values
from bertflow.evaluation.evaluating import evaluate_retrieval, score_sets
from bertflow.export.targets import write_export
from bertflow.scoring.scores import ScoreCalibrator
from bertflow.similarity import SIMILARITIES
from bertflow.tables import number
from bertflow.text_keys import text_key

from ..texts import COLORED as WORDS
from ..texts import neighbors

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning:pytorch_lightning")


def lines_of(pairs):
    """The pairs as a text: a blank line after each."""
    return [line for pair in pairs for line in (*pair, "")]


def write_blocks(path, pairs):
    path.write_text("\n\n".join("\n".join(pair) for pair in pairs) + "\n")
    return path


@pytest.fixture(scope="module")
def toy(tiny_bert, tmp_path_factory):
    """One run on a random BERT, whose cosines are all near 1, and text in pairs of lines."""
    folder = tmp_path_factory.mktemp("fix")
    text = write_blocks(folder / "text.txt", neighbors(600))
    argv = [tiny_bert, text, "--output", folder / "out", "--candidates", "whitening,whitening(8)", "--device", "cpu"]
    assert main(["fix", *map(str, argv), "--resamples", "200"]) == 0
    return folder


@pytest.fixture(scope="module")
def advice(encoder):
    return bertflow.fix(encoder, lines_of(neighbors(600)), candidates="whitening,whitening(8)", resamples=200)


def test_an_encoder_and_sentences_are_enough(advice, encoder):
    assert (advice.verdict, advice.system) == ("whiten", "whitening")
    assert advice.reasons[0].startswith("Random pairs have cosine ")
    assert advice.geometry["reference_raw"].median > 0.8 > 0.1 > abs(advice.geometry["reference_advised"].median)
    (mined,) = advice.evidence
    assert mined.chosen == "whitening"
    assert mined.gain.ci_low > 0
    assert (advice.folder, advice.choices) == (None, ())


def test_the_encoder_of_the_advice_is_the_one_that_was_judged(advice, encoder):
    sentences = [a for a, _ in neighbors(20, seed=5)]
    judged = advice.systems["whitening"].encode(sentences)
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


def test_the_command_and_the_function_agree(advice, toy):
    record, held = said(toy), json.loads(advice.to_json())
    assert record["geometry"] == held["geometry"]
    assert record["reasons"] == held["reasons"]


def test_an_evaluation_says_that_a_folder_was_chosen_by_the_file_that_it_scores(encoder, tmp_path, caplog):
    for name, seed in (("labels", 2), ("others", 3)):
        rows = ["query\ttext", *(f"{a}\t{b}" for a, b in neighbors(150, seed=seed))]
        (tmp_path / f"{name}.tsv").write_text("\n".join(rows) + "\n")
    given = (encoder, lines_of(neighbors(600)), tmp_path / "labels.tsv")
    advice = bertflow.fix(*given, candidates="whitening", resamples=100)
    assert advice.system == "whitening"
    folder = advice.save(tmp_path / "fixed") / "encoder"
    for table in ("others", "labels"):
        bertflow.evaluate(str(folder), retrieval=tmp_path / f"{table}.tsv", resamples=0, device="cpu")
    told = f"{folder} was chosen by {tmp_path / 'labels.tsv'}, so its figures on this file are optimistic."
    assert [one for one in caplog.messages if "optimistic" in one] == [told]


def test_for_search_mined_pairs_decide_before_graded_labels(encoder, tmp_path):
    rows = [f"{a}\t{b}\t{k % 5}" for k, (a, b) in enumerate(neighbors(150, seed=2))]
    (tmp_path / "labels.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *rows]) + "\n")
    given = (encoder, lines_of(neighbors(600)), tmp_path / "labels.tsv")
    advice = bertflow.fix(*given, purpose="search", candidates="whitening", resamples=100)
    assert [one.evidence.kind.title for one in advice.evidence] == ["mined pairs", "graded labels"]
    assert advice.verdict == "whiten"
    assert not any("Mined pairs measure search" in reason for reason in advice.reasons)
    ranked, graded = (one.section().table for one in advice.evidence)
    assert [line[0] for line in ranked.lines] == ["raw", "whitening", BM25]
    assert ranked.lines[-1][1:3] == tuple(map(number, bm25_values(advice.evidence[0].evidence.judging).values()))
    assert [line[0] for line in graded.lines] == ["raw", "whitening"]
    undecided = replace(advice, evidence=advice.evidence[1:], standing=LIKELY, folder=tmp_path)
    assert "prove     with --labels FILE, more pairs (the 150 given are no proof)" in [*undecided.answer()]


def test_an_encoder_without_tokens_is_judged_with_its_own_pooling(tiny_bert, tmp_path):
    static = StaticEncoder(tiny_bert)
    advice = bertflow.fix(static, lines_of(neighbors(400)), candidates="whitening(8),sif+whitening(8)", resamples=100)
    assert advice.not_tried == {"sif+whitening(8)": "its pooling needs the tokens"}
    assert advice.encoder.raw is static
    advice.save(tmp_path / "fixed")
    assert {path.name for path in (tmp_path / "fixed").iterdir()} >= {"fix.json", "fix.md", "geometry"}


# Text and its structure


def documents(tmp_path, text, name="t.txt", **options):
    (tmp_path / name).write_text(text)
    return read_documents(str(tmp_path / name), **options)


def test_lines_between_blank_lines_make_pairs_of_neighbors(tmp_path):
    found = documents(
        tmp_path, "How to cook rice\nWash the rice first.\nThen boil the rice.\nEat it while hot.\n\nAlone.\n"
    )
    assert found[0].pairs == (
        ("How to cook rice", "Wash the rice first."),
        ("Then boil the rice.", "Eat it while hot."),
    )
    assert found[1].pairs == ()


def test_a_paragraph_makes_a_pair_of_its_first_sentence_and_the_rest(tmp_path):
    found = documents(tmp_path, "The dog runs home today. It is very hungry now. So it eats a lot.\n")
    assert found[0].pairs == (("The dog runs home today.", "It is very hungry now. So it eats a lot."),)
    assert len(found[0].sentences) == 3


def test_words_of_a_script_without_spaces_are_counted(tmp_path):
    found = documents(tmp_path, "怎样煮一锅米饭\n先把大米洗干净再说。\n\n米饭\n煮好了。\n")
    assert [one.pairs for one in found] == [(("怎样煮一锅米饭", "先把大米洗干净再说。"),), ()]


SHOP = "sku,title,description,Langtext\n1,A small red kettle,It boils water in two minutes.,Ein kleiner Kessel\n"


@pytest.mark.parametrize(
    ("columns", "sentences", "pairs"),
    [
        (None, 2, [("A small red kettle", "It boils water in two minutes.")]),
        ("Langtext", 1, []),
        ("description,title", 2, [("It boils water in two minutes.", "A small red kettle")]),
        ("sku,title,Langtext", 3, []),
    ],
)
def test_columns_of_a_table_are_found_or_named(tmp_path, columns, sentences, pairs):
    found = documents(tmp_path, SHOP, "shop.csv", columns=columns)
    assert sum(len(one.sentences) for one in found) == sentences
    assert [pair for one in found for pair in one.pairs] == pairs


def test_a_line_that_is_not_text_is_left_out_where_that_is_asked_for(tmp_path):
    path = tmp_path / "t.txt"
    path.write_bytes(b"The dog runs.\n\xff\xfe\nThe cat sleeps.\n")
    with bertflow.skip_bad(tmp_path / "bad.tsv") as skipped:
        found = read_documents(str(path))
    assert [one.sentences for one in found] == [("The dog runs.",), ("The cat sleeps.",)]
    assert len(skipped) == 1
    with pytest.raises(DataError, match="line 2: byte 1 is 0xff"), bertflow.skip_bad(tmp_path / "bad.tsv"):
        read_documents(str(path), whole_lines=True)


def test_a_list_of_sentences_makes_no_pairs(tmp_path):
    found = documents(tmp_path, "The dog runs home today.\nA cat is in the house.\n")
    assert [(one.sentences, one.pairs) for one in found] == [
        (("The dog runs home today.",), ()),
        (("A cat is in the house.",), ()),
    ]


def test_a_table_of_answers_makes_pairs(tmp_path):
    found = documents(tmp_path, "id,question,answer\n1,how to run,with both legs\n", name="t.csv")
    assert found[0].pairs == (("how to run", "with both legs"),)


def test_lines_of_vectors_stay_whole(tmp_path):
    found = documents(tmp_path, "The dog runs home today. It is very hungry now.\n", whole_lines=True)
    assert found[0].sentences == ("The dog runs home today. It is very hungry now.",)


def test_nothing_that_is_put_aside_is_fitted_on(tmp_path):
    pairs = neighbors(500)
    text = split_text(read_documents(str(write_blocks(tmp_path / "t.txt", pairs))), "t", [pairs[0][0]], 8000, 1000, 0)
    fitted = {text_key(sentence) for sentence in text.fitted}
    judged = {text_key(one) for half in (text.choosing, text.judging) for one in (*half.first, *half.second)}
    assert not fitted & judged
    assert not fitted & {text_key(sentence) for sentence in text.reference}
    assert text_key(pairs[0][0]) not in fitted
    assert not set(text.choosing.first) & set(text.judging.first)


def test_the_reference_is_of_the_same_kinds_as_the_text(tmp_path):
    alone = [f"line {n} stands alone here" for n in range(600)]
    path = tmp_path / "t.txt"
    path.write_text("\n\n".join([*("\n".join(pair) for pair in neighbors(600)), *alone]))
    reference = split_text(read_documents(str(path)), "t", [], 8000, 1000, 0).reference
    assert sum(sentence.endswith("stands alone here") for sentence in reference) == 200
    firsts = {query for query, _ in neighbors(600)}
    assert 0.4 < sum(sentence in firsts for sentence in reference) / 200 < 0.6


def test_sentences_of_several_documents_are_neither_fitted_on_nor_the_reference(tmp_path):
    rows = [(f"title number {n % 40} of the shop", f"the text of row {n} is written here") for n in range(1000)]
    table = "\n".join(["title,text", *(",".join(row) for row in rows)])
    text = split_text(documents(tmp_path, table, "t.csv"), "t", [], 8000, 1000, 0)
    titles = {title for title, _ in rows}
    assert len(text.reference) == text.rows["put aside"] > 250
    assert not titles & {*text.fitted, *text.reference}


def test_too_few_pairs_are_none(tmp_path):
    lines = [f"line {n} of a long list of things" for n in range(400)]
    path = tmp_path / "t.txt"
    path.write_text("\n\n".join([*("\n".join(pair) for pair in neighbors(200)), *lines]))
    text = split_text(read_documents(str(path)), "t", [], 8000, 1000, 0)
    assert (text.choosing, text.judging, text.mined) == (None, None, 200)


@pytest.mark.parametrize("between", ["\n", " "], ids=["lines", "paragraphs"])
def test_of_few_documents_thresholds_have_several_sentences_of_each(between):
    contracts = [[f"Clause {n} of contract {k} is about the matter {7 * n + k}." for n in range(60)] for k in range(12)]
    text = split_text(read_documents("\n\n".join(map(between.join, contracts)).split("\n")), "t", [], 8000, 1000, 0)
    of = Counter(sentence.split()[4] for sentence in text.reference)
    assert text.judged == "sentences"
    assert dict.fromkeys(of, 60) == of
    assert len(of) == 4
    assert not {*text.reference} & {*text.fitted}


def test_too_little_text_for_thresholds_is_refused_before_anything_is_embedded():
    lines = [f"line {n} of a long list of things" for n in range(400)]
    with pytest.raises(DataError, match=r"Thresholds need at least 50 different sentences .*, got 2"):
        split_text(read_documents(lines), "t", [], 8000, 1, 0)


# Labels


@pytest.mark.parametrize(
    ("header", "cell", "title"),
    [
        ("sentence1\tsentence2\tscore", "{k}", "graded labels"),
        ("sentence_A\tsentence_B\trelatedness_score", "{k}", "graded labels"),  # as SICK calls them
        ("a\tb\tlabel", "{odd}", "binary labels"),
        ("query\ttext", None, "retrieval labels"),
    ],
)
def test_the_columns_say_what_kind_of_labels_they_are(header, cell, title, tmp_path):
    rows = [
        (a, b) if cell is None else (a, b, cell.format(k=k % 6, odd=k % 2)) for k, (a, b) in enumerate(neighbors(150))
    ]
    (tmp_path / "labels.tsv").write_text("\n".join([header, *("\t".join(row) for row in rows)]) + "\n")
    evidence = load_evidence(str(tmp_path / "labels.tsv"), seed=0)
    assert evidence.kind.title == title
    assert abs(len(evidence.choosing) - len(evidence.judging)) <= 1
    assert set(evidence.sentences) <= {text for pair in neighbors(150) for text in pair}


def test_halves_hold_each_pair_once(shared_data, tmp_path):
    evidence = load_evidence(str(tuning(shared_data, tmp_path, 200)), seed=0)
    halves = (evidence.choosing, evidence.judging)
    pairs = [pair for half in halves for pair in zip(half.first, half.second, half.target, strict=True)]
    assert evidence.kind is LABELED["graded"]
    assert len(pairs) == 200


# The verdict


def test_what_is_written_is_what_was_judged(toy, tiny_bert):
    record = said(toy)
    documents = read_documents(str(toy / "text.txt"))
    text = split_text(documents, tiny_bert.name, [], 8000, 1000, 0)
    fixed = CalibratedEncoder.load(toy / "out" / "encoder", device="cpu")
    report = evaluate_retrieval({"raw": fixed.encoder, "whitening": fixed}, text.judging, resamples=0)
    rows = {(row["system"], row["metric"]): row["value"] for row in record["evidence"][0]["report"]["rows"]}
    for name in ("raw", "whitening"):
        assert report.value(name, "mined pairs", metric="mrr") == pytest.approx(rows[name, "mrr"], abs=1e-3)
    assert fixed.calibrator.moments_.n == len(text.fitted) == record["text"]["fitted"]


def test_scores_and_domain_stand_beside_the_encoder(toy, told):
    fixed = CalibratedEncoder.load(toy / "out" / "encoder", device="cpu")
    scores = ScoreCalibrator.load(toy / "out" / "encoder", fixed)
    assert scores.threshold(0.01).low < scores.threshold(0.01).high
    new = toy / "new.txt"
    new.write_text("\n".join(sentence for pair in neighbors(40, seed=9) for sentence in pair))
    assert "no drift to be seen" in told("score", toy / "out" / "encoder", "--domain", new, "--device", "cpu")


def vectors(tmp_path, x, *more):
    np.save(tmp_path / "x.npy", x.astype(np.float32))
    return main(["fix", "--vectors", str(tmp_path / "x.npy"), "--output", str(tmp_path / "out"), *map(str, more)])


def said(tmp_path):
    return json.loads((tmp_path / "out" / "fix.json").read_text())


def test_noise_needs_labels(tmp_path, capsys):
    assert vectors(tmp_path, np.random.default_rng(0).normal(size=(600, 16))) == 0
    assert said(tmp_path)["verdict"] == "you need labels"
    printed = capsys.readouterr().out
    assert "VERDICT: you need labels" in printed
    assert "cannot be proven on this text: no pairs can be made of vectors without their text." in printed
    assert printed.index("time      about") < printed.index("geometry  ") < printed.index("VERDICT")


def test_a_cone_of_vectors_without_text_is_only_rescaled(tmp_path):
    assert vectors(tmp_path, np.random.default_rng(0).normal(size=(600, 16)) + 3) == 0
    assert said(tmp_path)["verdict"] == "rescale the scores"
    scores = ScoreCalibrator.load(tmp_path / "out" / "scores", None)
    assert scores.percentile(0.9) < 60 < scores.percentile(0.99)


def cone_of(pairs):
    """Vectors of both lines of each pair: what they share, hidden under one direction that all have and noise in it."""
    rng = np.random.default_rng(0)
    meaning = np.repeat(rng.normal(size=(len(pairs), 12)), 2, axis=0) + 0.3 * rng.normal(size=(2 * len(pairs), 12))
    return np.hstack([meaning, 30 + 12 * rng.normal(size=(2 * len(pairs), 2))])


def test_vectors_with_their_text_are_judged(tmp_path):
    pairs = [(f"the first of pair {n}", f"and the second of {n}") for n in range(500)]
    text = write_blocks(tmp_path / "t.txt", pairs)
    assert vectors(tmp_path, cone_of(pairs), text, "--candidates", "whitening", "--resamples", 200) == 0
    record = said(tmp_path)
    assert (record["verdict"], record["evidence"][0]["kind"]) == ("whiten", "mined pairs")
    assert load_calibrator(tmp_path / "out" / "calibrator").dim_in == 14


def test_where_nothing_gets_better_nothing_is_changed(tmp_path):
    # Directions of noise that are small until they are whitened.
    rng = np.random.default_rng(0)
    meaning = np.repeat(rng.normal(size=(500, 4)), 2, axis=0) + 0.05 * rng.normal(size=(1000, 4))
    x = np.hstack([meaning, 0.02 * rng.normal(size=(1000, 40))])
    text = write_blocks(tmp_path / "t.txt", [(f"the first of pair {n}", f"and the second of {n}") for n in range(500)])
    assert vectors(tmp_path, x, text, "--candidates", "whitening", "--resamples", 200) == 0
    assert said(tmp_path)["verdict"] == "leave it"
    assert not (tmp_path / "out" / "calibrator").exists()


def test_labels_come_first_and_can_contradict_the_text(tmp_path):
    pairs = [(f"the first of pair {n}", f"and the second of {n}") for n in range(500)]
    text = write_blocks(tmp_path / "t.txt", pairs)
    x, rng = cone_of(pairs), np.random.default_rng(1)
    lines = [line for pair in pairs for line in pair]
    couples = rng.permutation(1000)[:300].reshape(-1, 2)
    # People who judge by the direction that whitening makes small.
    gold = [-abs(x[i, -1] - x[j, -1]) for i, j in couples]
    rows = [f"{lines[i]} \t{lines[j]}\t{score:.3f}" for (i, j), score in zip(couples, gold, strict=True)]
    (tmp_path / "labels.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *rows]) + "\n")
    more = ("--labels", tmp_path / "labels.tsv", "--candidates", "whitening", "--resamples", 200)
    assert vectors(tmp_path, x, text, *more) == 0
    record = said(tmp_path)
    assert [one["kind"] for one in record["evidence"]] == ["graded labels", "mined pairs"]
    assert record["verdict"] == "rescale the scores"
    assert record["evidence"][1]["gain"]["ci_low"] > 0


def test_a_flow_is_chosen_only_if_it_is_better_than_whitening(tmp_path, monkeypatch):
    made = fix_candidates.FlowCalibrator
    monkeypatch.setattr(fix_candidates, "FlowCalibrator", lambda **how: made(**{"trainer": {"max_steps": 4}, **how}))
    pairs = [(f"the first of pair {n}", f"and the second of {n}") for n in range(320)]
    text = write_blocks(tmp_path / "t.txt", pairs)
    assert vectors(tmp_path, cone_of(pairs), text, "--candidates", "whitening,flow,flow(6)", "--resamples", 200) == 0
    systems = {row["system"] for row in said(tmp_path)["evidence"][0]["report"]["rows"]}
    assert systems == {"raw", "whitening", "flow", "flow(6)"}
    assert said(tmp_path)["verdict"] == "whiten"


# Plain lines, which make no pairs


def plain_lines(n):
    return [" ".join(map(str, np.random.default_rng(k).choice(WORDS, 7))) for k in range(n)]


@pytest.fixture(scope="module")
def plain(encoder, tmp_path_factory):
    said = []
    advice = bertflow.fix(encoder, plain_lines(300), resamples=100, say=said.append)
    return advice.saved(tmp_path_factory.mktemp("plain") / "fixed"), said


def test_plain_lines_and_a_raw_encoder_give_what_is_likely(plain, encoder):
    advice, said = plain
    assert (advice.verdict, advice.system, advice.standing) == ("whiten", "faint-sif+ridge(1)", LIKELY)
    assert advice.geometry["reference_advised"].median == pytest.approx(0, abs=0.1)
    opened = bertflow.load(str(advice.folder / "encoder"), device="cpu")
    lines = plain_lines(5)
    np.testing.assert_allclose(opened.encode(lines), advice.encoder.encode(lines), atol=1e-5)
    assert (advice.folder / "sentence-transformers").is_dir()
    assert said[2].startswith("evidence  the text has no structure that gives pairs")


def test_what_to_do_is_printed_first(plain):
    advice, _ = plain
    lines = [part for part in advice.parts() if isinstance(part, str)]
    assert lines[0] == "VERDICT: whiten (faint-sif+ridge(1))"
    assert lines[1] == f"EVIDENCE: {LIKELY}"
    labels = ["effect", "1.", "2.", "3.", "threshold", "purpose", "files", "prove"]
    assert [line.split()[0] for line in advice.answer() if line][2:] == labels
    assert lines[: len(labels)] == [*advice.answer()][: len(labels)]
    assert "--labels FILE" in "".join(lines)
    assert json.loads(advice.to_json())["standing"] == LIKELY


def test_without_a_named_pooling_the_layers_are_open(tiny_bert):
    opened = bertflow.fix(str(tiny_bert), plain_lines(300), resamples=100, device="cpu")
    assert (opened.system, opened.encoder.raw.describe()["pooling"]) == ("faint-sif(1,-1)+ridge(1)", "faint-sif(1,-1)")
    effect = "effect    layer 1 and the last layer are averaged; very common words weigh a little less; directions of "
    assert f"{effect}small variance count more" in [*opened.answer()]
    named = bertflow.fix(str(tiny_bert), plain_lines(300), resamples=100, device="cpu", pooling="mean")
    assert named.system == "faint-sif+ridge(1)"


def test_one_candidate_that_was_named_is_what_is_likely(encoder):
    assert bertflow.fix(encoder, plain_lines(300), candidates="abtt(2),center", resamples=100).system == "abtt(2)"


def test_a_sentence_transformers_folder_with_its_own_pooling_is_left_alone(encoder, tmp_path):
    write_export(encoder, tmp_path / "exported", "sentence-transformers")
    SentenceTransformer(str(tmp_path / "exported"), device="cpu").save(str(tmp_path / "st"))  # without our own records
    kept = bertflow.fix(str(tmp_path / "st"), plain_lines(300), resamples=100, device="cpu")
    assert (kept.system, kept.standing) == ("raw", "")
    assert "the pooling that it was made for" in " ".join(kept.reasons)
    other = bertflow.fix(str(tmp_path / "st"), plain_lines(300), resamples=100, device="cpu", pooling="mean(2)")
    assert other.standing == LIKELY


def test_repeated_lines_change_nothing(plain, encoder):
    advice = bertflow.fix(encoder, plain_lines(300) * 3, resamples=100)
    assert (advice.system, len(advice.text.fitted)) == (plain[0].system, len(plain[0].text.fitted))


# Sentences that are cut


def test_how_many_sentences_are_cut_and_what_it_does(tiny_bert):
    lines = plain_lines(30) + [" ".join(["the big dog runs"] * 4) + " in " + line for line in plain_lines(10)]
    encoder = bertflow.load(str(tiny_bert), max_length=12, device="cpu")
    cut = measure_cut(encoder, lines)
    assert (cut.n, cut.cut, cut.max_length, cut.longer) == (40, 10, 12, 26)
    longer = bertflow.load(str(tiny_bert), max_length=26, device="cpu")
    cosines = SIMILARITIES["cosine"].paired(encoder.encode(lines[30:]), longer.encode(lines[30:]))
    assert cut.cosine == pytest.approx(np.median(cosines), abs=1e-6)
    assert str(cut).startswith("25 % of the sentences (10 of 40) are longer than max_length (12 tokens) and are cut")


def test_nothing_is_cut_or_the_model_reads_no_more(tiny_bert):
    assert (
        str(measure_cut(bertflow.load(str(tiny_bert), device="cpu"), plain_lines(5)))
        == "no text is truncated (limit: 64 tokens)"
    )
    long = measure_cut(bertflow.load(str(tiny_bert), device="cpu"), [" ".join(["the dog"] * 60)])
    assert (long.cut, long.longer, long.cosine) == (1, None, None)
    assert "--chunks tokens:64" in str(long)
    assert measure_cut(StaticEncoder(tiny_bert), plain_lines(5)) is None


# What is refused


def test_too_few_sentences_are_refused_in_one_line(tiny_bert, tmp_path, capsys):
    (tmp_path / "few.txt").write_text("the dog runs\nthe cat sleeps\na bird sings\n")
    assert main(["fix", str(tiny_bert), str(tmp_path / "few.txt"), "--output", str(tmp_path / "out")]) == 3
    assert capsys.readouterr().err == (
        "error: A verdict needs at least 200 different sentences, to fit on some and to judge on others, got 3. Give "
        "more text of the kind that you will embed; long texts may be split, as into paragraphs.\n"
    )
    assert not (tmp_path / "out").exists()


def test_text_of_another_length_than_the_vectors_is_refused(tmp_path, capsys):
    (tmp_path / "t.txt").write_text("one line\n")
    assert vectors(tmp_path, np.ones((3, 4)), tmp_path / "t.txt") == 3
    assert "holds 3 vectors, but the text has 1 lines that are not empty." in capsys.readouterr().err


# Real encoders and text


def tuning(shared_data, tmp_path, n):
    """Some of the pairs that choices may be made on, as a file of labels."""
    pairs = load_sts("tuning", shared_data / "sts")
    rows = np.random.default_rng(0).permutation(len(pairs))[:n]
    lines = [f"{pairs.first[row]}\t{pairs.second[row]}\t{pairs.target[row]}" for row in rows]
    (tmp_path / "labels.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *lines]) + "\n")
    return tmp_path / "labels.tsv"


@pytest.mark.slow
def test_on_a_raw_encoder_it_says_whiten_or_flow_and_hits_rise_on_new_pairs(minilm, tmp_path):
    sentences, pairs = docstring_corpus(n_pairs=1000, n_sentences=900)
    fresh = pairs.taken(range(700, len(pairs)))
    blocks = list(zip(pairs.first[:700], pairs.second[:700], strict=True)) + [(one,) for one in sentences]
    text = write_blocks(tmp_path / "text.txt", blocks)
    argv = [minilm, text, "--pooling", "mean(1,2)", "--output", tmp_path / "out", "--device", "cpu"]
    assert main(["fix", *map(str, argv), "--candidates", "whitening,sif+whitening,flow"]) == 0
    assert said(tmp_path)["verdict"] in ("whiten", "use the flow")
    fixed = CalibratedEncoder.load(tmp_path / "out" / "encoder", device="cpu")
    raw = TransformerEncoder(minilm, pooling="mean(1,2)", device="cpu")
    report = evaluate_retrieval({"raw": raw, "fixed": fixed}, fresh, resamples=0)
    hits = {name: report.value(name, "docstrings", metric="hit@1") for name in ("raw", "fixed")}
    assert hits["fixed"] > hits["raw"] + 0.1


@pytest.mark.slow
def test_a_tuned_encoder_is_left_as_it_is(minilm, shared_data, tmp_path):
    sentences, _ = docstring_corpus(n_pairs=1, n_sentences=1250)
    (tmp_path / "text.txt").write_text("\n".join(sentences))
    argv = [minilm, tmp_path / "text.txt", "--labels", tuning(shared_data, tmp_path, 600), "--output", tmp_path / "out"]
    assert main(["fix", *map(str, argv), "--candidates", "whitening,whitening(128)", "--device", "cpu"]) == 0
    assert said(tmp_path)["verdict"] in ("leave it", "rescale the scores")
    assert TransformerEncoder(tmp_path / "out" / "encoder", device="cpu").describe()["pooling"] == "mean"


@pytest.mark.slow
def test_a_plain_bert_and_plain_lines_give_a_better_encoder(shared_data, tmp_path):
    folder = shared_data / "text"
    kinds = {"commonvoice_en_sentences.txt.gz": None, "wikisplit_tune.tsv.gz": ["1"], "books_paragraphs.txt.gz": None}
    sources = [load_sentences(folder / name, columns) for name, columns in kinds.items()]
    drawn = [source[row] for source in sources for row in np.random.default_rng(0).permutation(len(source))[:1400]]
    lines = [next(iter(complete_sentences(line)), line) for line in drawn]
    shuffled = [lines[row] for row in np.random.default_rng(1).permutation(len(lines))[:4000]]
    path = shared_data / "encoders" / "mlm-4x256"
    advice = bertflow.fix(str(path), shuffled, device="cpu", output=tmp_path / "fixed")
    assert (advice.verdict, advice.standing) == ("whiten", LIKELY)
    fixed = bertflow.load(str(tmp_path / "fixed" / "encoder"), device="cpu")
    systems = {"raw": TransformerEncoder(path, device="cpu"), "fixed": fixed}
    report = score_sets(systems, [load_sts("tuning", shared_data / "sts").sample(2500, seed=0)], resamples=0)
    raw, after = (report.value(name, "tuning", "mean") for name in systems)
    assert after - raw >= 0.08


def test_flow_auto_is_the_preset_of_the_purpose(encoder, monkeypatch):
    made = fix_candidates.FlowCalibrator
    monkeypatch.setattr(fix_candidates, "FlowCalibrator", lambda **how: made(**{"trainer": {"max_steps": 2}, **how}))
    how = {"candidates": "sif+flow(auto)", "purpose": "search", "resamples": 100}
    (flow,) = (one for name, one in bertflow.fix(encoder, plain_lines(400), **how).systems.items() if name != "raw")
    assert flow.calibrator.recorded()["preset"] == "search-2"
    assert flow.describe()["pooling"].startswith("sif")


def catalogue(n, seed=0):
    """Texts of one narrow kind: a thing, two of its features, and a number."""
    rng = np.random.default_rng(seed)
    things = {
        "kettle": ["steel", "fast", "quiet"],
        "lamp": ["bright", "small", "warm"],
        "tent": ["dry", "light", "tall"],
    }
    rows = dict.fromkeys(range(n))
    for row in rows:
        thing = str(rng.choice(list(things)))
        one, other = rng.permutation(things[thing])[:2]
        rows[row] = f"{thing.capitalize()} {rng.integers(100, 999)}-{row}. {one} and {other}."
    return list(rows.values())


def test_a_text_of_very_few_words_keeps_its_encoder_whatever_is_searched(minilm, monkeypatch):
    monkeypatch.setattr("bertflow.breadth.RICH", RICH)
    advice = bertflow.fix(str(minilm), catalogue(300), pooling="mean(1,2)")
    assert (advice.system, advice.naming) == ("raw", "")
    assert "different words per 5,000" in " ".join(advice.reasons)


def test_a_catalogue_leaves_the_encoder_as_it_is_and_puts_the_change_beside_it(minilm, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("bertflow.breadth.RICH", RICH)
    text = tmp_path / "products.txt"
    text.write_text("\n".join(catalogue(900)), encoding="utf-8")
    named = ["--pooling=mean(1,2)", "--purpose=search", "--candidates=abtt(1)", f"--output={tmp_path / 'fixed'}"]
    main(["fix", str(minilm), str(text), *named])
    advice = json.loads((tmp_path / "fixed" / "fix.json").read_text())
    assert (advice["system"], advice["beside"]) == ("raw", "abtt(1)")
    printed = capsys.readouterr().out
    assert f"vetoed    abtt(1), in {tmp_path / 'fixed' / 'vetoed'}: use" in printed
    assert "prove     with --labels FILE, 100 pairs of a query and its text\n" in printed
    assert "The text is narrow" in printed
    assert bertflow.load(str(tmp_path / "fixed" / "encoder"), device="cpu").calibrator is None
    assert bertflow.load(str(tmp_path / "fixed" / "vetoed"), device="cpu").calibrator is not None

"""What ``bertflow fix`` makes of what a user has: columns of a table, rows that add up, queries without labels."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

import bertflow
from bertflow.breadth import FOREIGN, FOREIGN_ALONE, breadth_of
from bertflow.errors import DataError, UsageError
from bertflow.scoring.drift import Excess
from bertflow.scoring.random_pairs import COPIES
from bertflow.similarity import COSINE, unit_rows

from ..texts import COLORED as WORDS


def sentence(rng, n=5):
    return " ".join(rng.choice(WORDS, n))


def table(path, n=600, alike=True, repeats=0, column="name"):
    """A catalogue: of the columns of text the second holds the words of the first, or others."""
    rng = np.random.default_rng(0)
    names = [sentence(rng) for _ in range(n)]
    rest = [f"{name if alike else sentence(rng)} {sentence(rng, 3)}" for name in names]
    rows = [f"S-{k},{name},{text},{k}.99" for k, (name, text) in enumerate(zip(names, rest, strict=True))]
    path.write_text("\n".join([f"sku,{column},Langtext,price", *rows, *rows[:repeats]]) + "\n")
    return path


def fixed(encoder, text, **options):
    said = []
    options = {"candidates": "whitening(8)", "resamples": 100, **options}
    return bertflow.fix(encoder, text, say=said.append, **options), said


def line(said, word):
    return next((one for one in said if one.split()[0] == word), None)


def test_two_columns_of_text_are_pairs(encoder, tmp_path):
    advice, said = fixed(encoder, table(tmp_path / "shop.csv", repeats=30))
    assert [one.evidence.kind.title for one in advice.evidence] == ["mined pairs"]
    assert advice.text.mined == 599  # of 600 rows, one repeats a text
    assert line(said, "text").endswith(" texts of both columns for thresholds")
    assert any(one.endswith(" random pairs of texts of both columns passes") for one in advice.answer())
    judging = advice.text.judging
    first, second = (advice.encoder.encode([*side]) for side in (judging.first, judging.second))
    told = (
        r"threshold of name with Langtext: cosine >= ([\d.-]+); 1 of (1,000|100) .* (\d+) of (\d+) pairs of one row.*"
    )
    at = re.fullmatch(told, advice.between)
    assert advice.between in advice.answer()
    assert int(at[4]) == len(judging)
    assert int(at[3]) == pytest.approx((COSINE.paired(first, second) >= float(at[1])).sum(), abs=3)
    assert advice.between.endswith(" belong together") == (int(at[3]) < len(judging) / 10)
    wrong = COSINE.paired(first, np.roll(second, 7, 0))
    assert (wrong >= float(at[1])).mean() <= 0.05
    assert (
        line(said, "columns") == "columns   using columns name, Langtext as pairs (unused: sku, price; see --columns)"
    )
    assert f"* **columns** {line(said, 'columns')[10:]}\n" in advice.to_markdown()


def test_two_columns_whose_rows_do_not_match_are_no_pairs(encoder, tmp_path):
    advice, said = fixed(encoder, table(tmp_path / "shop.csv", alike=False))
    assert not advice.evidence
    assert advice.text.mined == 0
    assert line(said, "columns").startswith(
        "columns   using column Langtext (unused: sku, name, price; see --columns); name and Langtext are not used as "
        "pairs: their rows are not more alike than shuffled ones (p = 0."
    )


@pytest.mark.parametrize(
    ("cell", "why"),
    [
        ("Acme", ""),
        ("S-{k}", ""),
        ("a red dog", "; no pairs: 100 % of the values of made are repeats"),
        ("red mug{k}", "; no pairs: made has a median of 2 words, and pairs need 3"),
        ("12:{k} 24 12 2026", ""),
    ],
    ids=["brand", "sku", "category", "name", "date"],
)
def test_a_column_of_short_or_repeated_cells_is_no_half_of_pairs(encoder, cell, why, tmp_path):
    rng = np.random.default_rng(0)
    rows = [f"{cell.format(k=k)},{sentence(rng)} {sentence(rng)}" for k in range(600)]
    (tmp_path / "shop.csv").write_text("\n".join(["made,Langtext", *rows]) + "\n")
    advice, said = fixed(encoder, tmp_path / "shop.csv")
    assert advice.text.mined == 0
    assert line(said, "columns") == f"columns   using column Langtext (unused: made; see --columns){why}"


def test_a_column_of_a_known_name_has_its_partner(encoder, tmp_path):
    _, said = fixed(encoder, table(tmp_path / "shop.csv", column="text"))
    assert (
        line(said, "columns") == "columns   using columns text, Langtext as pairs (unused: sku, price; see --columns)"
    )


def test_a_table_without_text_is_refused(encoder, tmp_path):
    (tmp_path / "t.csv").write_text("sku,price\n" + "".join(f"S-{k},{k}\n" for k in range(300)))
    with pytest.raises(DataError, match=r"should have the columns query .* but has sku, price. Rename the columns"):
        fixed(encoder, tmp_path / "t.csv")


def test_the_rows_of_a_table_add_up(encoder, tmp_path):
    rows = plain(600)
    given = [*rows, *rows[:50], "", "  "]
    (tmp_path / "t.csv").write_text("\n".join(["text,price", *(f'"{one}",1' for one in given)]) + "\n")
    advice, said = fixed(encoder, tmp_path / "t.csv", max_sentences=300)
    assert line(said, "rows") == (
        "rows      652 rows = 300 used + 200 put aside + 50 seen before + 100 above max_sentences + 2 empty"
    )
    counted = json.loads(advice.to_json())["text"]["rows"]
    assert counted.pop("all") == sum(counted.values()) == 652


def test_the_lines_of_plain_text_add_up(encoder, tmp_path):
    rng = np.random.default_rng(1)
    blocks = [[f"{sentence(rng)} {k}", f"{sentence(rng)} {k} b"] for k in range(400)]
    lines = [one for block in [*blocks, *blocks[:20], ["The dog 7 runs. The cat 9 sleeps."]] for one in (*block, "")]
    (tmp_path / "t.txt").write_text("\n".join(lines) + "\n")
    advice, said = fixed(encoder, tmp_path / "t.txt")
    whole = len((tmp_path / "t.txt").read_text().splitlines())
    rows = advice.text.rows
    assert sum(rows.values()) == whole == 1262
    assert (rows["seen before"], rows["empty"]) == (40, 421)
    assert rows["used"] == len(advice.text.fitted) - ("The dog 7 runs." in advice.text.fitted)
    two = "The dog 7 runs." in advice.text.fitted
    assert line(said, "rows") == (
        f"rows      1,262 lines = {rows['used']} used + {rows['put aside']} put aside + 40 seen before + 421 empty"
        f"{f'; fitted on {len(advice.text.fitted)} distinct sentences of the used ones' * two}"
    )


def test_lines_that_are_labeled_are_counted(encoder, tmp_path):
    lines = plain(600)
    cells = [f"{one}\t{other}\t{k % 5}" for k, (one, other) in enumerate(zip(lines[:100], lines[100:], strict=False))]
    (tmp_path / "labels.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *cells]) + "\n")
    advice, _ = fixed(encoder, lines, labels=tmp_path / "labels.tsv")
    rows = advice.text.rows
    assert rows["used"] == len(advice.text.fitted)
    assert rows["in the labels"] + rows["used"] == 400
    assert 0 < rows["in the labels"] <= 200


def plain(n, seed=3):
    rng = np.random.default_rng(seed)
    return list(dict.fromkeys(f"{sentence(rng, 7)}" for _ in range(n)))


def test_queries_are_shown_before_and_after(encoder, tmp_path):
    queries = plain(60, 4)
    advice, _ = fixed(encoder, plain(900), queries=[*queries, *queries])
    found, texts = advice.queries, list(dict.fromkeys([*advice.text.fitted, *advice.text.reference]))
    assert advice.system != "raw"
    assert (found.comparison.first, found.comparison.second) == ("raw", advice.system)
    same = bertflow.compare(encoder, advice.encoder, queries, texts)
    assert found.comparison.shown == same.shown
    assert (found.comparison.shared, found.comparison.changed) == (same.shared, same.changed)
    percentiles = advice.domain.percentile(advice.domain.log_likelihood(advice.encoder.raw.encode(queries)))
    assert found.percentile == pytest.approx(np.median(percentiles))
    assert found.outside.share == pytest.approx((percentiles <= 1).mean())
    assert 1 < found.reached <= found.clusters == 20
    assert f"They reach {found.reached} of 20 clusters of the text." in advice.to_markdown()
    shown = [*advice.answer()]
    assert (
        f"queries   {100 * found.outside.share:.0f} % of the 60 queries are out of domain (1 % of ordinary text is)."
        in shown
    )
    assert sum(line.endswith(" query-text pairs passes") for line in shown) == 1
    assert json.loads(advice.to_json())["queries"]["comparison"]["queries"] == 60
    strange = [next(replace(found, outside=Excess(out, 60)).lines()) for out in (0, 30)]
    assert strange[0] == "0 % of the 60 queries are out of domain (1 % of ordinary text is)."
    assert strange[1].endswith(" (1 % of ordinary text is): add such text, and call `bertflow fix` again.")


def test_a_threshold_that_queries_of_the_text_reach_is_not_printed(encoder):
    lines = plain(900)
    advice, _ = fixed(encoder, lines, queries=lines)
    (line,) = (line for line in advice.answer() if line.startswith("threshold"))
    assert line == f"threshold none: {COPIES.format(1000)}"


@pytest.mark.parametrize(("value", "said"), [(0.4123, "0.41"), (0.97258, "0.9726"), (0.998647, "0.998647")])
def test_a_threshold_near_1_has_more_digits(encoder, value, said, monkeypatch):
    advice, _ = fixed(encoder, plain(900))
    found = replace(advice.scores.strict_threshold(), value=value)
    monkeypatch.setattr(type(advice.scores), "strict_threshold", lambda self: found)
    (line,) = (line for line in advice.answer() if line.startswith("threshold"))
    assert line == f"threshold cosine >= {said} is a match; 1 of 1,000 random pairs passes"


def test_queries_choose_nothing(encoder):
    with_queries, without = (fixed(encoder, plain(900), **one)[0] for one in ({"queries": plain(60, 4)}, {}))
    assert with_queries.system == without.system
    assert with_queries.reasons == without.reasons


def test_where_nothing_is_changed_the_best_that_was_not_used_stands_beside(encoder, tmp_path):
    """Labels that are raw's own cosines: nothing is better."""
    text = plain(900)
    x = encoder.encode(text[:400])
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    scores = np.einsum("nd,nd->n", x[:200], x[200:])
    rows = [f"{a}\t{b}\t{s:.9f}" for a, b, s in zip(text[:200], text[200:400], scores, strict=True)]
    (tmp_path / "labels.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *rows]) + "\n")
    advice, _ = fixed(encoder, text, labels=tmp_path / "labels.tsv", queries=plain(60, 4))
    assert advice.system == "raw"
    assert advice.queries.comparison.second == "whitening(8), not used"


def test_the_command_reads_queries_and_shows_them(tiny_bert, tmp_path, told):
    (tmp_path / "text.txt").write_text("\n".join(plain(900)))
    (tmp_path / "queries.txt").write_text("\n".join(plain(60, 4)))
    argv = ["fix", tiny_bert, tmp_path / "text.txt", "--queries", tmp_path / "queries.txt", "--device", "cpu"]
    argv += ["--candidates", "whitening(8)", "--resamples", "100", "--output", tmp_path / "out", "--details"]
    assert "20 of 60 queries and their nearest of" in told(*argv)
    assert "## 20 of 60 queries and their nearest of" in (tmp_path / "out" / "fix.md").read_text()


def test_queries_that_cannot_be_used_are_refused(encoder, tmp_path, refusal):
    assert refusal(lambda: fixed(encoder, plain(900), queries=plain(19, 4))) == (
        "queries should hold at least 20 different queries, but holds 19. Give more."
    )
    np.save(tmp_path / "x.npy", np.eye(300, 8, dtype=np.float32))
    assert refusal(lambda: bertflow.fix(vectors=tmp_path / "x.npy", queries=plain(60, 4)), error=UsageError) == (
        "--queries needs an encoder, but --vectors has none. Give --query_vectors instead."
    )


@pytest.mark.parametrize(("strange", "share"), [(5, 50), (0, None)])
def test_text_of_unknown_words_is_told(encoder, strange, share):
    rng = np.random.default_rng(0)
    lines = [
        " ".join([*rng.choice(WORDS, 5), *["Straße"] * strange, *rng.choice(WORDS, 3)][: 5 + max(strange, 3)])
        for _ in range(600)
    ]
    advice, said = fixed(encoder, lines)
    expected = share and (
        f"unknown   {share} % of the tokens of the text are [UNK]: the encoder does not know these words, so it cannot "
        "tell them apart. Take an encoder whose tokenizer knows the language of the text."
    )
    assert line(said, "unknown") == expected
    assert (expected[10:] if expected else "VERDICT") in advice.to_markdown()
    assert (advice.reasons[0] == (expected or "")[10:]) == bool(strange)


@pytest.mark.parametrize("ending", ["", "sss"])
def test_text_whose_words_are_known_in_pieces_alone_is_told(encoder, ending):
    rng = np.random.default_rng(0)
    advice, said = fixed(encoder, [" ".join(["cat" + ending, *rng.choice(WORDS, 4)]) for _ in range(600)])
    expected = "unknown   1.6 tokens for each word of the text (1.0 to 1.4 in a language that the tokenizer knows)"
    assert (line(said, "unknown") or "").split(":")[0] == (expected if ending else "")
    assert ("may not know the language of the text" in advice.reasons[0]) == bool(ending)


OTHER_QUERIES = {"of the kind": (0, False), "too far without words": (1.5, True), "of another kind": (30, True)}


@pytest.mark.parametrize(("far", "vetoed"), OTHER_QUERIES.values(), ids=OTHER_QUERIES)
def test_vectors_of_queries_are_judged_like_queries(far, vetoed, tmp_path):
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(1200, 32)) * np.r_[np.full(4, 8.0), np.full(28, 0.2)] + 9).astype(np.float32)
    np.save(tmp_path / "texts.npy", x[:1000])
    np.save(tmp_path / "queries.npy", x[1000:] + far * np.float32(np.arange(32) > 20))
    advice = bertflow.fix(vectors=tmp_path / "texts.npy", query_vectors=tmp_path / "queries.npy", resamples=100)
    strange = breadth_of(x[:1000]).strangeness(np.load(tmp_path / "queries.npy"))
    assert {0: strange < 2, 1.5: FOREIGN_ALONE < strange < FOREIGN, 30: strange > FOREIGN}[far]
    assert advice.queries.comparison.queries == 200
    assert (advice.system == "raw") == bool(advice.beside) == vetoed
    assert any(one.startswith("Your queries are ") for one in advice.reasons) == vetoed
    saved = advice.saved(tmp_path / "fixed")
    assert (
        (tmp_path / "fixed" / "vetoed").exists() == any(one.startswith("vetoed ") for one in saved.answer()) == vetoed
    )
    if vetoed:
        kept = bertflow.load_calibrator(tmp_path / "fixed" / "vetoed")
        np.testing.assert_allclose(kept.transform(x[:5]), advice.systems[advice.beside].calibrate(x[:5]), atol=1e-5)


def test_vectors_of_queries_have_the_width_of_the_texts(tmp_path):
    np.save(tmp_path / "texts.npy", np.random.default_rng(0).normal(size=(300, 8)))
    np.save(tmp_path / "queries.npy", np.ones((30, 4)))
    with pytest.raises(DataError, match=r"vectors of size 4, but those of .* have 8"):
        bertflow.fix(vectors=tmp_path / "texts.npy", query_vectors=tmp_path / "queries.npy")


def test_a_candidate_that_keeps_more_directions_than_the_text_spans_is_left_out(tmp_path):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.normal(size=(600, 4)) @ rng.normal(size=(4, 16)) + 3)
    advice = bertflow.fix(vectors=tmp_path / "x.npy", candidates="whitening(8),center")
    assert set(advice.systems) == {"raw", "center"}
    assert advice.not_tried == {"whitening(8)": "the sentences span fewer directions"}


def test_what_naming_a_purpose_would_gain_is_said_where_none_is_named(encoder):
    text = [line for a, b in zip(plain(400, 5), plain(400, 6), strict=False) for line in (a, f"{b} {a}", "")]
    free = {"candidates": None, "resamples": 100}
    by_pairs, named = (bertflow.fix(encoder, text, **free, **one) for one in ({}, {"purpose": "search"}))
    said = r"--purpose search would gain \d+\.\d points on these pairs instead of \d+\.\d"
    assert re.fullmatch(said, by_pairs.naming)
    assert " held-out mined pairs, search quality (MRR x 100) is " in by_pairs.reasons[-1]
    assert f"purpose   {by_pairs.naming}" in [*by_pairs.answer()]
    assert named.naming.startswith("may cost up to 10 points in finding texts of the same kind (P@10)")
    elsewhere = bertflow.fix(encoder, plain(900), **free)
    assert elsewhere.naming.startswith("on other texts, --purpose search was 3 points better in search")


def test_labels_of_search_take_the_place_of_what_naming_a_purpose_gained_elsewhere(encoder, tmp_path, monkeypatch):
    for bound, value in (
        ("breadth.RICH", 10_000),
        ("advise.likely.FAINT", 0),
    ):  # narrow, but not too much
        monkeypatch.setattr(f"bertflow.{bound}", value)
    rows = "".join(f"{text}\t{text}\n" for text in plain(120, 8))  # which the raw encoder ranks without an error
    (tmp_path / "labels.tsv").write_text(f"query\ttext\n{rows}")
    free = {"candidates": None, "resamples": 100}
    assert bertflow.fix(encoder, plain(900), **free).naming.startswith("on other texts")
    judged = bertflow.fix(encoder, plain(900), labels=tmp_path / "labels.tsv", **free)
    assert [one.evidence.kind.title for one in judged.evidence] == ["retrieval labels"]
    assert judged.naming == ""


def test_columns_whose_pairs_are_too_short_say_so(encoder, tmp_path):
    (tmp_path / "shop.csv").write_text(
        "\n".join(["question,answer", *(f"why {n},{one}" for n, one in enumerate(plain(600)))])
    )
    _, said = fixed(encoder, tmp_path / "shop.csv")
    assert (
        "100 pairs without a repeated text are needed in the third of the text that is put aside; the whole has 0."
        in line(said, "evidence")
    )
    assert line(said, "columns").endswith("; 0 of 600 rows have 3 words or more in both")


def test_sentences_of_the_rows_are_counted_beside_them(encoder):
    text = [f"{a.capitalize()}. {b.capitalize()}." for a, b in zip(plain(500, 5), plain(500, 6), strict=False)]
    advice, said = fixed(encoder, text)
    rows = advice.text.rows["used"]
    assert rows < len(advice.text.fitted)
    fitted = f"fitted on {len(advice.text.fitted):,} distinct sentences"
    assert line(said, "rows").endswith(f" seen before; {fitted} of the used ones")


def test_a_threshold_of_lines_of_several_sentences_is_of_whole_lines(encoder):
    text = [f"{a.capitalize()}. {b.capitalize()}." for a, b in zip(plain(900, 5), plain(900, 6), strict=False)]
    advice, said = fixed(encoder, text)
    assert {*advice.text.whole} <= {*text}
    assert not {*advice.text.reference} & {*text}
    assert line(said, "text").endswith(f" {len(advice.text.whole)} whole lines for thresholds")
    (printed,) = (line for line in advice.answer() if line.startswith("threshold"))
    assert printed.endswith(" 1 of 1,000 random pairs of whole lines passes")
    others = [one for one in text if one not in advice.text.whole]
    z = unit_rows(advice.encoder.encode(others))
    cosines = (z @ z.T)[np.triu_indices(len(z), 1)]
    passing = np.mean(cosines >= advice.scores.threshold(0.01).value)
    assert 0.005 < passing < 0.02
    ordinary = advice.domain.percentile(advice.domain.log_likelihood(advice.encoder.raw.encode(others)))
    assert 0.05 < np.mean(ordinary <= 10) < 0.2


def test_what_narrow_text_borrows_is_fitted_to_whole_lines(encoder, monkeypatch):
    monkeypatch.setattr("bertflow.breadth.RICH", 10_000)
    monkeypatch.setattr("bertflow.advise.likely.ENOUGH", {False: 0, True: 0})
    monkeypatch.setattr("bertflow.advise.candidates.reads_docstrings", lambda encoder: True)  # though it has few words
    text = [f"{a.capitalize()}. {b.capitalize()}." for a, b in zip(plain(900, 5), plain(900, 6), strict=False)]
    advice = bertflow.fix(encoder, text, resamples=100)
    assert {*advice.text.lines} <= {*text} - {*advice.text.whole}
    assert not {*advice.text.fitted} & {*text}
    borrowed = advice.systems["soft-sif+background(0.25)+crops"]
    assert borrowed.calibrator.moments_.n == len(advice.text.lines)
    alone = bertflow.fix(encoder, plain(900), resamples=100).text
    assert alone.lines == alone.fitted


def test_where_no_candidate_can_be_fitted_the_first_reason_says_so(encoder, tmp_path):
    advice, _ = fixed(encoder, plain(240), candidates="whitening(99)")
    assert advice.reasons[0] == (
        "Nothing was tried: whitening(99) cannot be fitted (the embeddings have 16 dimensions). Give more text, or "
        "name another candidate."
    )

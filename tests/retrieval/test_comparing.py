"""``bertflow.compare``: what two encoders find for the same queries."""

import json
import warnings

import numpy as np
import pytest

import bertflow
from bertflow.cli import main
from bertflow.data.corpus import load_sentences
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import DataError
from bertflow.retrieval.comparing import compare_systems, load_queries

WORDS = ["man", "dog", "cat", "bird", "house", "garden", "runs", "sleeps", "eats", "big", "small", "red", "green"]


def sentences(n, seed):
    rng = np.random.default_rng(seed)
    return list(dict.fromkeys(" ".join(rng.permutation(WORDS)[:5]) for _ in range(n)))


@pytest.fixture(scope="module")
def encoders(tiny_bert):
    first = bertflow.TransformerEncoder(tiny_bert, device="cpu")
    with warnings.catch_warnings(action="ignore"):
        return first, bertflow.CalibratedEncoder.fit(first, bertflow.Whitening(n_components=8), sentences(300, 1))


def nearest(encoder, queries, texts, k):
    """The slow way."""
    found = []
    for query in queries:
        q = encoder.encode_query(query).astype(np.float64)
        x = encoder.encode(texts).astype(np.float64)
        cosines = [float(row @ q / np.linalg.norm(row) / np.linalg.norm(q)) for row in x]
        found.append([texts[at] for at in sorted(range(len(texts)), key=lambda at: -cosines[at])[:k]])
    return found


def test_both_sides_are_the_nearest_texts(encoders):
    queries, texts = sentences(30, 2), sentences(60, 3)
    found = bertflow.compare(*encoders, queries, texts)
    first, second = (nearest(one, queries, texts, 10) for one in encoders)
    shown = [queries.index(one.query) for one in found.shown]
    assert len({*shown}) == 20
    assert [list(one.first) for one in found.shown] == [first[row][:5] for row in shown]
    assert [list(one.second) for one in found.shown] == [second[row][:5] for row in shown]
    common = [len({*a} & {*b}) / 10 for a, b in zip(first, second, strict=True)]
    assert found.shared == pytest.approx(np.mean(common))
    assert found.changed == sum(a[0] != b[0] for a, b in zip(first, second, strict=True))
    assert found.changed > 0


def test_an_encoder_beside_itself_changes_nothing(encoders):
    found = bertflow.compare(encoders[0], encoders[0], sentences(30, 2), sentences(60, 3))
    assert (found.shared, found.changed) == (1, 0)
    assert found.headline() == (
        "The nearest text is another one for 0 of 30 queries; of their 10 nearest texts both encoders have 100 % in "
        "common."
    )


def test_it_is_said_where_poolings_differ(tiny_bert):
    poolings = ("mean(1)", "cls")
    raw = [TransformerEncoder(tiny_bert, pooling=pooling, device="cpu") for pooling in poolings]
    found = compare_systems([*zip(poolings, raw, strict=True)], sentences(30, 2), sentences(60, 3))
    assert "Poolings differ (mean(1), cls), so a difference may come from the pooling." in found.to_markdown()


def test_the_command_opens_two_encoders_and_a_table(encoders, tiny_bert, tmp_path, capsys):
    encoders[1].save(tmp_path / "other")
    (tmp_path / "log.csv").write_text("query,clicks\n" + "".join(f"{one},1\n" for one in sentences(30, 2)))
    rows = "".join(f"{n},{one}\n" for n, one in enumerate(sentences(60, 3)))
    (tmp_path / "shop.csv").write_text(f"sku,Langtext\n{rows}")
    argv = ["compare", tiny_bert, tmp_path / "other", tmp_path / "shop.csv", "--queries", tmp_path / "log.csv"]
    assert main([*map(str, argv), "--device", "cpu", "--output", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert f"next: bertflow inspect {tmp_path / 'other'} --text " in out
    assert f"20 of the queries: --details, or in {tmp_path / 'out'}.\nNo labels were given, so neither is called" in out
    saved = json.loads((tmp_path / "out" / "comparison.json").read_text())
    expected = bertflow.compare(*encoders, sentences(30, 2), sentences(60, 3))
    assert {**saved, "first": expected.first, "second": expected.second} == expected.as_dict()
    assert "## 20 of 30 queries and their nearest of 60 texts" in (tmp_path / "out" / "comparison.md").read_text()


@pytest.mark.parametrize(
    ("queries", "texts", "message"),
    [
        (19, 60, "queries should hold at least 20 different queries, but holds 19. Give more."),
        (30, 9, "At least 10 different texts are needed to search in, got 9. Give more text."),
    ],
)
def test_too_little_is_refused(encoders, queries, texts, message, refusal):
    assert refusal(bertflow.compare, *encoders, sentences(queries, 2), sentences(texts, 3)) == message


@pytest.mark.parametrize("name", ["queries.csv", "queries.tsv"])
def test_a_table_of_one_column_holds_queries_however_short(tmp_path, name):
    queries = [f"drill{number}" for number in range(30)]
    (tmp_path / name).write_text("\n".join(["searched", *queries]))
    assert load_queries(tmp_path / name, 0) == queries == load_sentences(tmp_path / name)
    (tmp_path / name).write_text("searched\n" + "\n".join(map(str, range(30))))
    with pytest.raises(DataError, match="but has searched"):
        load_queries(tmp_path / name, 0)


def test_of_very_many_queries_a_sample_is_used(encoders):
    assert bertflow.compare(*encoders, sentences(2100, 2), sentences(60, 3)).queries == 2000

"""Tables 2 and 3 of the paper in small, on real tasks, apart from the toy tasks of ``test_paper.py``."""

import pytest

import bertflow


@pytest.mark.slow
def test_real_tables_of_a_small_plain_bert(shared_data, tmp_path):
    """One task with sub-sets, two seeds, flows on samples; the raw lines are those of the evaluation."""
    model, data = shared_data / "encoders" / "mlm-4x256", shared_data / "sts"
    options = {"tasks": "sts16", "seeds": 2, "max_sentences": 128, "resamples": 20}
    tables = bertflow.paper_tables(str(model), str(data), tmp_path, str(shared_data / "nli/snli_dev.tsv.gz"), **options)
    assert len(tables.rows) == 4
    for row, pooling in zip(tables.rows, ("mean", "first-last-avg"), strict=False):
        encoder = bertflow.load(model, pooling=pooling, max_length=64)
        report = bertflow.evaluate_sts({"raw": encoder}, ["sts16"], data, resamples=0)
        for score in row.scores:
            assert score.values == pytest.approx([report.value("raw", score.task, "wmean")], abs=1e-4)
    for row in tables.rows[2:]:
        for score in row.scores:
            assert len(set(score.values)) == 2
            assert 0.3 < score.mean < 0.6
            assert score.difference_low < score.difference < score.difference_high
    assert "another encoder" in tables.to_markdown()

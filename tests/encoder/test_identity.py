import numpy as np
import pytest

from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.closed_forms import Center, Whitening
from bertflow.encoder.identity import RULES, Identity, map_digest
from bertflow.errors import DataError

FACTS = {
    "weights": ("a", "b"),
    "blocks": (4, 5),
    "pooling": ("mean", "cls"),
    "layers": ([1], [2]),
    "max_length": (8, 128),
    "prompt": ("", "query: "),
    "query_prompt": ("", "query: "),
    "chunks": ("tokens:126:0:mean", "sentences:1:0:mean"),
    "template": ("{} means [MASK] .", "{} is [MASK] ."),
    "sif_a": (0.001, 0.01),
    "token_counts": ("a", None),
    "dtype": ("float32", "bfloat16"),
    "graph": ("model.onnx", "model_int8.onnx"),
}


def identity(**facts):
    return Identity.from_record({"encoder": "toy", "pooling": "mean"} | facts)


@pytest.mark.parametrize("key", FACTS)
def test_each_fact_is_refused_or_only_said(key, caplog):
    mine, theirs = (identity(**{key: value}) for value in FACTS[key])
    if RULES[key][0]:
        with pytest.raises(DataError, match=key):
            mine.require(theirs, "It was fitted on", "Fit again.")
    mine.require(theirs, "It was fitted on", "Fit again.", force=True)
    assert RULES[key][1] in caplog.text


def test_every_rule_but_the_calibrator_is_tested():
    assert FACTS.keys() == RULES.keys() - {"calibrator"}


def test_what_differs_is_named_on_both_sides_with_the_reason(refusal):
    assert refusal(
        lambda: identity(max_length=8).require(identity(max_length=128), "It was fitted on", "Fit again.")
    ) == (
        "It was fitted on toy with pooling 'mean', max_length 8; this is toy with pooling 'mean', max_length 128 "
        "(long sentences are cut elsewhere). Fit again."
    )


def test_a_fact_that_an_old_record_lacks_is_not_compared():
    assert not identity().differences(identity(max_length=8, dtype="float16", prompt="query: "))
    assert not Identity().differences(identity())


def test_an_encoder_without_chunks_is_another_one_than_one_with_chunks():
    whole, split = identity(), identity(chunks="tokens:6:0:mean")
    for one, other in ((whole, split), (split, whole)):
        (found,) = one.differences(other)
        assert (found.key, found.refused) == ("chunks", True)
        assert {found.mine, found.theirs} == {"none", "tokens:6:0:mean"}


def test_a_fact_of_another_kind_of_encoder_is_refused():
    assert identity(seed=1).differences(identity(seed=2))[0].refused


def test_where_only_one_prompt_was_recorded_it_was_that_of_queries_too():
    mine, theirs = identity(prompt="passage: "), identity(prompt="passage: ", query_prompt="query: ")
    assert [one.key for one in mine.differences(theirs)] == ["query_prompt"]


def test_names_and_labels_decide_nothing():
    one, other = identity(labels=["nli"]), Identity.from_record({"encoder": "other", "pooling": "mean"})
    assert one == other
    assert one.key == other.key


def fitted_pair(tiny):
    encoder = tiny()
    x = np.random.default_rng(0).normal(size=(50, encoder.dim))
    return [CalibratedEncoder(encoder, kind.fit(x)) for kind in (Whitening(3), Center())]


def test_calibrators_differ_by_their_maps(tiny):
    whitened, centered = fitted_pair(tiny)
    assert whitened.identity.raw == centered.identity.raw == whitened.raw.identity
    assert not whitened.identity.differences(Identity.from_record(whitened.identity.as_dict()))
    (found,) = whitened.identity.differences(centered.identity)
    digest = map_digest(whitened.calibrator.map)[:8]
    assert (found.key, found.mine) == ("calibrator", f"Whitening(n_components=3) ({digest})")
    (found,) = whitened.identity.differences(whitened.raw.identity)
    assert (found.key, found.theirs) == ("calibrator", "none")


def test_two_calibrators_in_a_row_are_one_identity(tiny):
    whitened, _ = fitted_pair(tiny)
    second = Center().fit(np.random.default_rng(1).normal(size=(9, 3)))
    twice = CalibratedEncoder(whitened, second).identity
    assert twice.calibrator == "Whitening(n_components=3), Center()"
    assert [one.key for one in twice.differences(whitened.identity)] == ["calibrator"]


def test_a_digest_is_told_by_its_beginning():
    told = Identity("bert", {"pooling": "mean", "weights": "ab12cd34" * 8}).told({"weights": "ab12cd34" * 8})
    assert told == "bert with pooling 'mean', weights 'ab12cd34'"

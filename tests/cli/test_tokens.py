import json

ROCKS = ["I found a rock.", "I only listen to rock."]


def test_tokens_and_parts_of_two_texts_are_printed(minilm, told):
    out = told("tokens", *ROCKS, "--model", minilm, "--details")
    assert "(padding)" in out
    assert "Hidden states: 7 layers x 2 texts x 8 tokens x 384" in out
    assert "Input embedding: word + position + segment, through LayerNorm." in out
    rows = {line.split()[0]: line.split() for line in out.split("Largest difference")[1].splitlines() if line.split()}
    assert rows["[CLS]"] == ["[CLS]", "1:0", "2:0", "equal", "equal", "equal", "equal"]
    assert rows["rock"] == ["rock", "1:4", "2:5", "0.289", "equal", "equal", "equal"]


def test_the_segment_is_the_users(tiny_bert, told):
    record = json.loads(told("tokens", "the dog", "--segment", 1, "--model", tiny_bert, "--json"))
    assert {token["segment"] for token in record["texts"][0]["tokens"]} == {1}


def test_a_vocabulary_needs_no_weights(tiny_bert, tmp_path, told):
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((tiny_bert / name).read_bytes())
    assert "special tokens" in told("tokens", "--vocabulary", "--model", tmp_path)

import json

from bertflow.cli import main

ROCKS = ["I found a rock.", "I only listen to rock."]


def printed(capsys, *argv):
    assert main(["tokens", *map(str, argv)]) == 0
    return capsys.readouterr().out


def test_tokens_and_parts_of_two_texts_are_printed(minilm, capsys):
    out = printed(capsys, *ROCKS, "--model", minilm)
    assert "(padding)" in out
    assert "Hidden states: 7 layers x 2 texts x 8 tokens x 384" in out
    assert "Input embedding: word + position + segment, through LayerNorm." in out
    rows = {line.split()[0]: line.split() for line in out.split("The same piece")[1].splitlines() if line.split()}
    assert rows["[CLS]"] == ["[CLS]", "1:0", "2:0", "equal", "equal", "equal", "equal"]
    assert rows["rock"] == ["rock", "1:4", "2:5", "0.289", "equal", "equal", "equal"]


def test_the_segment_is_the_users(tiny_bert, capsys):
    record = json.loads(printed(capsys, "the dog", "--segment", 1, "--model", tiny_bert, "--json"))
    assert {token["segment"] for token in record["texts"][0]["tokens"]} == {1}


def test_a_vocabulary_needs_no_weights(tiny_bert, tmp_path, capsys):
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((tiny_bert / name).read_bytes())
    assert "special tokens" in printed(capsys, "--vocabulary", "--model", tmp_path)

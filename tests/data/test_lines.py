import gzip

import pytest

from bertflow.data.tables import read_lines
from bertflow.errors import DataError


def test_lines_are_numbered_from_one_and_lose_their_ends(write):
    assert list(read_lines(write("a.txt", "one\r\ntwo\n\nfour"))) == [(1, "one"), (2, "two"), (3, ""), (4, "four")]


@pytest.mark.parametrize("mark", ["\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"])
def test_only_lf_ends_a_line(write, mark):
    text = f"one{mark}still one"
    assert len(text.splitlines()) == 2  # what a hasty reader would make of it
    assert list(read_lines(write("a.txt", f"{text}\ntwo\n"))) == [(1, text), (2, "two")]


def test_a_byte_order_mark_is_no_text(write):
    assert list(read_lines(write("a.txt", b"\xef\xbb\xbfPremise\n\xef\xbb\xbfx\n"))) == [(1, "Premise"), (2, "\ufeffx")]


def test_compressed_lines_are_the_same_lines(write):
    path = write("a.txt.gz", gzip.compress("één\ntwee\n".encode()))
    assert list(read_lines(path)) == [(1, "één"), (2, "twee")]


@pytest.mark.parametrize("name", ["corpus.txt", "corpus.txt.gz"])
def test_bytes_that_are_no_utf8_are_refused_with_line_and_byte(write, name):
    content = b"fine\nfine too\nthis has sixteen\xff bytes\n"
    path = write(name, gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(DataError) as error:
        list(read_lines(path))
    assert str(error.value) == f"{path}, line 3, byte 17: 0xff is not UTF-8. Save the file as UTF-8."


def test_a_missing_file_is_refused(tmp_path):
    path = tmp_path / "no.txt"
    with pytest.raises(DataError) as error:
        list(read_lines(path))
    assert str(error.value) == f"{path} is missing. Give the path of an existing file."


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(DataError) as error:
        list(read_lines(tmp_path))
    assert str(error.value) == f"{tmp_path} is a folder. Name the files in it."


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"plain text", "Not a gzipped file (b'pl')"),
        (gzip.compress(b"text\n" * 999)[:-9], "Compressed file ended before the end-of-stream marker was reached"),
    ],
)
def test_a_damaged_gzip_file_is_refused(write, content, reason):
    path = write("a.txt.gz", content)
    with pytest.raises(DataError) as error:
        list(read_lines(path))
    assert str(error.value) == (f"{path} is damaged: it should be gzip-compressed, but: {reason}. Fetch it again.")

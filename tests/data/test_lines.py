import gzip
import os
from pathlib import Path

import pytest

from bertflow import files
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
    assert str(error.value) == f"{path}, line 3: byte 17 is 0xff, which is not UTF-8. Save the file as UTF-8."


def test_a_missing_file_is_refused(tmp_path):
    path = tmp_path / "no.txt"
    with pytest.raises(DataError) as error:
        list(read_lines(path))
    assert str(error.value) == f"{path} is missing. Give the path of an existing file."


def test_a_zero_byte_is_refused_as_text_of_two_bytes_a_letter(write):
    path = write("a.txt", "the dog\nthe cat\n".encode("utf-16-le"))
    with pytest.raises(DataError) as error:
        list(read_lines(path))
    assert str(error.value) == f"{path}, line 1: byte 2 is zero, as in UTF-16. Save the file as UTF-8."


def test_a_file_that_ends_its_lines_with_cr_alone_is_refused(write):
    path = write("a.txt", "one\rtwo\r")
    with pytest.raises(DataError) as error:
        list(read_lines(path))
    assert str(error.value) == f"{path}: its lines end with CR alone. Save it with LF as the end of a line."


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_a_line_without_an_end_does_not_fill_the_memory(write, monkeypatch, name):
    monkeypatch.setattr(files, "LONGEST", 1000)
    content = b"short\n" + b"x" * 5000
    path = write(name, gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(DataError) as error:
        list(read_lines(path))
    assert str(error.value) == f"{path}, line 2: it has 1,000 bytes or more. Break it into lines."


@pytest.mark.parametrize("kind", ["pipe", "device", "loop", "name"])
def test_what_is_not_a_file_is_refused_at_once(tmp_path, kind):
    path = tmp_path / "a.txt"
    make = {
        "pipe": lambda: os.mkfifo(path),
        "device": lambda: path.symlink_to("/dev/zero"),
        "loop": lambda: path.symlink_to(path),
    }
    make.get(kind, lambda: None)()
    path = Path(f"{path}\0") if kind == "name" else path
    with pytest.raises(DataError, match=r" is (a pipe or a device, not a file|missing|a link that leads nowhere)\. "):
        list(read_lines(path))


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(DataError) as error:
        list(read_lines(tmp_path))
    assert str(error.value) == f"{tmp_path} is a folder. Name the files in it."


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"plain text", "Not a gzipped file (b'pl')"),
        (
            gzip.compress(b"text\n" * 999, mtime=0)[:-9],
            "Compressed file ended before the end-of-stream marker was reached",
        ),
    ],
)
def test_a_damaged_gzip_file_is_refused(write, content, reason):
    path = write("a.txt.gz", content)
    with pytest.raises(DataError) as error:
        list(read_lines(path))
    assert str(error.value) == (f"{path} is damaged: it should be gzip-compressed, but: {reason}. Fetch it again.")

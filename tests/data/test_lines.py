import gzip
import os
from pathlib import Path

import pytest

from bertflow.data import lines
from bertflow.data.lines import read_lines
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


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_a_line_without_an_end_does_not_fill_the_memory(write, monkeypatch, name, refusal):
    monkeypatch.setattr(lines, "LONGEST", 1000)
    content = b"short\n" + b"x" * 5000
    path = write(name, gzip.compress(content) if name.endswith(".gz") else content)
    said = refusal(lambda: list(read_lines(path)))
    assert said == f"{path}, line 2: it has 1,000 bytes or more. Break it into lines."


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


LATIN = b"fine\nfine too\nthis has sixteen\xff bytes\n"
REFUSED = {
    "no UTF-8": ("a.txt", LATIN, "{}, line 3: byte 17 is 0xff, which is not UTF-8. Save the file as UTF-8."),
    "UTF-16": ("a.txt", "the dog\nthe cat\n".encode("utf-16-le"), "{}, line 1: byte 2 is zero, as in UTF-16. Save the "
               "file as UTF-8, without zeros."),
    "a binary file": ("a.txt", b"\x93NUMPY\x01\0v\0{'descr': '<f4', 'shape': (9, 9)}\n\0\0\0A", "{} should hold text, "
                      "but it is a binary file. Name a file of text, or convert it."),
    "CR": ("a.txt", b"one\rtwo\r", "{}: its lines end with CR alone. Save it with LF as the end of a line."),
    "no gzip": ("a.txt.gz", b"plain text", "{} is damaged: it should be gzip-compressed, but: Not a gzipped file "
                "(b'pl'). Fetch it again."),
    "half a gzip": ("a.txt.gz", gzip.compress(b"text\n" * 999, mtime=0)[:-9], "{} is damaged: it should be "
                    "gzip-compressed, but: Compressed file ended before the end-of-stream marker was reached. Fetch it "
                    "again."),
    "missing": ("a.txt", None, "{} is missing. Give the path of an existing file."),
    "a folder": ("a/b.txt", None, "{.parent} is a folder. Name the files in it, or join them into one."),
    "an encoder": ("bert/config.json", None, "{.parent} is a folder. Name the encoder before the text."),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_text_is_refused(write, refusal, case):
    name, content, message = REFUSED[case]
    path = write(name, content or b"")
    if content is None and case != "an encoder":
        path.unlink()
    given = path.parent if case in ("a folder", "an encoder") else path
    assert refusal(lambda: list(read_lines(given))) == message.format(path)

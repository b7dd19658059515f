"""What a person sees in a terminal of 40 columns, and what a log holds."""

import io
import os
import pty
import re
import subprocess
import sys

import pytest

from bertflow.cli.printing import GAP, fitting, print_parts, say
from bertflow.tables import Strong, Table

SEEN = """
from bertflow.cli.printing import print_parts
from bertflow.tables import Strong, Table
numbers = Table(("system", *("STS%d" % at for at in range(12, 17))), (("raw", *"12345"), ("whitening", *"54321")))
long = "threshold a cosine of 0.45 or more is a match: 1 of 1,000 random pairs passes"
print_parts([Strong("VERDICT: whiten"), "1. " + 9 * "words that go on ", long, numbers])
"""


def seen(**environment):
    """What the lines above print in a terminal of 40 columns."""
    ours, theirs = pty.openpty()
    given = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "40", **environment}
    subprocess.run([sys.executable, "-c", SEEN], stdout=theirs, stderr=theirs, env=given, check=True, timeout=120)
    os.close(theirs)
    text = b""
    try:
        while part := os.read(ours, 4096):
            text += part
    except OSError:  # Linux: the other end is closed
        pass
    os.close(ours)
    return text.decode().replace("\r\n", "\n")


def test_in_a_terminal_lines_are_broken_at_words_and_wide_tables_in_pieces():
    text = seen()
    plain = re.sub(r"\x1b\[[\d;]*m", "", text)
    assert max(map(len, plain.splitlines())) <= 40
    assert "\n1. words that go on words that go on\n   words that go on" in plain
    assert "\nthreshold a cosine of 0.45 or more is a\n          match: 1 of 1,000" in plain
    assert len(re.findall(r"^ system", plain, re.MULTILINE)) == 2
    assert "\x1b[1mVERDICT: whiten\x1b[0m" in text


def test_no_color_switches_bold_off_too():
    assert "\x1b[" not in seen(NO_COLOR="1")


def test_elsewhere_tables_of_prose_are_broken_and_others_keep_a_line_a_row(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    print_parts([Table(("query", "/a/folder/of/a/model"), (("some words of a query " * 9, "x" * 99),), prose=True)])
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("x") == 99
    print_parts([Table(("a system of a long name", *(30 * ["STS12"])), (("raw and more", *(30 * ["45.67"])),))])
    assert capsys.readouterr().out.splitlines()[3].split() == ["raw", "and", "more", *(30 * ["45.67"])]


def test_elsewhere_lines_stay_whole(capsys):
    line = "threshold " + 50 * "words "
    print_parts([Strong("VERDICT: whiten"), line])
    assert capsys.readouterr().out == f"\nVERDICT: whiten\n{line}\n"
    stream = io.StringIO()
    say("note: " + line, stream)
    assert stream.getvalue() == f"note: {line}\n"


@pytest.mark.parametrize("width", [1, 20, 30, 80])
def test_the_pieces_of_a_table_hold_all_columns_once(width):
    table = Table(("system", *"abcdef"), (("raw", *"123456"), ("flow", *"654321")))
    pieces = [*fitting(table, width)]
    assert sum((piece.header[1:] for piece in pieces), ()) == table.header[1:]
    assert all([line[0] for line in piece.lines] == ["raw", "flow"] for piece in pieces)
    assert all(sum(one + GAP for one in piece.widths) <= width for piece in pieces) or width == 1
    assert [*fitting(Table(("alone",), (("1",),)), width)] == [Table(("alone",), (("1",),))]


def test_a_long_name_is_no_text_and_stays_whole():
    name = "faint-sif+ridge(50)+crops"
    table = Table(("system", *"abcdef"), ((name, *["0.123456"] * 6),))
    assert [piece.lines[0][0] for piece in fitting(table, 60)] == [name] * 3
    assert len([*fitting(Table(("query", "a"), (("words " * 9, "1"),)), 60)]) == 1

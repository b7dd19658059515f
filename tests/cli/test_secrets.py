"""A password or a key in the address of a database: refused in every form, and shown nowhere."""

import json

import pytest

from bertflow.api.searching import search
from bertflow.api.vectors import reindex
from bertflow.cli import main
from bertflow.cli.command import Command
from bertflow.cli.commands import Row
from bertflow.cli.program import without_secrets
from bertflow.errors import KEEP_SECRET, UsageError, redacted
from bertflow.retrieval.address import Address, parse_address
from bertflow.retrieval.collections import open_collection

WORD = "s3cr3t"
FORMS = {
    "URL": "pgvector:postgresql://ann:{}@127.0.0.1:1/db/docs",
    "URL without a user": "pgvector:postgresql://:{}@127.0.0.1:1/db/docs",
    "URL, not quoted": "pgvector:postgresql://ann:a/b {}@127.0.0.1:1/db/docs",
    "URL, like a port": "pgvector:postgresql://ann:12/{}@127.0.0.1:1/db/docs",
    "URL in a keyword": "pgvector:dbname=postgresql://ann:{}@127.0.0.1:1/db/docs",
    "no scheme": "pgvector:ann:{}@127.0.0.1:1/db/docs",
    "keyword": "pgvector:host=127.0.0.1 port=1 password={}/docs",
    "keyword first": "pgvector:password={} host=127.0.0.1 port=1/docs",
    "keyword with spaces": "pgvector:host=127.0.0.1 port=1 password = 'a {}'/docs",
    "option": "pgvector:postgresql://ann@127.0.0.1:1/db/docs?password={}",
    "option, quoted": "pgvector:postgresql://ann@127.0.0.1:1/db/docs?pass%77ord={}",
    "option among others": "pgvector:postgresql://ann@127.0.0.1:1/db/docs?vector=a&sslpassword={}&id=b",
    "passwd": "pgvector:postgresql://ann@127.0.0.1:1/db/docs?passwd={}",
    "key": "qdrant:http://127.0.0.1:1/docs?api_key={}",
    "Key": "qdrant:http://127.0.0.1:1/docs?apiKey={}",
    "token": "qdrant:http://127.0.0.1:1/docs?token={}",
    "key as a user": "qdrant:http://{}@127.0.0.1:1/docs",
    "user of Qdrant": "qdrant:https://ann:{}@127.0.0.1:1/docs",
    "folder with an option": "qdrant:db/docs?api-key={}",
    "object store": "lancedb:s3://key:{}@bucket/docs",
    "option of an object store": "lancedb:s3://bucket/docs?aws_secret_access_key={}",
    "unknown kind": "postgres:host=127.0.0.1 password={}/docs",
    "no kind": "postgresql://ann:{}@127.0.0.1:1/db/docs",
    "no name": "pgvector:host=127.0.0.1 password={}",
}
CALLS = {
    "reindex": ["reindex", "{}", "{}2", "--calibrator", "center"],
    "target": ["reindex", "lancedb:db/docs", "{}", "--calibrator", "center", "--debug"],
    "options": ["reindex", "--source={}", "--target={}2", "--calibrator=center", "--json"],
    "config": ["reindex", "--config", "options.json"],
    "print_config": ["reindex", "{}", "{}2", "--calibrator", "center", "--print_config"],
    "print_config of a file": ["reindex", "--config", "options.json", "--print_config"],
    "too many": ["reindex", "a:b/c", "a:b/c", "{}", "--calibrator", "center"],
    "no calibrator": ["reindex", "{}", "{}"],
    "other option": ["reindex", "a:b/c", "a:b/d", "--calibrator", "center", "--seed", "{}"],
    "search": ["search", "ask", "{}", "what?", "--model", "none"],
    "without a model": ["search", "ask", "{}", "what?"],
    "add": ["search", "add", "{}", "--answers", "options.json"],
    "recalibrate": ["search", "recalibrate", "{}", "--model", "none"],
    "info": ["search", "info", "{}"],
    "encoder": ["inspect", "{}"],
    "command": ["{}"],
}
GOOD = [
    "lancedb:abfss://container@account.dfs.core.windows.net/db/docs",
    "lancedb:C:/ann@work/docs",
    "pgvector:host=/tmp user=ann passfile=/home/ann/.pgpass/docs?sslkey=/home/ann/key",
    "pgvector:postgresql://ann@one:5432,two:5433/db/docs?require_auth=scram-sha-256",
    "pgvector:postgresql://ann@host/db/docs?vector=password",
    "qdrant:http://[::1]:6333/docs",
]


EVERY_CALL, EVERY_FORM = ("URL", "keyword", "key"), ("reindex", "print_config")


@pytest.mark.parametrize(
    ("form", "call"), [(form, call) for form in FORMS for call in CALLS if form in EVERY_CALL or call in EVERY_FORM]
)
def test_a_secret_is_shown_nowhere(form, call, monkeypatch, capsys, tmp_path):
    address = FORMS[form].format(WORD)
    given = {"source": address, "target": f"{address}2", "calibrator": "center"}
    (tmp_path / "options.json").write_text(json.dumps(given))
    monkeypatch.setattr("sys.argv", ["bertflow", *(word.replace("{}", address) for word in CALLS[call])])
    monkeypatch.setattr("atexit.register", lambda *_: None)
    code = main()
    out, err = capsys.readouterr()
    shown = "print_config" in call
    assert code == (0 if shown else 2) or call == "encoder"
    assert WORD not in out + err
    assert ("***" in out) == shown
    assert [path.name for path in tmp_path.iterdir()] == ["options.json"]


@pytest.mark.parametrize("form", FORMS)
def test_a_secret_is_refused_with_what_to_do(form, refusal):
    refused = f"The address of a collection holds a password or a key, which others could read. {KEEP_SECRET}"
    address = FORMS[form].format(WORD)
    for call in (
        lambda: open_collection(address),
        lambda: parse_address(redacted(address)),
        lambda: reindex(address, "lancedb:db/docs", calibrator="center"),
    ):
        assert refusal(call, error=UsageError) == refused
    assert KEEP_SECRET.startswith("Leave it out. ")
    assert "PGPASSWORD or ~/.pgpass for Postgres, QDRANT_API_KEY for Qdrant" in KEEP_SECRET


def test_an_address_that_was_put_together_is_looked_at_too():
    with pytest.raises(UsageError, match="holds a password or a key") as refused:
        open_collection(Address("pgvector", f"host=127.0.0.1 password={WORD}", "docs"))
    assert WORD not in str(refused.value)
    with pytest.raises(UsageError, match="holds a password or a key"):
        search(f"pgvector:host=127.0.0.1 password={WORD}/docs", "what?")


@pytest.mark.parametrize("address", GOOD)
def test_what_only_looks_like_a_secret_is_kept(address):
    assert str(parse_address(address)).replace("%2F", "/") == address
    assert redacted(address) == address


def test_a_key_that_is_an_option_is_not_printed():
    def serving(*, api_key: str | None = None) -> None:
        """Serve.

        Args:
            api_key: The key.
        """

    command = Command("serving", Row("", serving))
    assert command.print_config([]) == "api_key: null\n"
    with pytest.raises(UsageError, match=r"^api_key would be shown here\. Leave it out, and set it in the environment"):
        command.print_config(["--api_key", WORD])
    assert without_secrets("models", ["a", f"host=h password={WORD}"]) == ["a", "host=h password=***"]

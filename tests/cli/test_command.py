import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pytest
import yaml

from bertflow.cli import main
from bertflow.cli.command import Command, command
from bertflow.cli.commands import COMMANDS, Row
from bertflow.cli.program import run
from bertflow.cli.spelling import as_typed
from bertflow.errors import UsageError
from bertflow.results import AbstractResult
from bertflow.tables import Section, Table

from .conftest import read_json, run_python

if TYPE_CHECKING:
    from bertflow.nowhere import SentenceEncoder


@dataclass(frozen=True)
class Shape:
    """The shape."""

    wide: int = 3
    """How wide, 95 % of the time."""

    def __post_init__(self):
        if self.wide < 1:
            raise UsageError(f"shape.wide should be at least 1, got {self.wide}.")


@dataclass(frozen=True)
class Recipe:
    """How it is done."""

    preset: str = "plain"
    """A name."""
    rate: float = 0.5
    """How fast."""
    shape: Shape = field(default_factory=Shape)
    """The shape."""


@dataclass(frozen=True)
class Text:
    """The text."""

    sentences: list[str] | str | None = None
    """File or files."""


@dataclass(frozen=True, repr=False)
class Answer(AbstractResult):
    given: Mapping[str, Any]
    says: str = ""

    title: ClassVar[str] = "What was given"

    def parts(self):
        table = Table(("name", "value"), tuple((name, str(value)) for name, value in self.given.items()))
        yield table
        yield "a line"
        yield "[another] line"
        yield Section("More", table, ("a note",))

    def as_dict(self):
        return {name: str(value) for name, value in self.given.items()}

    def missed(self):
        return self.says


calls = []


def answer(
    model: "str | Path | SentenceEncoder", texts: list[str] | None = None, *, where: Path, k: int = 5, seed: int = 0,
    rate: float = 0.5, prompt: str | None = None, int8: bool = False, report: bool = True,
    how: Literal["best", "last"] | None = None, lexical: str | None = None, pair: tuple[str, str] | None = None,
    sentences: list[str] | None = None, columns: list[str] | str | None = None, most: int | Literal["all"] = 7,
    weights: Mapping[str, float] | None = None, data: Text = Text(), progress: bool = False,
    encoder: "SentenceEncoder | None" = None, hidden: int = 1,
):  # fmt: skip
    """Answer what was asked.

    In ``two`` lines, 95 % of the time,
    and a third.

    Args:
        model: An encoder: hub id, folder.
        texts: What to read.
        where: A folder.
        k: How many, 95 % of all.
        seed: Random seed.
        rate: How fast.
        prompt: Put before a sentence.
        int8: Whether to round.
        report: Whether to write one.
        how: Which one.
        lexical: A task.
        pair: Two texts.
        sentences: Contexts.
        columns: Names.
        most: At most so many.
        weights: By name.
        data: The text.
        progress: Show a bar.
        encoder: Python's.
        hidden: Not for the command line.

    Examples:
        ```bash
        bertflow answer folder
        ```
    """
    calls.append({name: value for name, value in locals().items() if name not in ("progress", "encoder", "hidden")})
    return Answer(calls[-1])


ROW = Row("answer", answer, ("model", "texts"), aliases={"sentences": ("--in",)}, python_only=("hidden",))
COMMAND = Command("answer", ROW)
DEFAULTS = {
    "model": "m", "texts": None, "where": Path("w"), "k": 5, "seed": 0, "rate": 0.5, "prompt": None, "int8": False,
    "report": True, "how": None, "lexical": None, "pair": None, "sentences": None, "columns": None, "most": 7,
    "weights": None, "data": Text(),
}  # fmt: skip
HINT = "`bertflow answer --help` lists the options."
USAGE = "`bertflow answer MODEL [TEXT] --where WHERE [options]`: answer."

SPELLINGS = {
    "a positional": ((), {}),
    "many positionals": (("a", "b"), {"texts": ["a", "b"]}),
    "positionals that look like something else": (("5", "null", "[x", "a: b"), {"texts": ["5", "null", "[x", "a: b"]}),
    "sentences that begin with a dash": (("-a b", "-- c"), {"texts": ["-a b", "-- c"]}),
    "after two dashes": (("--", "--k", "-5"), {"texts": ["--k", "-5"]}),
    "positionals among options": (("a", "--k", "3", "b"), {"texts": ["a", "b"], "k": 3}),
    "an equals sign": (("--k=3",), {"k": 3}),
    "a short alias": (("-k", "3"), {"k": 3}),
    "a short alias, glued": (("-k3",), {"k": 3}),
    "the last counts": (("-k", "3", "--k=4"), {"k": 4}),
    "a negative number": (("--k", "-3"), {"k": -3}),
    "a number in another form": (("--rate", "1e-3"), {"rate": 1e-3}),
    "a dash": (("--where=v", "--lexical", "-"), {"where": Path("v"), "lexical": "-"}),
    "text as it is": (("--prompt", "query: "), {"prompt": "query: "}),
    "text that YAML would drop": (("--prompt", "# "), {"prompt": "# "}),
    "no text": (("--prompt=",), {"prompt": ""}),
    "a flag": (("--int8",), {"int8": True}),
    "a flag before a positional": (("--int8", "a"), {"int8": True, "texts": ["a"]}),
    "a flag with a value": (("--int8", "false"), {}),
    "a default that is taken back": (("--report", "false"), {"report": False}),
    "the same with an equals sign": (("--report=false",), {"report": False}),
    "a choice": (("--how", "best"), {"how": "best"}),
    "an option without its value": (("--lexical",), {"lexical": "stsb-dev"}),
    "the same before another": (("--lexical", "--k=3"), {"lexical": "stsb-dev", "k": 3}),
    "the same with a value": (("--lexical", "sickr"), {"lexical": "sickr"}),
    "two values": (("--pair", "a", "b c"), {"pair": ("a", "b c")}),
    "once": (("--in", "a"), {"sentences": ["a"]}),
    "several times": (("--in", "a", "--sentences", "b, c", "--in=d"), {"sentences": ["a", "b, c", "d"]}),
    "a list as it is written in YAML": (("--in", "[a,b]"), {"sentences": ["a", "b"]}),
    "one or many, one": (("--columns", "a,b"), {"columns": "a,b"}),
    "one or many, many": (("--columns", "[a,b]"), {"columns": ["a", "b"]}),
    "a number or a word, a number": (("--most", "3"), {"most": 3}),
    "a number or a word, a word": (("--most", "all"), {"most": "all"}),
    "a mapping": (("--weights", "{a: 0.5}"), {"weights": {"a": 0.5}}),
    "a field": (("--data.sentences", "a"), {"data": Text("a")}),
    "a field of many": (("--data.sentences", "[a,b]"), {"data": Text(["a", "b"])}),
}


@pytest.mark.parametrize("case", SPELLINGS)
def test_a_command_line_becomes_arguments(case):
    words, given = SPELLINGS[case]
    assert COMMAND.parse(["m", "--where", "w", *words]) == {**DEFAULTS, **given}


REFUSALS = {
    ("m",): f"The following arguments are required: --where. {USAGE} {HINT}",
    (): f"The following arguments are required: MODEL, --where. {USAGE} {HINT}",
    ("m", "--where"): f"The option --where needs a value. {HINT}",
    ("m", "--where", "--int8"): f"The option --where needs a value. {HINT}",
    ("m", "--pair", "a"): f"The option --pair needs 2 values. {HINT}",
    ("m", "--column", "a"): f"There is no option --column. Did you mean --columns? {HINT}",
    ("m", "--data.sentence=a"): f"There is no option --data.sentence. Did you mean --data.sentences? {HINT}",
    ("m", "--zzz", "some value"): f"There is no option --zzz. {HINT}",
    ("m", "-k", "x"): f"The option -k cannot be x. It should be a whole number. {HINT}",
    ("m", "--int8=x"): f"The option --int8 cannot be x. It should be true or false. {HINT}",
    ("m", "--how", "x"): f"The option --how cannot be x. Choose from best, last. {HINT}",
    ("m", "--config", "/none.yaml"): "The config file /none.yaml is missing. Give the path of a YAML file, as "
    "configs/default.yaml.",
}


@pytest.mark.parametrize("words", REFUSALS)
def test_what_cannot_be_understood_is_refused_in_one_line(words, capsys):
    assert run(COMMAND.main, words) == 2
    assert capsys.readouterr().err == f"error: {REFUSALS[words]}\n"


NAMED = {
    "The option folds needs labels. Leave it out.": "The option --folds needs labels. Leave it out.",
    "fit_on is for a fit; got fit_on=3, a/fit_on.": "--fit_on is for a fit; got fit_on=3, a/fit_on.",
    "Give other labels, or leave labels out.": "Give other labels, or leave --labels out.",
    "One of text and labels is wanted. Choose another output.": "One of text and --labels is wanted. "
    "Choose another --output.",
    "top_score should be 1 or more; name it with data.top_score.": "--data.top_score should be 1 or more; name it "
    "with --data.top_score.",
    "k should be 1 or more. labels takes one.": "-k should be 1 or more. --labels takes one.",
    "size must be from 3 to 64.": "size must be from 3 to 64.",
}


@pytest.mark.parametrize("message", NAMED)
def test_what_a_function_says_of_its_parameters_is_said_of_the_options(message):
    options = ["folds", "fit_on", "labels", "text", "output", "data.top_score", "k", "flow.size", "encoder.size"]
    assert as_typed(message, options, ["text"]) == NAMED[message]


def test_a_file_gives_options_positionals_and_fields():
    path = Path("options.yaml")
    path.write_text("model: m\ntexts: [a, b]\nwhere: w\nint8: true\ndata: {sentences: [c]}\nk: 3\n")
    given = {**DEFAULTS, "texts": ["a", "b"], "int8": True, "data": Text(["c"]), "k": 3}
    assert COMMAND.parse(["--config", str(path)]) == given
    assert COMMAND.parse(["-k", "4", "n", "-c", str(path)]) == {**given, "k": 4, "model": "n"}


FILES = {
    "columnz: a": f"There is no option --columnz. Did you mean --columns? {HINT}",
    "data: {sentence: a}": f"There is no option --data.sentence. Did you mean --data.sentences? {HINT}",
    "k: many": f"The option k cannot be many. It should be a whole number. {HINT}",
    "k: 2\ndata: 3": "'data' in options.yaml should hold options, as 'data: {sentences: ...}', got 3.",
    "k: 2\ndata:": "'data' in options.yaml should hold options, as 'data: {sentences: ...}', got None.",
    "# k: 2": "The config file options.yaml should hold options, as 'name: value', got nothing. Leave it out.",
    "- k": "The config file options.yaml should hold options, as 'name: value', got ['k']. Leave it out.",
}


@pytest.mark.parametrize(("text", "message"), FILES.items())
def test_a_file_is_refused_like_a_command_line(tmp_path, monkeypatch, text, message, refusal):
    Path("options.yaml").write_text(text)
    assert refusal(lambda: COMMAND.parse(["m", "--config", "options.yaml"]), error=UsageError) == message


def test_what_is_printed_can_be_given_again(capsys):
    words = ["m", "a", "--where=w", "--pair", "b", "c", "--weights={a: 1}", "--data.sentences=[d]", "--how=best"]
    assert run(COMMAND.main, [*words, "--print_config"]) == 0
    printed = capsys.readouterr().out
    Path("options.yaml").write_text(printed)
    assert yaml.safe_load(printed).keys() == DEFAULTS.keys()
    assert COMMAND.parse(["--config=options.yaml"]) == COMMAND.parse(words)


def test_the_help_is_the_docstring(capsys):
    assert run(COMMAND.main, ["--help"]) == 0
    text = capsys.readouterr().out
    for line in (
        "usage: bertflow answer MODEL [TEXT] --where WHERE [options]",
        "Answer what was asked.\n\nIn two lines, 95 % of the time, and a third.",
        "  MODEL                 An encoder: hub id, folder.",
        "  TEXT                  What to read.",
        "--k K  ",  # "-k, --k K" from Python 3.13 on, "-k K, --k K" before
        "  How many, 95 % of all. (default: 5)",
        "  --seed SEED           Random seed. (default: 0)",
        "  --int8                Whether to round.\n",
        "  --report REPORT       Whether to write one. (default: true)",
        "  --how {best,last}     Which one.\n",
        ", --sentences SENTENCES\n",
        "  --most MOST           At most so many. (default: 7)",
        "The text:\n  --data.sentences SENTENCES\n                        File or files.",
        "examples:\n  bertflow answer folder\n",
    ):
        assert line in text
    assert not {"progress", "encoder", "hidden"} & set(text.replace("--", "").split())


def test_a_result_is_printed_saved_and_written_as_json(capsys):
    def f(a: int = 1):
        return Answer({"a": a})

    command = Command("f", Row("", f, own=("output", "json")))
    assert run(command.main, ["--output", "out", "--a=2"]) == 0
    printed = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in printed.splitlines() if line.strip("─ ")]
    assert lines == ["name value", "a 2", "a line", "[another] line", "More", "name value", "a 2", "a note"]
    assert {path.name for path in Path("out").iterdir()} == {"answer.json", "answer.md", "run.json"}
    assert read_json("out/run.json")["arguments"][-1] == "--a=2"
    assert run(command.main, ["--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"a": "1"}


def test_a_result_may_have_its_own_exit_code():
    @dataclass(frozen=True)
    class Interrupted(Answer):
        exit_code: ClassVar[int] = 1

    assert Command("f", Row("", lambda: Interrupted({}))).main([]) == 1


def test_a_result_reads_as_a_document():
    result = Answer({"a": 1})
    table = result.given and Table(("name", "value"), (("a", "1"),)).to_markdown()
    assert result.to_markdown() == (
        f"# What was given\n\n{table}\n* a line\n* [another] line\n\n## More\n\n{table}\n* a note\n"
    )
    assert repr(result) == "<Answer: a line>"
    assert str(result) == result.to_markdown()


def test_a_parameter_that_no_command_line_can_say_is_a_mistake_of_the_command():
    def f(encoder: "SentenceEncoder"): ...

    with pytest.raises(AssertionError, match="f: no command line can say the parameter encoder"):
        Command("f", Row("", f)).parse([])


def train(
    data: Text = Text(),
    flow: Recipe = Recipe(),
    output: str | None = None,
    resume: str | None = None,
    trainer: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
):
    """Train."""
    return Answer(locals())


PRESETS = {"plain": {}, "wide": {"rate": 0.1, "shape": {"wide": 9}}}


def defaults(parsed):
    return {"flow": PRESETS[parsed.flow.preset]}


TRAIN = Command("train", Row("", train, trainer=True, defaults=f"{__name__}:defaults"))


def test_a_preset_is_a_row_of_defaults():
    given = TRAIN.parse(["--flow.preset=wide", "--flow.rate=0.2"])
    assert given["flow"] == Recipe("wide", 0.2, Shape(9))
    assert TRAIN.parse([])["flow"] == Recipe()


def test_options_of_the_trainer_that_were_set_reach_the_function():
    given = TRAIN.parse(["--trainer.max_steps", "3", "--trainer.accelerator=cpu"])["trainer"]
    assert given == {"max_steps": 3, "accelerator": "cpu"}


def test_a_run_keeps_all_its_options_and_can_be_repeated():
    words = ["--flow.preset=wide", "--data.sentences=[a]", "--trainer.max_steps=3", "--output=there"]
    given = TRAIN.parse(words)
    assert given["options"]["flow"] == {"preset": "wide", "rate": 0.1, "shape": {"wide": 9}}
    assert given["options"]["trainer"]["max_steps"] == 3
    assert "output" not in given["options"]
    Path("config.yaml").write_text(yaml.safe_dump(given["options"]))
    again = TRAIN.parse(["--config", "config.yaml"])
    assert again["options"] == given["options"]
    assert again == {**given, "output": None}


SEE = "`bertflow train --print_config` shows all options with their values."
UNKNOWN = {
    "--flow.rat=3": f"There is no option --flow.rat. Did you mean --flow.rate? {SEE}",
    "--trainer.max_step=3": f"There is no option --trainer.max_step. Did you mean --trainer.max_steps? {SEE}",
    "--trainer.max_steps=x": f"The option trainer.max_steps cannot be x. It should be a whole number. {SEE}",
    "--trainer.logger=CSVLogger": f"CSVLogger needs --trainer.logger.save_dir as well. {SEE}",
    "--flow.shape.wide=0": "shape.wide should be at least 1, got 0.",  # as the class says it
}


@pytest.mark.parametrize(("word", "message"), UNKNOWN.items())
def test_a_training_says_where_its_options_are_shown(word, message, refusal):
    assert refusal(TRAIN.parse, [word], error=UsageError) == message


@pytest.fixture
def actions(monkeypatch):
    rows = {"ask": ROW, "add": Row("train", train)}
    monkeypatch.setitem(COMMANDS, "search", Row("", actions=rows))
    monkeypatch.setattr(sys.modules[__name__], "__doc__", "Rank answers.")


@pytest.mark.usefixtures("actions")
def test_actions_are_listed_with_what_they_do(told):
    text = told("search", "--help")
    assert "usage: bertflow search ACTION [options]\n\nRank answers.\n" in text
    assert "  ask  answer\n  add  train\n" in text


ACTIONS = {
    "search": "An action is wanted, got none. Known: ask, add.",
    "search asc": "Unknown action 'asc' of bertflow search. Did you mean ask? Known: ask, add.",
}


@pytest.mark.parametrize("line", ACTIONS)
@pytest.mark.usefixtures("actions")
def test_an_unknown_action_is_one_line(line, capsys):
    assert main(line.split()) == 2
    assert capsys.readouterr().err == f"error: {ACTIONS[line]}\n"


@pytest.mark.parametrize(
    "name", [f"{name} {action}".strip() for name, row in COMMANDS.items() for action in row.actions or [""]]
)
def test_every_option_of_every_command_is_explained(name):
    one = command(name)
    text = one.help()
    for option in one.options:
        assert option.help or option.grouped, f"{option.name} stands in no Args: of the docstring"
        assert f"--{option.name}" in text or option.name in one.row.places


HEAVY = "torch transformers pytorch_lightning sklearn datasets scipy matplotlib rich onnx starlette uvicorn"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_loads_nothing_heavy(name):
    numpy = ["numpy"] if name in ("fix", "score", "tokens", "words") else []
    script = (
        f"import sys\nfrom bertflow.cli import main\nmain([{name!r}, '--help'])\n"
        f"heavy = set({HEAVY.split() + numpy}) & sys.modules.keys()\n"
        "assert not heavy, heavy"
    )
    run_python("-c", script)

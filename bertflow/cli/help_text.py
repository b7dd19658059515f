"""How the help of a command looks: options with what they mean, and what they are if they are not given."""

from argparse import SUPPRESS, Action
from collections.abc import Mapping

from jsonargparse import ActionConfigFile, DefaultHelpFormatter  # type: ignore[attr-defined]  # not in its __all__

PRINT = "print_config"


class HelpFormatter(DefaultHelpFormatter):
    """Help without types: what a value can be is in the text."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "".join(f"{indent}{line}\n" for line in text.splitlines())

    def _get_help_string(self, action: Action) -> str:
        text, default = plain(action.help), action.default
        is_nothing = default is None or default is False or default in ("", SUPPRESS)
        if is_nothing or isinstance(action, ActionConfigFile) or "(default" in text:
            return text
        shown = "true" if default is True else default
        return f"{text} (default: {shown})".lstrip()

    def _format_action_invocation(self, action: Action) -> str:
        if getattr(action, "placed", False):
            return str(action.metavar)
        if getattr(action, "_typehint", None) is bool and action.default is False:
            return ", ".join(action.option_strings)
        if action.dest == PRINT:
            return f"--{PRINT}"
        action.option_strings = [typed for typed in action.option_strings if not typed.endswith("+")]
        return super()._format_action_invocation(action)


def plain(text: str | None) -> str:
    """Prose of a docstring for a terminal."""
    return (text or "").replace("``", "")


def listed(summaries: Mapping[str, str]) -> str:
    """A line a name, with what it does."""
    width = max(map(len, summaries))
    return "\n".join(f"  {name:<{width}}  {summary}" for name, summary in summaries.items())

"""Several commands under one name: ``bertflow search build``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bertflow.cli.command import Command
from bertflow.cli.help_text import listed
from bertflow.errors import UsageError
from bertflow.registry import did_you_mean


@dataclass(frozen=True)
class Actions:
    """Several commands under one name: ``bertflow search build``."""

    name: str
    about: str
    """What they are for."""
    actions: Mapping[str, Command]
    """In the order of the help."""
    examples: str = ""

    def main(self, argv: Sequence[str]) -> int:
        """Run the action that comes first; returns the exit code.

        Raises:
            UsageError: If there is none, or none of that name.
        """
        action, *rest = argv or [""]
        if action in ("-h", "--help"):
            print(self.help())
            return 0
        if action not in self.actions:
            meant = did_you_mean(action, self.actions)
            got = f"Unknown action {action!r} of bertflow {self.name}." if action else "An action is wanted, got none."
            raise UsageError(f"{got}{meant} Known: {', '.join(self.actions)}.")
        return self.actions[action].main(rest)

    def help(self) -> str:
        """What ``--help`` prints."""
        rows = listed({name: one.summary for name, one in self.actions.items()})
        examples = f"\n\nexamples:\n{self.examples}" if self.examples else ""
        return (
            f"usage: bertflow {self.name} ACTION [options]\n\n{self.about}\n\n{rows}\n\n"
            f"`bertflow {self.name} ACTION --help` lists the options of one.{examples}"
        )

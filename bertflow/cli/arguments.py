"""Arguments whose errors are one line: what was wanted, what was got."""

import argparse
from typing import NoReturn

from bertflow.errors import UsageError


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` that raises instead of printing its usage and leaving."""

    def error(self, message: str) -> NoReturn:
        """Refuse in one line.

        Raises:
            UsageError: Always.
        """
        raise UsageError(f"{message[:1].upper()}{message[1:]}. `{self.prog} --help` lists the options.")

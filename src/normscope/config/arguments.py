"""Command lines of the programs other than run.py."""

import argparse
import sys
from typing import NoReturn

from normscope.errors import InputError, message


class ArgumentParser(argparse.ArgumentParser):
    """Reports an invalid command line like any other invalid input: one line, exit status 2."""

    def error(self, reason: str) -> NoReturn:
        """Print the reason and exit."""
        print(message(InputError(f"{reason}; see {self.prog} --help")), file=sys.stderr)
        sys.exit(2)

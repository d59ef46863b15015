"""The command ``bayesrule``: a thin layer that reads files, calls the library, and writes files and tables."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    try:
        from bayesrule.cli.app import app
    except ModuleNotFoundError as error:
        print(f"The command needs the package {error.name}. pip install 'bayesrule[cli]'", file=sys.stderr)
        raise SystemExit(2) from None
    app()

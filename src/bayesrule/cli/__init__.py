"""The command ``bayesrule``: a thin layer that reads files, calls the library, and writes files and tables."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; of several processes that ``torchrun`` started, only the first works."""
    try:
        from bayesrule.cli.app import app
    except ModuleNotFoundError as error:
        print(f"The command needs the package {error.name}. pip install 'bayesrule[cli]'", file=sys.stderr)
        raise SystemExit(2) from None
    from bayesrule.distributed.world import alone, announced_world

    if announced_world().first:
        with alone():
            app()

"""The command ``feedline``: look at a corpus, convert it, plan its order, measure it, see it work.

One file a command; `app` joins them, `console` prints, `arguments` reads what is typed. Nothing in the library
imports this package, and typer and rich are imported nowhere else.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; ends the process.

    Exit codes: 0, 1 for an error (its message on stderr), 2 for wrong usage, 130 after Ctrl-C.
    """
    try:
        try:
            from feedline.cli.app import app
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in ("typer", "rich"):
                raise
            print(f"{package} is not installed; run: pip install 'feedline[cli]'", file=sys.stderr)
            raise SystemExit(1) from None
        app(prog_name="feedline")
    except KeyboardInterrupt:
        raise SystemExit(130) from None

"""The command ``feedline``: inspect a corpus, convert it, plan its order, measure it, run a demo.

One file per command. `app` joins them, `console` prints, `arguments` parses. The library does not import this package,
and only this package imports typer and rich.
"""

from __future__ import annotations

import json
import sys

from feedline.errors import install_line

__all__ = ["main"]


def main() -> None:
    """Run the command line, and exit the process.

    Exit codes: 0, 1 for an error (its message on stderr), 2 for wrong usage, 130 after Ctrl-C.
    """
    try:
        try:
            from feedline.cli.app import main as run
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in ("typer", "rich"):
                raise
            message = f"{package} is not installed; run: {install_line('cli')}"
            _print_document(error, message)
            print(message, file=sys.stderr)
            raise SystemExit(1) from None
        run()
    except KeyboardInterrupt as error:  # before there was a command, which handles it
        _print_document(error, "interrupted")
        raise SystemExit(130) from None


def _print_document(error: BaseException, message: str) -> None:
    if "--json" in sys.argv:
        print(json.dumps({"error": {"type": type(error).__name__, "message": message}}))

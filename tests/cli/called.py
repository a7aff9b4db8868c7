"""The command line, called once: what it imports only then is there for the programs of `tests.warm`."""

import contextlib
import importlib
import io

from feedline.cli.app import COMMANDS, app_for

for name in COMMANDS:
    importlib.import_module(f"feedline.cli.{name}")
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    app_for("plan")(["plan", "--help"], prog_name="feedline")
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    app_for(None)(["--version"], prog_name="feedline")

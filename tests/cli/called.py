"""The command line, called once, so that its late imports are ready for the programs of `tests.warm`."""

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

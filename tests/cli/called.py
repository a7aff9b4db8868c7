"""The command line, called once: what it imports only then is there for the programs of `tests.warm`."""

import contextlib
import io

from feedline.cli.app import app

with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    app(["plan", "--help"], prog_name="feedline")
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    app(["--version"], prog_name="feedline")

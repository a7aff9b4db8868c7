"""The JSON documents of ``feedline run``."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from feedline.cli.schemas import CommandError


class RunDocument(TypedDict):
    """The end of a script. Its output goes to stderr.

    Attributes:
        script: path of the script or notebook.
        facade: framework of the script.
        arguments: arguments of the script.
        exit_code: exit code of the script, and of the command.
        seconds: wall time of the script, in seconds.
        left_out: commands of IPython in a notebook that were left out, in sentences.
        versions: versions of Python, feedline and, where the script imports it, torch.
        error: error that ended the script, if one did.
    """

    script: str
    facade: Literal["cntk", "mxnet"]
    arguments: list[str]
    exit_code: int
    seconds: float
    left_out: list[str]
    versions: dict[str, str]
    error: NotRequired[CommandError]


Document = RunDocument

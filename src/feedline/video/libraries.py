"""The libraries that read and decode video: PyAV and torchcodec. They are imported at first use."""

from __future__ import annotations

import importlib
from typing import Any

from feedline.errors import install_line


def pyav() -> Any:
    """Return PyAV's module, ``av``.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    try:
        return importlib.import_module("av")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"PyAV is not installed; run: {install_line('video')}") from error


def torchcodec() -> Any:
    """Return the module ``torchcodec.decoders``.

    Raises:
        ModuleNotFoundError: torchcodec is not installed.
        ImportError: it cannot be loaded. The message has its reasons.
    """
    try:
        return importlib.import_module("torchcodec.decoders")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"torchcodec is not installed; run: {install_line('video')}") from error
    except Exception as error:  # torchcodec raises errors of many kinds if it cannot load FFmpeg
        raise ImportError(
            "torchcodec cannot be loaded. It needs FFmpeg's shared libraries, such as Debian's libavcodec59, "
            "libavfilter8 and libavdevice59, and fits one version of torch. It says: "
            f"{str(error).strip() or type(error).__name__}"
        ) from error

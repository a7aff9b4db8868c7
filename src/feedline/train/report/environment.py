"""The environment of a run, for its log: command, commit, machine, versions and threads.

A run needs none of these facts, so unavailable ones are omitted. Collecting them takes some ten milliseconds, once.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shlex
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from feedline import system

_PACKAGES = ("torch", "numpy", "pyarrow", "jax", "transformers", "timm")
_GIT_S = 2.0


def describe_environment() -> dict[str, Any]:
    """Return the facts by name, in JSON types."""
    facts = {"command": shlex.join(sys.argv), "commit": _commit(), "machine": _machine()}
    return {
        **{name: text for name, text in facts.items() if text},
        "versions": {"python": platform.python_version(), **_versions()},
        "threads": {"torch": torch.get_num_threads(), "cores": system.allowed_cores()},
    }


def _versions() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES:
        if name in sys.modules:
            with contextlib.suppress(PackageNotFoundError):
                versions[name] = version(name)
    return versions


def _commit() -> str:
    """Return the commit of the working folder, with a ``+`` if tracked files differ. Empty outside of Git."""
    outputs: list[str] = []
    for command in (("rev-parse", "--short=12", "HEAD"), ("status", "--porcelain", "--untracked-files=no")):
        try:
            done = subprocess.run(
                ["git", *command],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_GIT_S,
                check=True,
                env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            )
        except (OSError, subprocess.SubprocessError):
            return outputs[0] if outputs else ""
        outputs.append(done.stdout.strip())
    return outputs[0] + ("+" if outputs[1] else "")


def _machine() -> str:
    """Return the processor, its cores, and the GPUs of torch."""
    parts = [f"{system.processor_name() or platform.machine()}, {os.cpu_count()} cores"]
    if torch.cuda.is_initialized():  # without this, the call would take memory of every GPU
        parts += [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return ", ".join(parts)

"""What a result was measured on: processor, cores, memory, kernel, versions. No names of machines or people."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from pathlib import Path
from typing import Any

PACKAGES = ("feedline", "numpy", "pyarrow", "torch", "scikit-learn", "scipy", "nanobind")


def describe() -> dict[str, Any]:
    """JSON types."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": f"{platform.system()} {platform.release().split('-')[0]} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: version for name in PACKAGES if (version := _version(name))},
    }


def processor() -> str:
    """Return the processor's model with its family, which distinguishes generations of one trade name."""
    facts: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            facts.setdefault(key.strip(), value.strip())
    except OSError:
        return platform.processor() or platform.machine()
    model = facts.get("model name", platform.machine())
    family = f" (family {facts['cpu family']} model {facts['model']})" if "cpu family" in facts else ""
    return model + family


def slug() -> str:
    """A short name for files: processor and cores."""
    name = re.sub(r"\(.*?\)|@.*", "", processor())
    name = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return f"{name}-{os.cpu_count()}-cores"


def load() -> float | None:
    """Return the average number of processes that wanted a core in the last minute. None where it is unknown."""
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        if name == "feedline":
            import feedline

            return feedline.__version__
        return None

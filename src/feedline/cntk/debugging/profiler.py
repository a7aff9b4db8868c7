"""`cntk.debugging.profiler`: CNTK's calls around torch's profiler. Perfetto and chrome://tracing show its traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["disable_profiler", "enable_profiler", "start_profiler", "stop_profiler"]

_folder: Path | None = None
_running: Any = None
_done: list[Any] = []


def start_profiler(dir: str = "profiler", sync_gpu: bool = True, reserve_mem: int = 32 << 20) -> None:
    """Prepare to profile. Recording begins with `enable_profiler`.

    Args:
        dir: folder for the traces, created by `stop_profiler`.
        sync_gpu, reserve_mem: accepted, without effect.

    Raises:
        RuntimeError: it was started before.
    """
    global _folder
    if _folder is not None:
        raise RuntimeError("expected stop_profiler() before a second start_profiler()")
    _folder = Path(dir)


def enable_profiler() -> None:
    """Begin to record. It has no effect before `start_profiler`, or while recording."""
    global _running
    if _folder is None or _running is not None:
        return
    import torch.profiler

    _running = torch.profiler.profile()
    _running.start()


def disable_profiler() -> None:
    """End recording."""
    global _running
    if _running is not None:
        _running.stop()
        _done.append(_running)
        _running = None


def stop_profiler() -> None:
    """End profiling, and write each recording to ``trace-<number>.json``."""
    global _folder
    disable_profiler()
    if _folder is None:
        return
    _folder.mkdir(parents=True, exist_ok=True)
    for number, recorded in enumerate(_done):
        recorded.export_chrome_trace(str(_folder / f"trace-{number}.json"))
    _done.clear()
    _folder = None

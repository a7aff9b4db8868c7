"""Find the debugger, profiler or coverage tool that Python calls for each line or function of this thread."""

from __future__ import annotations

import sys
from typing import Any

_monitoring: Any = getattr(sys, "monitoring", None)  # Python 3.12


def hook_name() -> str:
    """Return the name of the hook of this thread, such as ``"pydevd"``. Empty without a hook."""
    hook = sys.gettrace() or sys.getprofile()
    if hook is not None:
        return _name_of(hook)
    if _monitoring is None:
        return ""
    tools = [tool for tool in range(6) if _monitoring.get_tool(tool) is not None and _monitoring.get_events(tool)]
    return str(_monitoring.get_tool(tools[0])) if tools else ""


def _name_of(hook: Any) -> str:
    module = getattr(hook, "__module__", None) or type(hook).__module__
    name = getattr(hook, "__qualname__", None) or type(hook).__qualname__
    package = module.partition(".")[0].strip("_")
    return name if package in ("", "builtins", "main") else package

"""The texts of boxes and frames, in pictures and pages."""

from __future__ import annotations

import re
import textwrap

from feedline.graph.graph import Graph, Operation, Path, Scope, display_name, number, total
from feedline.graph.settings import brief

_NO_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
SETTINGS = 28  # characters in a line of settings


def printable(text: str) -> str:
    """Return a text with U+FFFD in place of characters that SVG and HTML do not allow."""
    return _NO_XML.sub("\ufffd", text)


def box_lines(graph: Graph, operation: Operation) -> list[str]:
    """Return the lines in the box of an operation: kind, name, settings, number of parameters."""
    count = total([graph.parameters[name].count for name in operation.parameters])
    lines = [operation.kind]
    if operation.role == "input":
        lines = [operation.name or operation.kind, *[str(t) for t in operation.outputs[:1] if t.shape is not None]]
    elif operation.whole:
        scope = graph.scopes[operation.scope]
        name = scope_name(operation.scope, scope)
        lines = [f"{scope.kind}{times(scope)}", *([name] if name != scope.kind else [])]
        lines += _only_first(operation.scope, scope)
    elif operation.name not in ("", operation.kind):
        lines.append(operation.name)
    settings = brief(operation.settings)
    if settings:
        lines += _wrap(settings)
    elif operation.inside:
        lines += operation.inside
    if count != 0:
        first = display_name(operation.scope[-1]) if operation.whole and graph.scopes[operation.scope].alike else ""
        lines.append(f"{number(count)} parameters" + (f" in {first}" if first else ""))
    return lines


def _wrap(settings: str) -> list[str]:
    """Break a line that is too long: first before the following operations, then after commas, then at spaces."""
    first, then, after = settings.partition(", then ")
    if len(settings) > SETTINGS and then:
        return [*_wrap(f"{first},"), *_wrap(f"then {after}")]
    lines = [""]
    for part in re.findall(r"[^,]+,?", settings):
        longer = lines[-1] + part
        lines[-1:] = [longer] if len(longer) <= SETTINGS else [lines[-1], part.strip()]
    return [short for line in lines for short in textwrap.wrap(line, SETTINGS)]


def times(scope: Scope) -> str:
    """Return the number of repetitions of a folded scope, empty if it does not repeat."""
    if scope.repeats == 1:
        return ""
    return f" ×{scope.repeats}" + (" (same weights)" if scope.tied else "")


def _only_first(path: Path, scope: Scope) -> list[str]:
    return [f"only {display_name(path[-1])}: {', '.join(scope.first_only)}"] if scope.first_only else []


def scope_name(path: Path, scope: Scope) -> str:
    """Return the module's name in its parent, with the number of the call unless it is the first."""
    around = path[-2].partition("@")[2] if len(path) > 1 else ""
    name = display_name(path[-1].removesuffix(f"@{around}") if around else path[-1])
    return f"{name} … {display_name(scope.last)}" if scope.repeats > 1 else name


def frame_label(path: Path, scope: Scope, continues: bool = False) -> str:
    """Return the title of a frame, or of its part in another column, in one or more lines."""
    name = scope_name(path, scope)
    label = f"{scope.kind}{times(scope)}" if name == scope.kind else f"{name}: {scope.kind}{times(scope)}"
    if continues:
        return f"{label}, continued"
    note = [f"numbers of parameters: those of {display_name(path[-1])}"] if scope.alike else []
    return "\n".join([label, *_only_first(path, scope), *note])

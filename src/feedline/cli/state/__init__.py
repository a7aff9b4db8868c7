"""``feedline state FILE``: the place, order and data that a saved state names, in words."""

from __future__ import annotations

import json as json_module
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from feedline.cli.console import Debug, Json, print_facts, print_result
from feedline.cli.state.words import facts_of, is_state
from feedline.errors import DataError

_DEEPEST = 32
_OF_CHECKPOINT = "state.json"


def state(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A JSON file, a torch file, or a checkpoint's folder.")],
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show in words what saved states say: place, order and data."""
    states = [{"key": key, **facts_of(found)} for key, found in states_in(read_file(file))]
    if not states:
        raise DataError(
            "expected a state of a MinibatchSource or a DataLoader in the file, got none",
            path=str(file),
            hint="save source.state_dict() or loader.state_dict() as JSON or with torch.save",
        )
    print_result({"file": str(file), "states": states}, json, _print)


def read_file(path: Path) -> Any:
    """Return the content of a file of JSON or of torch, or of a checkpoint's folder.

    Raises:
        DataError: it is missing, or holds neither.
    """
    path = path / _OF_CHECKPOINT if path.is_dir() else path
    try:
        with open(path, "rb") as file:
            # Files of torch, which may be large, begin with other bytes.
            if file.read(1) in (b"{", b"[", b" ", b"\n", b"\xef"):
                file.seek(0)
                return json_module.loads(file.read())
    except OSError as error:
        raise DataError(f"expected a file with a state, got {error.strerror}", path=str(path)) from None
    except (ValueError, RecursionError) as error:
        got = f"other text: {type(error).__name__}" if isinstance(error, RecursionError) else f"other text: {error}"
        raise DataError(f"expected a file of JSON or torch, got {got}", path=str(path)) from None
    try:
        import torch

        return torch.load(path, map_location="cpu", weights_only=True)
    except ModuleNotFoundError:
        got = "no JSON, and torch is not installed"
    except Exception as error:  # of many kinds
        reason = re.search(r"WeightsUnpickler error: .*", str(error))
        got = f"neither JSON nor a file that torch loads without running code{f': {reason[0]}' if reason else ''}"
    raise DataError(f"expected a file of JSON or torch, got {got}", path=str(path))


def states_in(content: Any, key: str = "", depth: int = 0) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the states in nested dictionaries and lists, each with its keys, such as ``loaders.train``."""
    if is_state(content):
        yield key, content
        return
    if depth == _DEEPEST or not isinstance(content, (Mapping, list, tuple)):
        return
    items = content.items() if isinstance(content, Mapping) else enumerate(content)
    for name, item in items:
        yield from states_in(item, f"{key}.{name}" if key else str(name), depth + 1)


def _print(about: dict[str, Any]) -> None:
    for saved in about["states"]:
        print_facts(saved["key"] or about["file"], {"of": saved["of"], **saved["facts"]})

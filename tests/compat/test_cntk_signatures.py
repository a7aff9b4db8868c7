"""Functions under CNTK's names take what CNTK's take: parameters by the same names, in the same places.

The fixture has the signatures of CNTK 2.7 by `inspect`, with defaults that are literals.
"""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import json

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from tests.docs.cntk_table import NAMES
from tests.docs.pages import ROOT

ORIGINAL = json.loads((ROOT / "tests" / "fixtures" / "signatures_of_cntk.json").read_text("utf-8"))

#: Functions that take their arguments otherwise, and why.
EXCEPTIONS = {
    "cntk.ops.combine": "CNTK's keywords are hidden in a dictionary",
    "cntk.ops.mean": "CNTK's keywords are hidden in a dictionary",
    "cntk.ops.splice": "CNTK's keywords are hidden in a dictionary",
    "cntk.ops.sum": "CNTK's keywords are hidden in a dictionary",
    "cntk.ops.functions.Function.load": "model formats: see the table",
    "cntk.ops.functions.Function.save": "model formats: see the table",
    "cntk.ops.functions.UserFunction.clone": "called by CNTK",
    "cntk.ops.functions.load_model": "model formats: see the table",
    "cntk.axis.Axis": "made by its methods",
    "cntk.device.DeviceDescriptor": "made by functions",
    "cntk.learners.Learner": "made by functions",
    "cntk.train.distributed.Communicator": "made by functions",
    "cntk.train.distributed.DistributedLearner": "made by functions",
    "cntk.train.distributed.WorkerDescriptor": "made by the communicator",
}

#: Defaults that differ, and why.
DEFAULTS = {
    "output_rank": "a number for none in CNTK",
    "filter_rank": "a number for none in CNTK",
    "seed": "a number for none in CNTK",
    "name": "CNTK has None or an empty text",
    "format": "model formats",
}


def ours(name):
    """Return the façade's object under a name of CNTK. None if the table calls it absent."""
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:cut])
        if module in NAMES or module == "cntk":
            found = importlib.import_module(f"feedline.{module}")
            for part in parts[cut:]:
                found = getattr(found, part, None)
                if found is None:
                    return None
            return found
    return None


def parameters_of(function):
    """Parameters by `inspect`, without ``self``."""
    found = list(inspect.signature(function).parameters.values())
    return [p for p in found if p.name != "self"]


def differences(name, text):
    function = ours(name)
    if function is None or not callable(function):
        return []
    if inspect.isclass(function) and issubclass(function, (int, str, tuple, enum.Enum, BaseException)):
        return []  # enumerations and records
    theirs = [part.partition("=") for part in text.split(" | ") if part]
    mine = parameters_of(function)
    takes = {p.kind for p in mine}
    positional = [p for p in mine if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    found = []
    for place, (parameter, _, default) in enumerate(theirs):
        if parameter.startswith("*"):
            continue
        own = next((p for p in mine if p.name == parameter), None)
        if own is None:
            if inspect.Parameter.VAR_KEYWORD not in takes:
                found.append(f"{parameter}: missing")
            continue
        if own in positional and positional.index(own) != place:
            found.append(f"{parameter}: place {positional.index(own)}, in CNTK {place}")
        if default not in ("", "...") and parameter not in DEFAULTS and own.default is not own.empty:
            expected, value = ast.literal_eval(default), own.default
            # Nothing is None, an empty list or dictionary, or an empty tuple.
            nothing = not (isinstance(expected, (bool, int, float)) or isinstance(value, (bool, int, float)))
            same = value == expected or (nothing and not expected and not value)
            same = same or (isinstance(value, tuple) and list(value) == expected)
            if not same and type(value).__name__ != "_Default":
                found.append(f"{parameter}: default {value!r}, in CNTK {expected!r}")
    return found


def test_signatures_match_cntk():
    found = {name: d for name, text in ORIGINAL.items() if name not in EXCEPTIONS and (d := differences(name, text))}
    assert found == {}


def test_a_difference_is_noticed():
    assert differences("cntk.ops.relu", "x | name=''") == []
    assert differences("cntk.ops.relu", "y | name=''") == ["y: missing"]
    assert differences("cntk.ops.elu", "name='' | x") == ["name: place 2, in CNTK 0", "x: place 0, in CNTK 1"]
    assert differences("cntk.ops.elu", "x | alpha=2.0") == ["alpha: default 1.0, in CNTK 2.0"]
    assert all(name in ORIGINAL for name in EXCEPTIONS)

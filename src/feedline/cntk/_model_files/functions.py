"""The functions of a model file, and what they refer to: identifiers resolved, nothing built.

A file lists leaves and functions by identifier; the output i of a function is called ``<function>_Output_<i>``. What a
block contains stands in the same list, over placeholders of its own, which the block maps to its operands. A
placeholder with the identifier of an output stands for that output, where the list has not come to it yet: the way in
which recurrences are closed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from feedline.cntk._model_files.op_codes import NAMES
from feedline.errors import CompatError, shown

_OUTPUT = "_Output_"
PARAMETER, CONSTANT, PLACEHOLDER = 2, 3, 4  # kinds of leaves; 0: inputs


class LayoutError(Exception):
    """A dictionary is not that of a model; the text follows "expected"."""


@dataclass(frozen=True, slots=True)
class FileFunction:
    """A function of a file.

    Attributes:
        kind: CNTK's name of the operation; ``Block`` for blocks.
        uid: identifier.
        name: name given by the user.
        inputs: identifiers of the operands.
        attributes: settings by CNTK's names.
        block: kind of a block; empty for others.
        root: identifier of the function that computes a block's outputs.
        arguments: identifier of the operand for each of a block's placeholders.
    """

    kind: str
    uid: str
    name: str
    inputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    block: str = ""
    root: str = ""
    arguments: tuple[tuple[str, str], ...] = ()

    @property
    def label(self) -> str:
        """Kind, name and identifier, for messages."""
        kind = f"{self.block} block" if self.block else self.kind
        return f"{kind} `{self.name or self.uid}`" + (f" ({self.uid})" if self.name else "")


class FileModel:
    """Leaves and functions of a model file.

    Args:
        dictionary: content of the file.

    Attributes:
        leaves: dictionary of each leaf by identifier, in the file's order.
        functions: functions by identifier, in the file's order.
        root: identifier of the function that computes the model's outputs.

    Raises:
        LayoutError: the dictionary is not that of a model.
        CompatError: a function that Python code computes.
    """

    def __init__(self, dictionary: Mapping[str, Any]) -> None:
        kind = dictionary.get("type")
        if kind != "CompositeFunction":
            raise LayoutError(f"a function, got {_what(dictionary)}")
        self.leaves: dict[str, Mapping[str, Any]] = {
            wanted(leaf, "uid", str): leaf for leaf in wanted(dictionary, "inputs", list)
        }
        given = (_function(about) for about in wanted(dictionary, "primitive_functions", list))
        self.functions = {function.uid: function for function in given}
        self.root: str = wanted(dictionary, "root", str)
        self._stands_for = {key: value for f in self.functions.values() for key, value in f.arguments}
        if self.root not in self.functions:
            raise LayoutError(f"the function {self.root}, which is its root, got {len(self.functions)} others")

    def source(self, uid: str) -> str:
        """Return the identifier of the leaf or output that another one stands for."""
        seen = set()
        while uid in self._stands_for:
            if uid in seen:
                raise LayoutError(f"operands of blocks, got a block whose operand {uid} is its own placeholder")
            seen.add(uid)
            uid = self._stands_for[uid]
        return uid

    def owner(self, uid: str) -> tuple[FileFunction, int] | None:
        """Return the function and the number of its output; None for a leaf.

        Raises:
            LayoutError: there is no such leaf or output.
        """
        uid = self.source(uid)
        name, _, number = uid.rpartition(_OUTPUT)
        if name in self.functions and number.isdigit():
            return self.functions[name], int(number)
        if uid not in self.leaves:
            raise LayoutError(f"a leaf or an output {uid}, which an operation reads, got none")
        return None

    def outputs(self, uid: str) -> list[str]:
        """Return identifiers of the outputs of a function."""
        function = self.functions.get(uid)
        if function is None:
            raise LayoutError(f"the function {uid}, which a block consists of, got none")
        if function.kind == "Combine":
            return [self.source(given) for given in function.inputs]
        count = 1
        if function.kind == "Block":
            count = len(self.outputs(function.root))
        elif function.kind == "TopK":
            count = 2
        elif function.kind == "UnpackSequence":
            count = 1 if function.attributes.get("sequenceUnpackSuppressMaskOutput", False) else 2
        return [f"{uid}{_OUTPUT}{i}" for i in range(count)]

    def computed_by(self, uid: str, *kinds: str) -> FileFunction | None:
        """Return the function that computes a value, if it is of one of these kinds."""
        found = self.owner(uid)
        return found[0] if found is not None and found[0].kind in kinds else None


def wanted(about: Mapping[str, Any], key: str, kind: type) -> Any:
    """Return what a dictionary has under a key.

    Raises:
        LayoutError: it has nothing, or something of another type.
    """
    value = about.get(key)
    if not isinstance(value, kind):
        raise LayoutError(
            f"{kind.__name__} under {key!r} of {about.get('uid', 'the model')}, got {shown(value, 80)} among "
            f"{', '.join(map(str, about))}"
        )
    return value


def _what(dictionary: Mapping[str, Any]) -> str:
    if "Learners" in dictionary:
        return "a trainer's checkpoint (.ckp): load the model's file, without .ckp"
    return f"a dictionary of {shown(dictionary.get('type', sorted(dictionary)), 120)}"


def _function(about: Any) -> FileFunction:
    if not isinstance(about, Mapping):
        raise LayoutError(f"dictionaries of functions, got {shown(about, 80)}")
    uid, name = wanted(about, "uid", str), about.get("name", "")
    inputs: Sequence[str] = wanted(about, "inputs", list)
    if about.get("type") == "UserDefinedFunction":
        raise CompatError(
            f"UserFunction `{name or uid}`: expected operations, got Python or C++ code, {_code(about)}; build the "
            "network with a UserFunction, and take the parameters from the file by restore"
        )
    code = wanted(about, "op", int)
    if code not in NAMES:
        raise CompatError(
            f"operation {code} `{name or uid}`: expected one of CNTK 2.7, got a number that it does not have; build "
            "this part in Python, and take the parameters from the file by restore"
        )
    kind, attributes = NAMES[code], wanted(about, "attributes", dict)
    if kind != "Block":
        return FileFunction(kind, uid, name, tuple(inputs), attributes)
    inside = wanted(about, "block_function_composite", dict)
    keys, values = (wanted(about, f"block_function_composite_arguments_map_{key}", list) for key in ("keys", "values"))
    if len(keys) != len(values):
        raise LayoutError(f"as many operands as placeholders of the block {uid}, got {len(values)} for {len(keys)}")
    return FileFunction(
        kind,
        uid,
        name,
        tuple(inputs),
        attributes,
        wanted(about, "block_function_op_name", str),
        wanted(inside, "root", str),
        tuple(zip(keys, values, strict=True)),
    )


def _code(about: Mapping[str, Any]) -> str:
    state = about.get("user_defined_state")
    state = state if isinstance(state, Mapping) else {}
    found = [str(state[key]) for key in ("module", "class", "op", "op_name", "deserialize_method") if key in state]
    return ".".join(found) or "which the file does not name"

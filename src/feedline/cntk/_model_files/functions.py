"""The functions of a model file, with their identifiers resolved, before any node is built.

A file lists leaves and functions by identifier. The output i of a function is called ``<function>_Output_<i>``. The
content of a block is in the same list, over placeholders that the block maps to its operands. A placeholder with the
identifier of an output that comes later in the list is that output: so recurrences are closed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from feedline.cntk._model_files.op_codes import NAMES
from feedline.errors import CompatError, shown

_OUTPUT = "_Output_"
PARAMETER, CONSTANT, PLACEHOLDER = 2, 3, 4  # kinds of leaves; 0: inputs
USER = "UserFunction"


class LayoutError(Exception):
    """A dictionary that is not a model. The text follows "expected"."""


@dataclass(frozen=True, slots=True)
class FileFunction:
    """A function of a file.

    Attributes:
        kind: CNTK's name of the operation, ``Block`` for blocks, `USER` for code in Python.
        uid: identifier.
        name: name given by the user.
        inputs: identifiers of the operands.
        attributes: settings by CNTK's names.
        block: kind of a block, otherwise empty.
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
        LayoutError: the dictionary is not a model.
        CompatError: a function that C++ code of the user computes.
    """

    def __init__(self, dictionary: Mapping[str, Any]) -> None:
        kind = dictionary.get("type")
        if kind != "CompositeFunction":
            raise LayoutError(f"a function, got {_describe(dictionary)}")
        self.leaves: dict[str, Mapping[str, Any]] = {
            entry(leaf, "uid", str): leaf for leaf in entry(dictionary, "inputs", list)
        }
        functions = (_function(about) for about in entry(dictionary, "primitive_functions", list))
        self.functions = {function.uid: function for function in functions}
        self.root: str = entry(dictionary, "root", str)
        self._placeholders = {key: value for f in self.functions.values() for key, value in f.arguments}
        if self.root not in self.functions:
            raise LayoutError(f"the root function {self.root}, got {len(self.functions)} functions without it")

    def source(self, uid: str) -> str:
        """Return the identifier of a leaf or output, resolving placeholders of blocks."""
        visited = set()
        while uid in self._placeholders:
            if uid in visited:
                raise LayoutError(f"operands of blocks, got a block whose operand {uid} is its own placeholder")
            visited.add(uid)
            uid = self._placeholders[uid]
        return uid

    def owner(self, uid: str) -> tuple[FileFunction, int] | None:
        """Return the function and the number of its output, or None for a leaf.

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
            return [self.source(operand) for operand in function.inputs]
        count = 1
        if function.kind == USER:  # the file does not say how many it has
            stem = f"{uid}{_OUTPUT}"
            read = [name for f in self.functions.values() for name in f.inputs if name.startswith(stem)]
            count = 1 + max((int(name.removeprefix(stem)) for name in read), default=0)
        elif function.kind == "Block":
            count = len(self.outputs(function.root))
        elif function.kind == "TopK":
            count = 2
        elif function.kind == "UnpackSequence":
            count = 1 if function.attributes.get("sequenceUnpackSuppressMaskOutput", False) else 2
        return [f"{uid}{_OUTPUT}{i}" for i in range(count)]

    def computed_by(self, uid: str, *kinds: str) -> FileFunction | None:
        """Return the function that computes a value, if it is of one of these kinds."""
        owner = self.owner(uid)
        return owner[0] if owner is not None and owner[0].kind in kinds else None


def entry(item: Mapping[str, Any], key: str, kind: type) -> Any:
    """Return the value of a dictionary's key.

    Raises:
        LayoutError: the key is missing, or its value is of another type.
    """
    value = item.get(key)
    if not isinstance(value, kind):
        raise LayoutError(
            f"{kind.__name__} under {key!r} of {item.get('uid', 'the model')}, got {shown(value, 80)} among "
            f"{', '.join(map(str, item))}"
        )
    return value


def _describe(dictionary: Mapping[str, Any]) -> str:
    if "Learners" in dictionary:
        return "a trainer's checkpoint (.ckp): load the model's file, without .ckp"
    return f"a dictionary of {shown(dictionary.get('type', sorted(dictionary)), 120)}"


def _function(item: Any) -> FileFunction:
    if not isinstance(item, Mapping):
        raise LayoutError(f"dictionaries of functions, got {shown(item, 80)}")
    uid, name = entry(item, "uid", str), item.get("name", "")
    inputs: Sequence[str] = entry(item, "inputs", list)
    if item.get("type") == "UserDefinedFunction":
        state = item.get("user_defined_state")
        if item.get("native") or not isinstance(state, Mapping) or "class" not in state:
            raise CompatError(
                f"{USER} `{name or uid}`: expected operations, got C++ code; build the network with a UserFunction, "
                "and take the parameters from the file by restore"
            )
        return FileFunction(USER, uid, name, tuple(inputs), state)
    code = entry(item, "op", int)
    if code not in NAMES:
        raise CompatError(
            f"operation {code} `{name or uid}`: expected an operation of CNTK 2.7, got a number that it does not "
            "have; build this part in Python, and take the parameters from the file by restore"
        )
    kind, attributes = NAMES[code], entry(item, "attributes", dict)
    if kind != "Block":
        return FileFunction(kind, uid, name, tuple(inputs), attributes)
    inside = entry(item, "block_function_composite", dict)
    keys, values = (entry(item, f"block_function_composite_arguments_map_{key}", list) for key in ("keys", "values"))
    if len(keys) != len(values):
        raise LayoutError(f"as many operands as placeholders of the block {uid}, got {len(values)} for {len(keys)}")
    return FileFunction(
        kind,
        uid,
        name,
        tuple(inputs),
        attributes,
        entry(item, "block_function_op_name", str),
        entry(inside, "root", str),
        tuple(zip(keys, values, strict=True)),
    )

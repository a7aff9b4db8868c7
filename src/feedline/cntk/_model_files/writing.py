"""Writing CNTK's model files: from nodes of a graph to a dictionary.

Each node becomes a function, or a block of functions where CNTK composes the operation. Recurrences become cycles:
functions read the next value of a state by its identifier before it is in the list, and a placeholder of that
identifier is among the leaves. Blocks of layers become blocks of the file, if nothing outside reads a node inside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from feedline.cntk._model_files.compositions import GATHER_PACKED, SCATTER_PACKED, Composition, composition
from feedline.cntk._model_files.dictionaries import write_dictionary
from feedline.cntk._model_files.file_values import DATA_TYPES, DYNAMIC, UNKNOWN_AXES, FileAxis, Shape, Signed
from feedline.cntk._model_files.functions import CONSTANT, PARAMETER, PLACEHOLDER
from feedline.cntk._model_files.layers import Block, whole_blocks
from feedline.cntk._model_files.op_codes import CODES
from feedline.cntk._model_files.operators import BATCH_AXIS
from feedline.cntk._model_files.settings import primitive
from feedline.cntk._nodes import constant_node, needs_gradient
from feedline.cntk._order import in_order
from feedline.errors import CompatError
from feedline.networks import BATCH, Node
from feedline.networks.cells import CELLS, open_cell
from feedline.networks.node import placeholder_node
from feedline.networks.traverse import loop_parts, replace, topological

# Versions of CNTK 2.7's formats of functions.
_COMPOSITE, _PRIMITIVE, _BLOCK, _VARIABLE = 1, 24, 1, 1
_NUMBER = {name: number for number, name in DATA_TYPES.items()}
_KINDS = {"input": 0, "parameter": PARAMETER, "constant": CONSTANT, "placeholder": PLACEHOLDER}


def write_model(path: Path, roots: Sequence[Node]) -> None:
    """Write a graph to a file that CNTK 2.7 reads, atomically replacing ``path``.

    Raises:
        CompatError: an operation that CNTK does not have. The error names it.
        ValueError: a shape that is not known yet.
    """
    write_dictionary(path, _Writer().model(roots))


class _Writer:
    def __init__(self) -> None:
        self._leaves: list[dict[str, Any]] = []
        self._functions: list[dict[str, Any]] = []
        self._counts: Counter[str] = Counter()
        self._uids: dict[Node, str] = {}  # of leaves, and of the outputs of other nodes
        self._listed: set[str] = set()  # leaves and outputs in the lists
        self._early: dict[str, Node] = {}  # outputs with a placeholder, since a function reads them before
        self._ends: dict[Node, Node] = {}  # the next value of each state
        self._opened: dict[Node, Node] = {}  # outputs of fused recurrences
        self._pairs: dict[Any, str] = {}  # functions of two outputs, each of which is a node
        self._composed: dict[Node, Composition | None] = {}
        self._inline: dict[Node, Node] = {}
        self._blocks: dict[Node, Block] = {}  # of outputs of layers
        self._block_uids: dict[Block, str] = {}
        self._masked: list[Node] = []  # sequences whose steps are masked somewhere

    def model(self, roots: Sequence[Node]) -> dict[str, Any]:
        """Return the dictionary of a graph."""
        self._masked = [node.inputs[0] for node in topological(roots) if node.op == "sequence_mask"]
        self._write_whole(roots)
        owner = self._root([self._uid(root) for root in roots])
        return {
            "version": _COMPOSITE,
            "type": "CompositeFunction",
            "root": owner,
            "uid": self._new("CompositeFunction"),
            "inputs": self._in_order(roots),
            "primitive_functions": self._functions,
            "state": {},
        }

    def _in_order(self, roots: Sequence[Node]) -> list[dict[str, Any]]:
        """Return the leaves in CNTK's order, on which its `restore` relies."""
        place = {self._uids[node]: i for i, node in enumerate(in_order(roots)) if node in self._uids and node.is_leaf}
        return sorted(self._leaves, key=lambda leaf: place.get(leaf["uid"], len(place)))

    def _root(self, outputs: Sequence[str]) -> str:
        """Return a function that has exactly these outputs, a new one if need be."""
        owner = outputs[0].rpartition("_Output_")[0]
        several = [*self._pairs.values(), *(uid for b, uid in self._block_uids.items() if len(b.outputs) > 1)]
        if len(outputs) > 1 or not owner or owner in several:
            owner = self._new("Combine")
            self._functions.append(_function(owner, "Combine", outputs, {}))
        return owner

    # ---- identifiers ------------------------------------------------------------------------------

    def _new(self, kind: str) -> str:
        self._counts[kind] += 1
        return f"{kind}{self._counts[kind]}"

    def _resolve_alias(self, node: Node) -> Node:
        """Return the node that the file has in place of this one."""
        while True:
            if node in self._blocks:
                return node
            if node.op == "alias" and (not node.name or node.name == node.inputs[0].name):
                node = node.inputs[0]
            elif node.op == "pick":
                outputs, states = loop_parts(node.inputs[0])
                self._ends.update(zip(states, outputs[len(outputs) - len(states) :], strict=True))
                node = outputs[node.attributes["index"]]
            elif node.op in CELLS:
                if node not in self._opened:
                    self._opened[node], ends = open_cell(node)
                    self._ends.update(ends)
                node = self._opened[node]
            elif node in self._ends:
                node = self._ends[node]
            elif self._composition(node) is not None and not self._composed[node].block:  # type: ignore[union-attr]
                node = self._inline_call(node)
            else:
                return node

    def _composition(self, node: Node) -> Composition | None:
        if node not in self._composed:
            self._composed[node] = None if node.is_leaf else composition(node)
        return self._composed[node]

    def _inline_call(self, node: Node) -> Node:
        if node not in self._inline:
            recipe = self._composed[node]
            assert recipe is not None
            built = recipe.build(*node.inputs)
            if node.name and built not in node.inputs:
                built = Node(built.op, built.inputs, built.attributes, built.given, node.name)
            self._inline[node] = built
        return self._inline[node]

    def _uid(self, node: Node) -> str:
        node = self._resolve_alias(node)
        if node not in self._uids:
            if node.is_leaf:
                self._uids[node] = self._new(node.op.capitalize())
            elif node in self._blocks:
                block = self._blocks[node]
                if block not in self._block_uids:
                    self._block_uids[block] = self._new("Block")
                self._uids[node] = f"{self._block_uids[block]}_Output_{block.outputs.index(node)}"
            elif node.op in ("top_k", "sequence_unpacked", "sequence_mask"):
                self._uids[node] = self._of_pair(node)
            else:
                self._uids[node] = f"{self._new(self._kind(node))}_Output_0"
        return self._uids[node]

    def _of_pair(self, node: Node) -> str:
        get, below = node.attributes, self._resolve_alias(node.inputs[0])
        if node.op == "top_k":
            key: Any = ("TopK", below, get["k"])
            number = int(get["indices"])
        else:
            if node.op == "sequence_mask" and get.get("span") is not None:
                raise self._refusal(node)
            number = int(node.op == "sequence_mask")
            # A mask goes with steps of any padding.
            padding = next((k[2] for k in self._pairs if k[:2] == ("UnpackSequence", below)), 0.0)
            key = ("UnpackSequence", below, padding if number else get["padding"])
        if key not in self._pairs:
            self._pairs[key] = self._new(key[0])
        return f"{self._pairs[key]}_Output_{number}"

    def _kind(self, node: Node) -> str:
        if self._composition(node) is not None:
            return "Block"
        if node.op in (GATHER_PACKED, SCATTER_PACKED):
            return "GatherPacked" if node.op == GATHER_PACKED else "ScatterPacked"
        parts = primitive(node)
        if parts is None:
            raise self._refusal(node)
        return parts[0]

    def _refusal(self, node: Node) -> CompatError:
        if node.op in ("user", "user_output"):
            return CompatError(
                f"{node.label}: expected operations, got Python code; save the parameters alone, or the parts around it"
            )
        if node.op == "late":
            return CompatError(f"{node.label}: expected known shapes to write its parts: replace placeholders first")
        return CompatError(
            f"{node.label}: expected an operation that CNTK's files can hold, got one that they cannot; save without "
            "a format, and feedline loads it again"
        )

    # ---- leaves and functions ---------------------------------------------------------------------

    def _write_whole(self, roots: Sequence[Node]) -> None:
        """Write some nodes, and the states below them that only the next step reads."""
        earlier = set(self._early)
        self._blocks.update(whole_blocks(roots))
        self._write(roots)
        while states := [n for uid, n in self._early.items() if uid not in self._listed and uid not in earlier]:
            self._write(states)

    def _write(self, roots: Sequence[Node]) -> None:
        """List all nodes below some nodes, each after the nodes that it reads, except for states."""
        for node in topological([self._resolve_alias(root) for root in roots], self._below):
            uid = self._uid(node)
            if uid in self._listed:
                continue
            self._listed.add(uid)
            if node.is_leaf:
                self._leaves.append(_leaf(node, uid))
            else:
                self._add(node, uid.rpartition("_Output_")[0])

    def _below(self, node: Node) -> Iterator[Node]:
        """Yield the nodes that a node reads, without the state of a delay, which may come later."""
        for i, child in enumerate(self._blocks[node].operands if node in self._blocks else node.inputs):
            if node.op == "delay" and i == 0 and self._is_state(child):
                continue
            yield self._resolve_alias(child)

    def _is_state(self, node: Node) -> bool:
        while node.op == "alias" and node not in self._blocks:
            node = node.inputs[0]
        return node in self._ends

    def _read(self, node: Node) -> str:
        """Return the identifier of an operand, with a placeholder for one that comes later."""
        uid = self._uid(node)
        if uid not in self._listed and uid not in self._early:
            self._early[uid] = self._resolve_alias(node)
            self._leaves.append(_leaf(placeholder_node(*_type_parts(self._early[uid])), uid))
        return uid

    def _number(self, value: float) -> str:
        node = constant_node(np.float32(value))
        uid = self._uid(node)
        self._leaves.append(_leaf(node, uid))
        self._listed.add(uid)
        return uid

    def _add(self, node: Node, uid: str) -> None:
        recipe = self._composition(node)
        if node in self._blocks:
            self._add_layer(self._blocks[node], uid)
        elif recipe is not None:
            stand_ins = [placeholder_node(*_type_parts(child)) for child in node.inputs]
            block = self._block(uid, recipe.block, [recipe.build(*stand_ins)], (stand_ins, node.inputs), node.name)
            block["attributes"] = dict(recipe.attributes)
            self._functions.append(block)
        elif node.op in (GATHER_PACKED, SCATTER_PACKED):
            self._add_packed(node, uid)
        elif node.op in ("top_k", "sequence_unpacked", "sequence_mask"):
            self._add_pair(node, uid)
        else:
            parts = primitive(node)
            if parts is None:
                raise self._refusal(node)
            kind, operands, settings = parts
            inputs = [self._read(x) if isinstance(x, Node) else self._number(x) for x in operands]
            self._functions.append(_function(uid, kind, inputs, settings, node.name))

    def _add_pair(self, node: Node, uid: str) -> None:
        if any(function["uid"] == uid for function in self._functions):
            return
        settings: dict[str, Any]
        if node.op == "top_k":
            settings, kind = {"axis": FileAxis(0), "numItems": int(node.attributes["k"])}, "TopK"
        else:
            key = next(key for key, function_uid in self._pairs.items() if function_uid == uid)
            maskless = not any(self._resolve_alias(data) is key[1] for data in self._masked)
            settings = {"sequenceUnpackPaddingValue": float(key[2]), "sequenceUnpackSuppressMaskOutput": maskless}
            kind = "UnpackSequence"
        self._functions.append(_function(uid, kind, [self._read(node.inputs[0])], settings, node.name))

    def _add_packed(self, node: Node, uid: str) -> None:
        """Write the selection of steps: their numbers, their places among the rows, and the rows."""
        data, condition = (self._read(x) for x in node.inputs)
        settings: dict[str, Any] = {}
        if "additive" in node.attributes:
            settings = {
                "newSequenceAxisLengthScalingFactor": int(node.attributes["scaling"]),
                "newSequenceAxisLengthAdditiveFactor": Signed(node.attributes["additive"]),
            }
        where, index = self._new("Where"), self._new("PackedIndex")
        gathers = node.op == GATHER_PACKED
        self._functions += [
            _function(where, "Where", [condition], settings),
            _function(index, "PackedIndex", [data if gathers else condition, f"{where}_Output_0"], {}),
        ]
        operands = [data, f"{index}_Output_0"] if gathers else [data, f"{index}_Output_0", condition]
        self._functions.append(_function(uid, "GatherPacked" if gathers else "ScatterPacked", operands, {}, node.name))

    def _add_layer(self, block: Block, uid: str) -> None:
        stand_ins = [placeholder_node(*_type_parts(operand)) for operand in block.operands]
        bodies = replace(block.inside, dict(zip(block.operands, stand_ins, strict=True)))
        self._listed.update(self._uid(output) for output in block.outputs)
        self._functions.append(self._block(uid, block.kind, bodies, (stand_ins, block.operands), block.name))

    def _block(
        self, uid: str, kind: str, bodies: Sequence[Node], operands: tuple[Sequence[Node], Sequence[Node]], name: str
    ) -> dict[str, Any]:
        """Write the content of a block, and return the block.

        Args:
            uid: identifier.
            kind: kind of block.
            bodies: nodes of the outputs, over placeholders.
            operands: placeholders, and the nodes that they replace.
            name: name given by the user.
        """
        operand_uids = [self._read(child) for child in operands[1]]
        leaves = len(self._leaves)
        self._write_whole(bodies)
        weights = [leaf["uid"] for leaf in self._leaves[leaves:] if leaf["kind"] in (PARAMETER, CONSTANT)]
        used = [(self._uids[s], value) for s, value in zip(operands[0], operand_uids, strict=True) if s in self._uids]
        block = _function(uid, "Block", [*weights, *(value for _, value in used)], {}, name)
        block["version"] = _BLOCK
        block["block_function_op_name"] = kind
        block["block_function_composite"] = {
            "version": _COMPOSITE,
            "type": "CompositeFunction",
            "root": self._root([self._uid(body) for body in bodies]),
            "uid": self._new("CompositeFunction"),
        }
        block["block_function_composite_arguments_map_keys"] = [key for key, _ in used]
        block["block_function_composite_arguments_map_values"] = [value for _, value in used]
        return block


def _type_parts(node: Node) -> tuple[Any, Any]:
    return node.type.shape, node.type.axes


def _function(uid: str, kind: str, inputs: Sequence[str], settings: dict[str, Any], name: str = "") -> dict[str, Any]:
    function: dict[str, Any] = {
        "version": _PRIMITIVE,
        "type": "PrimitiveFunction",
        "uid": uid,
        "inputs": list(inputs),
        "op": CODES[kind],
        "attributes": dict(settings),
    }
    if name:
        function["name"] = name
    return function


def _leaf(node: Node, uid: str) -> dict[str, Any]:
    from feedline.networks.compile import tensor_of

    shape, axes = node.type.shape, node.type.axes
    leaf: dict[str, Any] = {
        "version": _VARIABLE,
        "type": "Variable",
        "uid": uid,
        "kind": _KINDS[node.op],
        "data_type": _NUMBER[node.dtype],
        "dynamic_axis": [FileAxis(UNKNOWN_AXES)] if axes is None else [_axis(name) for name in reversed(axes)],
        "is_sparse": node.sparse,
        "needs_gradient": needs_gradient(node),
        "shape": Shape((-2,) if shape is None else shape),
    }
    if node.name:
        leaf["name"] = node.name
    if node.weights is not None:
        if not node.weights.is_fixed:
            raise ValueError(f"{node.label}: expected a known shape, got {node.weights.shape}: apply its layer first")
        leaf["value"] = tensor_of(node.weights).detach().cpu().numpy()
    return leaf


def _axis(name: str) -> FileAxis:
    return FileAxis(DYNAMIC, BATCH_AXIS, False) if name == BATCH else FileAxis(DYNAMIC, name, True)

"""Blocks of a graph that can be blocks of a file: parts that read only their operands, and that nothing else reads.

A block of the graph is a name for some of its nodes. A block of a file is a separate function, over placeholders. So
only the content of a block is written if a node outside it reads a node inside, as after `Function.find_by_name`, or
if a step captures a variable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from feedline.networks import Node
from feedline.networks.traverse import loop_parts, topological


@dataclass(frozen=True, eq=False, slots=True)
class Block:
    """A block, with all its outputs.

    Attributes:
        kind: kind of block, such as ``LSTM``.
        name: name given by the user.
        outputs: the nodes of its outputs.
        operands: nodes that it is applied to, without parameters and constants.
    """

    kind: str
    name: str
    outputs: tuple[Node, ...]
    operands: tuple[Node, ...]

    @property
    def inside(self) -> list[Node]:
        """The nodes that compute the outputs."""
        return [output.inputs[0] for output in self.outputs]


def whole_blocks(roots: Sequence[Node]) -> dict[Node, Block]:
    """Return the block of each output of the outermost blocks that can be written as blocks.

    Args:
        roots: outputs of the graph.
    """
    order = topological(roots)
    groups: dict[tuple[object, ...], list[Node]] = {}
    readers: dict[Node, list[Node]] = {}
    for node in order:
        for child in node.inputs:
            readers.setdefault(child, []).append(node)
        if "block" in node.attributes:
            key = (node.attributes["block"], node.attributes.get("instance", ""), *node.inputs[1:])
            groups.setdefault(key, []).append(node)
    blocks: dict[Node, Block] = {}
    results = set(roots)
    for (kind, name, *operands), outputs in groups.items():
        inputs = tuple(dict.fromkeys(x for x in operands if isinstance(x, Node) and x.weights is None))
        block = Block(str(kind), str(name), tuple(outputs), inputs)
        if _is_whole(block, readers, results):
            blocks.update(dict.fromkeys(outputs, block))
    return blocks


def _is_whole(block: Block, readers: dict[Node, list[Node]], results: set[Node]) -> bool:
    border = set(block.operands)
    if border.intersection(block.inside):
        return False
    inside = topological(block.inside, lambda node: [] if node in border else node.inputs)
    body = {node for node in inside if node not in border}
    states = {state for node in body if node.op == "loop" for state in loop_parts(node)[1]}
    allowed = body.union(block.outputs)
    for node in body:
        if node.weights is not None:
            continue
        if (node.is_leaf and node not in states) or node in results:
            return False
        if not allowed.issuperset(readers[node]):
            return False
    return True

"""Compares the stub of `feedline._native` with the compiled module.

Every name of one must be in the other, and signatures must agree in length. Otherwise it lists the differences and
exits with 1. nanobind's stub generator does not know the types of buffers, so the stub is written by hand.
"""

import ast
import re
import sys
from pathlib import Path

import feedline
from feedline import _native

stub = Path(feedline.__file__).parent / "_native" / "__init__.pyi"
if not stub.exists():
    stub = Path(__file__).parent.parent / "src" / "feedline" / "_native" / "__init__.pyi"
tree = ast.parse(stub.read_text())
#: Classes of the stub alone, which others derive from.
shared = {node.name: node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name.startswith("_")}


def arity(text: str) -> int | None:
    """Number of parameters in nanobind's signature line, `self` left out."""
    match = re.match(r"\w+\((.*)\) ->", text.splitlines()[0] if text else "")
    if match is None:
        return None
    try:
        call = ast.parse(f"def f({match[1]}): ...").body[0]
    except SyntaxError:
        return None
    assert isinstance(call, ast.FunctionDef)
    names = [a.arg for a in call.args.posonlyargs + call.args.args + call.args.kwonlyargs]
    return len([n for n in names if n != "self"])


def compare(where: str, nodes: list[ast.stmt], owner: object) -> list[str]:
    """Differences between a scope of the stub and a module or class."""
    wrong = []
    declared = {}
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            declared[node.name] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            declared[node.target.id] = node
    actual = {n for n in vars(owner) if not n.startswith("_")}
    wrong += [f"{where}{name}: in the module, not in the stub" for name in sorted(actual - declared.keys())]
    for name, node in declared.items():
        if name in shared:
            continue
        if name in ("__init__", "__buffer__"):  # buffers are an attribute from Python 3.12 on only
            continue
        if not hasattr(owner, name):
            wrong.append(f"{where}{name}: in the stub, not in the module")
            continue
        member = getattr(owner, name)
        if isinstance(node, ast.ClassDef):
            bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
            body = node.body + [child for base in bases for child in shared.get(base, [])]
            wrong += compare(f"{where}{name}.", body, member)
        elif isinstance(node, ast.FunctionDef) and not node.decorator_list:
            expected = len([a for a in node.args.args + node.args.kwonlyargs if a.arg != "self"])
            got = arity(getattr(member, "__doc__", None) or "")
            if got is not None and got != expected:
                wrong.append(f"{where}{name}: the stub has {expected} parameters, the module {got}")
    return wrong


differences = compare("", tree.body, _native)
print("\n".join(differences) or f"stub agrees with {_native.__name__}")
sys.exit(bool(differences))

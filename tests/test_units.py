"""An internal parameter, field or constant that measures time or bytes has the unit in its name.

Public names have the unit in the first words of their description.
"""

import ast
import re
from pathlib import Path

import feedline
import feedline.audio
import feedline.images
import feedline.kvstore
import feedline.train

ROOT = Path(feedline.__file__).parent
FACADES = ("cntk", "mxnet")  # their names are the originals' names
PUBLIC = {
    *feedline.__all__,
    *feedline.audio.__all__,
    *feedline.images.__all__,
    *feedline.kvstore.__all__,
    *feedline.train.__all__,
}
#: Words that distinguish neither seconds from milliseconds nor bytes from elements.
UNCLEAR = (
    "backoff|budget|deadline|delay|duration|elapsed|every|grace|interval|memory|patience|pause|timeout|ttl|wait|waited"
)
NUMBER = re.compile(r"\b(int|float|Any)\b")
CONSTANT = re.compile(rf"_?({UNCLEAR})s?".upper())

#: Files, or names in them, that are public all the same, in files that people have, or in a unit that varies.
KNOWN = {
    "cli/": "options of the command line",
    "feed/conversion/convert.py": "helpers of convert and open_corpus, which pass their arguments on",
    "feed/formats/hdf5_zarr/stored_arrays.py memory": "an argument of HDF5Deserializer and ZarrDeserializer",
    "feed/loader/options.py timeout": "an argument of DataLoader",
    "feed/files/lru.py budget": "in the unit of its costs",
    "feed/conversion/shuffling.py memory": "in the plan of interrupted work",
    "kvstore/parameter_server/store.py": "arguments of kvstore.create",
    "train/saving.py duration": "text with a unit, or seconds",
}


def measures(path):
    """Yield (name, owner, line) for parameters, fields and constants of a module that hold a number with a unit."""
    tree = ast.parse(path.read_text())
    owners = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        within = owners.get(node)
        owner = within.name if isinstance(within, ast.ClassDef) else getattr(node, "name", None)
        if isinstance(node, ast.FunctionDef):
            held = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            found = [(a.arg, a.annotation) for a in held]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found = [(node.target.id, node.annotation)]
        elif isinstance(node, ast.Assign) and isinstance(within, ast.Module):
            names = [n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)]
            yield from ((name, None, node.lineno) for name in names if CONSTANT.fullmatch(name))
            continue
        else:
            continue
        for name, kind in found:
            if re.fullmatch(UNCLEAR, name.strip("_")) and kind is not None and NUMBER.search(ast.unparse(kind)):
                yield name, owner, node.lineno


def test_bare_numbers_have_their_unit_in_the_name():
    unclear = []
    for path in sorted(ROOT.rglob("*.py")):
        file = path.relative_to(ROOT).as_posix()
        if file.split("/")[0] in FACADES:
            continue
        for name, owner, line in measures(path):
            known = any(f"{file} {name}".startswith(entry) for entry in KNOWN)
            if owner not in PUBLIC and not known:
                unclear.append(f"{file}:{line} {name} (of {owner})")
    assert unclear == [], "name the unit: timeout_s, budget_bytes, interval_s"

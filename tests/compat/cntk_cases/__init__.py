"""Operators under CNTK's names, and their formulas in NumPy. See `case`."""

from tests.compat.cntk_cases import criteria, elementwise, images, reductions, sequences, shapes

TABLE = {}
for _module in (elementwise, reductions, shapes, sequences, images, criteria):
    for _name, _cases in _module.TABLE.items():
        TABLE.setdefault(_name, []).extend(_cases)

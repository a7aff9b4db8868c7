"""The native kernels, compiled from native/; their contracts stand in native/include/feedline.

Everything comes from one extension module. This package gives it an address among the other modules, so that import
contracts see who uses it; `__init__.pyi` declares the types.
"""

from feedline._native import _kernels

globals().update({name: value for name, value in vars(_kernels).items() if not name.startswith("_")})

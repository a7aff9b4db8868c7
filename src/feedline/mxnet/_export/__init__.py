"""Symbols as files of other libraries: ONNX, and source of torch. `symbol_graphs` reads MXNet's files."""

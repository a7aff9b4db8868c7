"""Exporters to frameworks: one file each, the only one that imports the framework.

`feedline` registers these exporters by name; a file is imported when a value is first exported to its framework.
`tensor_file` stores torch tensors in files, for checkpoints and key-value stores.
"""

"""How does a batch reach a framework? One file a framework, the only one that imports it.

`feedline` registers these exporters by name; a file is imported when a value is first handed to its framework.
`tensor_file` keeps torch's tensors in files, for checkpoints and stores.
"""

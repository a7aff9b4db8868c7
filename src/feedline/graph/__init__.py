"""Graphs of networks, and their pictures and tables.

`graph` defines the class `Graph`, which `plot` draws and `summary` tabulates. `importers` read graphs from networks of
several libraries. Only the importers for torch modules import torch.
"""

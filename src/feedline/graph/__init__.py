"""Graphs of networks, and the pictures and tables made of them.

`graph` defines what `plot` draws and `summary` tabulates; `importers` read it from networks of several libraries. Only
those for torch modules import torch.
"""

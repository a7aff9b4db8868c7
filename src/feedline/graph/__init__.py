"""What does a network look like? Graphs of networks, and the pictures and tables that are made of them.

`graph` is what `plot` draws and `summary` sums, read by `importers` from anybody's networks: of them, only those of
torch's modules import torch.
"""

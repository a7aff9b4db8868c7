"""Collective exchanges over torch.distributed that name a missing rank, and survive Ctrl-C."""

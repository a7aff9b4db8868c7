"""How do ranks talk? Collectives over torch.distributed that name the rank that is missing, and survive Ctrl-C."""

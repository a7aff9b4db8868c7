"""What processes of one machine have once: minibatches of ranks that get the same, and datasets of workers."""

"""How the bytes of a plan get into minibatches: read ahead, decoded, gathered."""

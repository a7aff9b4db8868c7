"""Minibatches handed on between the ranks of one machine that get the same sequences."""

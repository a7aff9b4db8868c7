"""Corpora written as stores: converted, shuffled and continued."""

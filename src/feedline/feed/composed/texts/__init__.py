"""Texts as tokens: by tokenizers, by templates of conversations, with tokens for pictures."""

"""Tokenizers of the library tokenizers, for whole texts."""

from __future__ import annotations

import os
from typing import Any

from feedline.errors import DataError, install_line
from feedline.feed.files.paths import open_regular


def library_tokenizer(tokenizer: Any) -> Any:
    """Return a tokenizer without truncation and padding, from its file or as a copy.

    Raises:
        DataError: the file cannot be read.
        ModuleNotFoundError: the library is not installed.
        TypeError: it is neither a path nor a tokenizer.
    """
    try:
        import tokenizers
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"tokenizers is not installed; run: {install_line('tokenizers')}") from error
    if isinstance(tokenizer, (str, os.PathLike)):
        try:
            with open_regular(tokenizer) as file:
                text = file.read().decode()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"expected a tokenizer.json: {error}", path=str(tokenizer)) from error
    elif isinstance(tokenizer, tokenizers.Tokenizer):
        text = tokenizer.to_str()
    else:
        raise TypeError(
            f"expected a path of a tokenizer.json, a tokenizers.Tokenizer or a function, got {type(tokenizer).__name__}"
        )
    try:
        loaded = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises plain exceptions
        raise DataError(
            f"expected a tokenizer of the library tokenizers: {error}",
            path=str(tokenizer) if isinstance(tokenizer, (str, os.PathLike)) else None,
        ) from error
    loaded.no_truncation()
    loaded.no_padding()
    return loaded

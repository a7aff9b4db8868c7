"""Tests of pictures run on native code and on its twin."""

import pytest

from feedline import _native
from tests.oracles import pictures as reference

NAMES = ("PictureBatch", "picture_headers", "uniforms", "NATIVE_JPEG")
#: What is built here.
BUILT = ["native"] if all(hasattr(_native, name) for name in NAMES) else []


@pytest.fixture(params=["reference", *BUILT])
def executor(request, monkeypatch):
    """Name of what runs programs of operations."""
    if request.param == "reference":
        for name in NAMES:
            monkeypatch.setattr(_native, name, getattr(reference, name), raising=False)
    return request.param

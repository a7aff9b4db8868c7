"""The text of an address: whether it is one, and its parts. Without the stores, as most paths are no addresses."""

from __future__ import annotations

import re
from typing import Any

AZURE = ("az", "azure", "abfs", "abfss", "adl")
WEB = ("http", "https")

ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
# Parts of a query that belong to its signature, besides the signature itself.
_SIGNED_BY = {
    "x-amz-signature": r"x-amz-.*",
    "x-goog-signature": r"x-goog-.*",
    "signature": r"signature|expires|policy|key-pair-id|awsaccesskeyid|googleaccessid",
    "sig": r"sig|s[epvrti]|sip|spr|ss|srt|skoid|sktid|skt|ske|sks|skv",
}
_USER = re.compile(r"(://)([^/\s]*)@")


def scheme_of(address: str) -> str | None:
    """Return the scheme of an address, in lower case. None if it is a path."""
    match = ADDRESS.match(address)
    return None if match is None else match[1].lower()


def without_file(what: Any) -> Any:
    """Return paths in place of addresses that begin with ``file://``."""
    if isinstance(what, (list, tuple)):
        return [without_file(item) for item in what]
    if isinstance(what, str) and scheme_of(what) == "file":
        return what[len("file://") :]
    return what


def is_address(what: Any) -> bool:
    """Return whether an object, or an item of a list, is an address rather than a path."""
    parts = what if isinstance(what, (list, tuple)) else [what]
    return any(isinstance(part, str) and scheme_of(part) not in (None, "file") for part in parts)


def without_credentials(address: str) -> str:
    """Return an address without user, password, query and fragment. The container of an Azure address stays."""
    scheme = scheme_of(address) or ""
    if scheme in WEB:
        address = address.partition("#")[0].partition("?")[0]
    elif "=" in (query := address.partition("?")[2]):  # otherwise it is a pattern
        address = address[: -len(query) - 1]
    return _USER.sub(_user_alone if scheme in AZURE else r"\1", address)


def without_password(address: str) -> str:
    """Return the identity of an address: all of it except the password and the signature of a query."""
    address, _, query = address.partition("?")
    parts = [part for part in query.split("&") if part]
    for name, signed in _SIGNED_BY.items():
        if any(part.partition("=")[0].lower() == name for part in parts):
            parts = [part for part in parts if not re.fullmatch(signed, part.partition("=")[0].lower())]
    return _USER.sub(_user_alone, address) + "?" + "&".join(parts)


def _user_alone(match: re.Match[str]) -> str:
    return f"{match[1]}{match[2].partition(':')[0]}@"

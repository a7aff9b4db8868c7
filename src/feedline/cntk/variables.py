"""`cntk.variables`: records. Variables, parameters and constants come with the networks."""

from __future__ import annotations

from typing import Any

from feedline.cntk._names import explain

__all__ = ["Record"]


class Record(dict[str, Any]):
    """A dictionary made by keywords, whose values are attributes too.

    Raises:
        AttributeError: an attribute that is not there, or one that is assigned: records do not change.
    """

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"record has no attribute '{name}'; it has {', '.join(self) or 'none'}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"expected a record to stay as it is, got an assignment to '{name}'; use updated_with")

    def updated_with(self, **values: Any) -> Record:
        """A new record in which ``values`` stand instead or besides."""
        return Record(**{**self, **values})


def __getattr__(name: str) -> Any:
    raise explain("cntk.variables", name)

"""Error of a call that was refused before it changed anything."""


class RefusedError(ValueError):
    """A refused call, such as one with an unknown key or another shape or dtype. Nothing has changed."""

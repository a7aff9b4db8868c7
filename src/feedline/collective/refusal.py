"""What a call raises that changed nothing."""


class RefusedError(ValueError):
    """A call that cannot be followed: an unknown key, another shape or dtype. Nothing has changed."""

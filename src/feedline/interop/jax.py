"""Values as JAX arrays, laid out as `Value.padded`. Only this module imports JAX."""

from __future__ import annotations

from typing import Any

from feedline.data.value import Value
from feedline.errors import install_line

try:
    import jax
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"JAX is not installed; run: {install_line('jax')}") from error


def export(value: Value, device: Any = None) -> Any:
    """See `Value.jax`."""
    return jax.device_put(value.padded(), device)

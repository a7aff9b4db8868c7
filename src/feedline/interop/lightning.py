"""Check that Lightning has not dropped the state of a loader that it restores.

Lightning creates its iterators once. If ``configure_optimizers`` uses ``trainer.estimated_stepping_batches``, it
creates them before it reads a checkpoint's states of loaders, and then never passes on these states. The loader is not
notified, so this module searches the frames of the caller of its first batches for Lightning's loop, which still has
the states.
"""

from __future__ import annotations

import sys

from feedline.errors import StateError

_PACKAGES = ("pytorch_lightning", "lightning")
#: Attribute of the training loop: states of loaders that it has read and not passed on.
_LEFT = "_combined_loader_states_to_load"


def check_restored() -> None:
    """Check that Lightning has passed on the states of its loaders, if it is the caller.

    Raises:
        StateError: it has not, and is about to continue in the middle of an epoch.
    """
    if not any(name in sys.modules for name in _PACKAGES):
        return
    frame = sys._getframe(1)
    while frame is not None:
        loop = frame.f_locals.get("self") if frame.f_code.co_name in ("run", "advance") else None
        if type(loop).__name__ == "_EvaluationLoop":  # its loaders have no states
            return
        if getattr(loop, _LEFT, None) and loop.restarting:  # type: ignore[union-attr]  # it has the attribute
            raise StateError(
                "expected the state of this loader, as Lightning continues in the middle of an epoch, got none: "
                "configure_optimizers has asked for trainer.estimated_stepping_batches (or for the loader in another "
                "way), and Lightning then drops the states of loaders that the checkpoint has",
                hint="give the schedule a number of steps, such as total_steps=len(loader) * max_epochs",
            )
        frame = frame.f_back  # type: ignore[assignment]

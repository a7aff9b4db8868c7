"""Truncated backpropagation through time (BPTT): the state of recurrences between pieces of a sequence.

The pieces of a sequence follow each other in one lane, see `feedline.Minibatch`. For each operand that is read some
steps later, the last steps of a lane are kept, detached: gradients end where the minibatch begins. A `BPTTState` lives
as long as the training, a `TruncatedBatch` one minibatch. Costs: a few torch calls for each operand and minibatch, for
any number of lanes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.errors import StateError
from feedline.networks.packed_minibatch import Sequences


@dataclass(frozen=True, slots=True)
class LaneState:
    """Last steps of each lane.

    Attributes:
        steps: last steps, newest last, (lanes, k, *shape).
        counts: number of steps that belong to the lane's sequence, int64 (lanes,). -1: the lane's state is unknown.
    """

    steps: torch.Tensor
    counts: NDArray[np.int64]


class BPTTState(dict[str, LaneState]):
    """Last steps of all lanes, by operand."""

    def tensors(self, names: Mapping[str, str]) -> dict[str, torch.Tensor]:
        """Return tensors for a checkpoint, under the names of the operands."""
        result = {}
        for key, lanes in self.items():
            result[f"{names[key]}/steps"] = lanes.steps
            result[f"{names[key]}/known"] = torch.from_numpy(lanes.counts)
        return result

    @staticmethod
    def of(tensors: Mapping[str, torch.Tensor], keys: Mapping[str, str]) -> BPTTState:
        """Create a state from a result of `tensors`, under the keys of the names."""
        memory = BPTTState()
        for name, steps in tensors.items():
            stem, _, part = name.rpartition("/")
            if part == "steps":
                memory[keys[stem]] = LaneState(steps, tensors[f"{stem}/known"].cpu().numpy())
        return memory


class TruncatedBatch:
    """Pieces of sequences in a minibatch.

    Args:
        lanes: lane of each piece, int64 (pieces,). The pieces of one lane are in order.
        begins: whether each piece starts its sequence, bool (pieces,).
        memory: state after the last minibatch. It is updated.
    """

    def __init__(self, lanes: NDArray[np.int64], begins: NDArray[np.bool_], memory: BPTTState) -> None:
        self.lanes, self.begins, self._memory = lanes, begins, memory
        self._last = np.fromiter(dict(zip(lanes.tolist(), range(len(lanes)), strict=True)).values(), np.int64)

    def before(self, key: str, k: int, shape: tuple[int, ...], like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the k steps before each piece, (pieces, k, *shape), and whether each exists, bool (pieces, k).

        Raises:
            StateError: a piece continues in a lane whose state is unknown.
        """
        counts = np.zeros(len(self.lanes), np.int64)
        state = self._memory.get(key)
        on = ~self.begins
        if not on.any():
            return like.new_zeros(len(counts), k, *shape), torch.zeros(
                len(counts), k, dtype=torch.bool, device=like.device
            )
        lanes = self.lanes[on]
        if state is None or lanes.max() >= len(state.counts) or (state.counts[lanes] < 0).any():
            raise StateError(
                "expected sequences that continue from the last minibatch, got one of a lane whose state is unknown: "
                "restore the trainer together with the source, or start the source's next sweep"
            )
        counts[on] = state.counts[lanes]
        steps = state.steps.to(like).index_select(0, torch.from_numpy(np.where(on, self.lanes, 0)).to(like.device))
        exists = k - np.arange(k) <= counts[:, None]
        return steps, torch.from_numpy(exists).to(like.device)

    def after(
        self, key: str, rows: torch.Tensor, sequences: Sequences, before: tuple[torch.Tensor, torch.Tensor]
    ) -> None:
        """Keep the last steps of each lane.

        Args:
            key: key of the operand.
            rows: packed rows.
            sequences: pieces that the rows belong to.
            before: result of `before`.
        """
        past, exists = before
        k, device = past.shape[1], past.device
        place = sequences.lengths[:, None] - k + np.arange(k)
        row = np.where(place >= 0, sequences.offsets[:-1, None] + place, 0)[self._last]
        mine = torch.from_numpy(place[self._last] >= 0).to(device).reshape(len(row), k, *(1,) * (past.ndim - 2))
        last = torch.from_numpy(self._last).to(device)
        # Steps older than this piece move forward by its length.
        older = torch.from_numpy(np.clip(place + k, 0, k - 1)[self._last]).to(device)
        each = torch.arange(len(row), device=device)[:, None]
        steps = past.index_select(0, last)[each, older]
        if len(rows):
            steps = torch.where(mine, rows.detach()[torch.from_numpy(row).to(device)], steps)
        count = np.minimum(k, exists.sum(1).cpu().numpy() + sequences.lengths)
        self.keep(key, steps, count[self._last])

    def keep(self, key: str, steps: torch.Tensor, counts: NDArray[np.int64]) -> None:
        """Keep steps (lanes, k, *shape) of this minibatch's lanes, in order of first occurrence."""
        lanes = self.lanes[self._last]
        old = self._memory.get(key)
        size = max(int(lanes.max(initial=-1)) + 1, 0 if old is None else len(old.counts))
        all_steps = steps.new_zeros(size, *steps.shape[1:])
        all_counts = np.full(size, -1, np.int64)
        if old is not None:
            all_steps[: len(old.counts)] = old.steps.to(all_steps)
            all_counts[: len(old.counts)] = old.counts
        all_steps[torch.from_numpy(lanes).to(all_steps.device)] = steps.detach()
        all_counts[lanes] = counts
        self._memory[key] = LaneState(all_steps, all_counts)

    def keep_ends(self, key: str, ends: torch.Tensor) -> None:
        """Keep the end of each piece, (pieces, *shape), as the only step."""
        last = torch.from_numpy(self._last).to(ends.device)
        self.keep(key, ends.index_select(0, last)[:, None], np.ones(len(self._last), np.int64))

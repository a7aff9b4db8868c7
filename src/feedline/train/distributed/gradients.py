"""Exchange of gradients while backward still runs.

`Gradients` watches the parameters of a trainer. In the last backward pass of a step each gradient is put into its
bucket when it is ready, and a bucket is sent when all of its gradients are ready. When the step ends, most sums have
arrived. A gradient is then a view of its bucket, so nothing is copied back.

All ranks send buckets in the same order, although gradients may become ready in different orders. Buckets are laid out
in the first step that is exchanged, in the order in which gradients became ready on the first rank with the most
gradients. They are laid out again once parameters have moved to another device or dtype. Parameters without a gradient
come last. Nothing is sent before all ranks are known to be making the same step. A rank does not wait for that within
its backward pass.

Backward may not compute some gradients, of unused parameters or on a rank without data. Their places are filled with
zeros at the end of the step. The buckets after them are sent then, too. So unused parameters reduce the overlap, and
cost nothing else.

Checkpoints contain the order as advice, since the last bits of sums over three or more ranks depend on it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from feedline.collective.exchanges import Announcement
from feedline.collective.flat_buffers import Bucket, lay_out_buckets
from feedline.collective.sums import BucketSums

#: Bytes of the first bucket. The sooner it is full, the sooner the exchange begins.
FIRST_BUCKET_BYTES = 1 << 20
#: Bytes of the other buckets. The last one remains to be sent when backward has ended.
BUCKET_BYTES = 8 << 20


class Gradients:
    """The gradients of a trainer, in buckets. See the module.

    Args:
        parameters: parameters whose gradients are summed.

    Attributes:
        order: indices of the parameters in the order of their gradients in buckets. None until it is known.
        sums: sums of the buckets. None until they are laid out.
        armed: whether a step is in progress. Its caller sets it to False at the end.
        ready: parameters whose gradients became ready in this step, in that order.
        added: how often backward has added to each parameter's gradient in this step.
        put: whether this rank has put a gradient of each parameter into its bucket in this step.
        announced: announcement to the other ranks in this step. None until it is sent.
        sent: number of buckets sent in this step.
    """

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self._parameters = list(parameters)
        self.order: list[int] | None = None
        self.sums: BucketSums | None = None
        #: Bucket and slot of each parameter.
        self._places: list[tuple[int, int]] = []
        #: How often backward adds to each gradient in a step: several times if there are several backward passes.
        self._adds_per_step = [1] * len(self._parameters)
        self._lock = threading.Lock()  # backward has a thread for each device
        self.armed = False
        self._announce: Callable[[], Announcement] | None = None
        self._begin([])
        reference = weakref.ref(self)
        handles = [
            parameter.register_post_accumulate_grad_hook(_watch(reference, i))
            for i, parameter in enumerate(self._parameters)
            if parameter.requires_grad and parameter.is_leaf
        ]
        weakref.finalize(self, remove_hooks, handles)

    # ---- a step -------------------------------------------------------------------------------------------------

    def arm(self, announce: Callable[[], Announcement] | None) -> None:
        """Begin a step, of which the next backward pass is the last.

        Args:
            announce: function that announces the step to the other ranks. None means that gradients are not sent before
                `send_rest`.
        """
        if not self._fits():
            self.sums = None
        self._announce = announce if self.sums is not None else None
        self._begin(self.sums.buckets if self.sums is not None else [])
        self.armed = True

    def _begin(self, buckets: Sequence[Bucket]) -> None:
        self.added = [0] * len(self._parameters)
        self.ready: list[int] = []
        self.put = [False] * len(self._parameters)
        self._missing = [len(bucket.places) for bucket in buckets]
        self._works: list[Any] = []
        self.sent = 0
        self.announced: Announcement | None = None

    def _on_gradient(self, i: int) -> None:
        """Handle that backward has added to a gradient: put it into its bucket, and send full buckets."""
        if not self.armed:
            return
        with self._lock:
            self.added[i] += 1
            if self._announce is None or self.sums is None:
                if self.added[i] > 1:
                    self.ready.remove(i)
                self.ready.append(i)
                return
            gradient = self._parameters[i].grad
            if self.added[i] < self._adds_per_step[i] or gradient is None or gradient.layout is not torch.strided:
                return  # `send_rest` will handle it
            bucket = self._places[i][0]
            if self.put[i]:
                self._check_unsent(i, bucket)
                return
            self._put(i, gradient)
            self._missing[bucket] -= 1
            if self._missing[self.sent] == 0:
                if self.announced is None:
                    self.announced = self._announce()
                if self.announced.all_agree():
                    self._send()

    def _put(self, i: int, gradient: torch.Tensor) -> None:
        assert self.sums is not None
        bucket, slot = self._places[i]
        self.sums.put(bucket, slot, gradient)
        self.put[i] = True
        if self.sums.in_place:
            self._use_view(i)

    def _use_view(self, i: int) -> None:
        """Replace a parameter's gradient by its view of the bucket."""
        assert self.sums is not None
        bucket, slot = self._places[i]
        parameter, view = self._parameters[i], self.sums.buckets[bucket].views[slot]
        if parameter.grad is None or parameter.grad.data_ptr() != view.data_ptr():
            # Not the view itself, as `module.to` and other functions assign to `grad.data`, which would move the view
            # out of the bucket.
            parameter.grad = view.detach()

    def _fits(self) -> bool:
        """Return whether parameters still have the device, dtype and shape of their layout."""
        if self.sums is None:
            return True
        for parameter, (bucket, slot) in zip(self._parameters, self._places, strict=True):
            view = self.sums.buckets[bucket].views[slot]
            if parameter.dtype != view.dtype or parameter.device != view.device or parameter.shape != view.shape:
                return False
        return True

    def _check_unsent(self, i: int, bucket: int) -> None:
        assert self.sums is not None
        if bucket < self.sent or not self.sums.in_place:
            raise RuntimeError(
                f"expected backward to add to the gradient of parameter {i}, of shape "
                f"{tuple(self._parameters[i].shape)}, {self._adds_per_step[i]} times, as in the first step, but it "
                "added more once the gradient had been sent; if parts of the model are checkpointed, pass "
                "use_reentrant=False"
            )

    def _send(self) -> None:
        """Send full buckets, in their order."""
        assert self.sums is not None
        while self.sent < len(self._missing) and self._missing[self.sent] == 0:
            self._works += self.sums.send(self.sent)
            self.sent += 1

    # ---- the end of a step --------------------------------------------------------------------------------------

    def lay_out(self, order: list[int], adds_per_step: list[int], make: Callable[[list[Bucket]], BucketSums]) -> None:
        """Lay out buckets.

        Args:
            order: indices of parameters in the order in which gradients become ready. Other parameters come last.
            adds_per_step: how often backward adds to each gradient in a step.
            make: function that returns the sums of buckets.
        """
        ordered = set(order)
        unordered = [i for i in reversed(range(len(self._parameters))) if i not in ordered]
        self.order = [*order, *unordered]
        buckets = lay_out_buckets(self._parameters, BUCKET_BYTES, self.order, FIRST_BUCKET_BYTES)
        self._places = [(0, 0)] * len(self._parameters)
        for k, bucket in enumerate(buckets):
            for slot, i in enumerate(bucket.places):
                self._places[i] = k, slot
        self._adds_per_step = [max(1, count) for count in adds_per_step]
        self.sums = make(buckets)
        self._missing = [len(bucket.places) for bucket in buckets]

    def send_rest(self) -> list[Any]:
        """Send the remaining buckets, once all ranks are known to agree. Return all works in flight."""
        assert self.sums is not None
        with self._lock, torch.no_grad():
            for i, parameter in enumerate(self._parameters):
                if self.put[i]:
                    continue
                bucket, slot = self._places[i]
                if parameter.grad is None:
                    self.sums.put_zeros(bucket, slot)
                else:
                    self._put(i, parameter.grad)
                self._missing[bucket] -= 1
            self._send()
        return self._works

    def finish(self, present: Sequence[bool]) -> None:
        """Set gradients to the sums, or to None if no rank has one, so that unused parameters do not decay."""
        assert self.sums is not None
        with torch.no_grad():
            self.sums.finish(lambda i: present[i])
        for bucket in self.sums.buckets:
            for i in bucket.places:
                if present[i]:
                    self._use_view(i)
                else:
                    self._parameters[i].grad = None


def _watch(reference: weakref.ref[Gradients], i: int) -> Callable[[torch.Tensor], None]:
    def on_gradient(_: torch.Tensor) -> None:
        gradients = reference()
        if gradients is not None:
            gradients._on_gradient(i)

    return on_gradient


def remove_hooks(handles: Sequence[Any]) -> None:
    """Remove hooks of parameters."""
    for handle in handles:
        handle.remove()

"""A Ray without processes, for tests of the pool above it: an actor is a thread of this process, and dies on demand.

It has the parts of Ray that the pool uses, and no others: actors that take one call after the other, answers that are
futures, and an exception for each call that a dead actor had not answered.
"""

from __future__ import annotations

import threading
import types
from concurrent.futures import Future
from queue import SimpleQueue


class Death(BaseException):
    """Raised within an actor, it is its end, as a SIGKILL would be."""


class ActorDiedError(Exception):
    """No answer: the actor is dead."""


class Actor:
    """A handle. Its attributes are methods that can be called remotely."""

    def __init__(self, kind, arguments, starts):
        self._kind, self._arguments = kind, arguments
        self._calls, self._lock, self.dead = SimpleQueue(), threading.Lock(), False
        self._unanswered = []
        self._thread = threading.Thread(target=self._live, daemon=True)
        if starts:
            self._thread.start()

    def __getattr__(self, name):
        return types.SimpleNamespace(remote=lambda *arguments: self._call(name, arguments))

    def _call(self, name, arguments):
        future = Future()
        with self._lock:
            if not self.dead:
                self._unanswered.append(future)
        if self.dead:
            future.set_exception(ActorDiedError("the actor died"))
        self._calls.put((name, arguments, future))
        return types.SimpleNamespace(future=lambda: future)

    def _live(self):
        try:
            actor = self._kind(*self._arguments)
            while not self.dead:
                name, arguments, future = self._calls.get()
                if name is None:
                    return
                answer = getattr(actor, name)(*arguments)
                with self._lock:
                    if self.dead:
                        return
                    self._unanswered.remove(future)
                future.set_result(answer)
        except Death:
            self.die()

    def die(self):
        """Die now. Pending calls never get an answer. Return their number."""
        with self._lock:
            self.dead = True
            unanswered, self._unanswered = self._unanswered, []
        for future in unanswered:
            future.set_exception(ActorDiedError("the actor died"))
        self._calls.put((None, (), None))
        return len(unanswered)

    def end(self):
        """Die, and wait until nothing of it runs."""
        self.die()
        if self._thread.ident is not None:
            self._thread.join(60)


class Ray:
    """A substitute for the module ``ray``.

    Attributes:
        actors: all that were started, in that order.
        starts: whether actors start: there is room for them.
    """

    def __init__(self):
        self.actors, self.starts = [], True

    def is_initialized(self):
        return True

    def cluster_resources(self):
        return {"CPU": 1.0}

    def available_resources(self):
        return {"CPU": float(self.starts)}

    def put(self, value):
        return value

    def remote(self, kind):
        def make(*arguments):
            self.actors.append(Actor(kind, arguments, self.starts))
            return self.actors[-1]

        return types.SimpleNamespace(options=lambda **_: types.SimpleNamespace(remote=make))

    def kill(self, actor):
        actor.die()

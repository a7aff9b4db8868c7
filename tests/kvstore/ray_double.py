"""A Ray without processes, for tests of the code above it: actors are objects in this process, and die on demand.

It has the parts of Ray that feedline uses, and no others: named actors that are started again when they die, calls that
an actor takes one after the other, arguments and answers by value, and Ray's exceptions. A call is a message, and with
each message its actor may die:

- ``before``: before the message arrives,
- ``taken``: after the call, and before its answer,
- ``after``: after its answer.

All other messages to the actor are lost with it. Coroutines (the coordinator's) run on a loop in a thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import importlib.machinery
import inspect
import pickle
import sys
import threading
import types

import numpy as np

BEFORE, TAKEN, AFTER = "before", "taken", "after"
ADDRESS = "127.0.0.1:6379"


class RayError(Exception):
    """Base class of the other exceptions, as in Ray."""


class RayTaskError(RayError):
    """A call raised."""

    def __init__(self, cause):
        super().__init__(repr(cause))
        self.cause = cause


class RayActorError(RayError):
    """An actor did not answer."""

    actor_init_failed = False


class ActorDiedError(RayActorError):
    """Raised when an actor is dead for good."""


class ActorUnavailableError(RayActorError):
    """Raised when an actor may be restarted."""


class ObjectLostError(RayError):
    """An answer was lost."""


class GetTimeoutError(RayError, TimeoutError):
    """No answer yet."""


class Message:
    """A call in flight and its answer, in place of Ray's reference."""

    def __init__(self, actor, method, arguments, dies):
        self.actor, self.method, self.arguments, self.dies = actor, method, arguments, dies
        self.answer = None  # a function of seconds to wait, which returns or raises the answer
        self.future = None  # of a coroutine

    def lost(self):
        if self.future is not None:
            self.future.cancel()
        self.answer = _raises(ActorUnavailableError("the actor died"))


class Kept:
    """An object that `put` has stored."""

    def __init__(self, value):
        self.value = value


class Handle:
    """A reference to an actor. Its attributes are methods that can be called remotely."""

    def __init__(self, actor):
        self._actor = actor

    def __getattr__(self, name):
        call = types.SimpleNamespace(remote=lambda *arguments: self._actor.call(name, arguments))
        # A call in a separate concurrency group waits for no other.
        call.options = lambda concurrency_group: types.SimpleNamespace(remote=lambda: self._actor.beat())
        return call


class Actor:
    """A substitute for the process of an actor.

    Attributes:
        arguments: arguments of its class, also after a death.
        queue: messages in flight, oldest first.
        beats: whether its heartbeat is answered.
        gone: whether it is not started again.
    """

    def __init__(self, ray, kind, arguments):
        self._ray, self._kind, self.arguments = ray, kind, arguments
        self.queue, self._running, self._away, self.gone = [], [], 0, False
        self.beats = True
        self._object = kind(*_carried(arguments))

    def call(self, method, arguments):
        """Send a message."""
        ray = self._ray
        with ray.lock:
            dies = ray.dies.get(len(ray.messages))
            ray.messages.append((type(self._object).__name__, method))
            message = Message(self, method, [a.value if isinstance(a, Kept) else a for a in arguments], dies)
            self.queue.append(message)
            return message

    def beat(self):
        """Send a heartbeat, which waits for no message."""
        message = Message(self, "beat", (), None)
        message.answer = (lambda seconds: None) if self.beats else _raises(GetTimeoutError("no answer yet"))
        return message

    def end_writer(self):
        """Wait for the thread in which a server writes, which would survive its actor in this process."""
        writer = getattr(self._object, "_writer", None)
        if writer is not None:
            writer.join()

    def die(self):
        """Die, with all messages in flight. The next message, or a later one, reaches a new process."""
        self.end_writer()
        for message in [*self.queue, *(one for one in self._running if not one.future.done())]:
            message.lost()
        self.queue, self._running = [], []
        self._object = self._kind(*_carried(self.arguments))
        self._away = self._ray.away

    def take(self):
        """Deliver the oldest message in flight."""
        message = self.queue.pop(0)
        if self.gone or self._ray.ended:
            message.answer = _raises(ActorDiedError("the actor is gone"))
            return
        if self._away:
            self._away -= 1
            message.lost()
            return
        if message.dies == BEFORE:
            message.lost()
            self.die()
            return
        try:
            result = getattr(self._object, message.method)(*_carried(message.arguments))
        except Exception as error:
            message.answer = _raises(RayTaskError(error))
        else:
            if inspect.iscoroutine(result):
                self._run(message, result)
                return
            result = _carried(result)
            message.answer = lambda seconds: result
        if message.dies == TAKEN:
            message.lost()
        if message.dies is not None:
            self.die()

    def _run(self, message, coroutine):
        """Run a coroutine. A death waits for its answer, but not for long."""
        message.future = asyncio.run_coroutine_threadsafe(coroutine, self._ray.loop)
        self._running.append(message)

        def answer(seconds):
            result = message.future.result(seconds)
            if message.dies == AFTER:
                message.dies = None
                self.die()
            return result

        message.answer = answer
        if message.dies == TAKEN:
            with contextlib.suppress(TimeoutError):
                message.future.result(0.02)
            message.lost()
            self.die()


class Ray(types.ModuleType):
    """A substitute for the module ``ray``.

    Args:
        dies: how the actor dies with a message, by the message's number, see above.
        away: messages that a dead actor does not answer before it is started again.
        eager: whether messages arrive as soon as a caller checks for them.

    Attributes:
        messages: receiver and method of each message so far.
    """

    def __init__(self, dies=None, away=0, eager=False):
        super().__init__("ray")
        self.__spec__ = importlib.machinery.ModuleSpec("ray", None)
        self.dies, self.away, self.eager = dict(dies or {}), away, eager
        self.messages, self.actors = [], {}
        self.ended = False  # a heartbeat may outlast its store for as long as it waits for an answer
        self.lock = threading.RLock()
        self.exceptions = types.SimpleNamespace(
            RayError=RayError,
            RayTaskError=RayTaskError,
            RayActorError=RayActorError,
            ActorDiedError=ActorDiedError,
            ActorUnavailableError=ActorUnavailableError,
            ObjectLostError=ObjectLostError,
            GetTimeoutError=GetTimeoutError,
        )
        self.cloudpickle = types.SimpleNamespace(register_pickle_by_value=lambda module: None)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    def __enter__(self):
        self.real = sys.modules.get("ray")
        sys.modules["ray"] = self
        self.thread.start()
        return self

    def __exit__(self, *_):
        with self.lock:
            self.ended = True

        async def end():
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()
        for actor in self.actors.values():
            actor.end_writer()
        if self.real is None:
            del sys.modules["ray"]
        else:
            sys.modules["ray"] = self.real

    # ---- interface that feedline uses ---------------------------------------------------------------------------

    def is_initialized(self):
        return True

    def get_runtime_context(self):
        return types.SimpleNamespace(gcs_address=ADDRESS, get_actor_id=lambda: "double")

    def shutdown(self):
        pass

    def remote(self, kind=None, concurrency_groups=()):
        if kind is None:
            return self.remote

        def options(name, **_):
            def make(*arguments):
                if name not in self.actors:
                    self.actors[name] = Actor(self, kind, arguments)
                return Handle(self.actors[name])

            return types.SimpleNamespace(remote=make)

        return types.SimpleNamespace(options=options)

    def put(self, value):
        return Kept(_carried(value))

    def get(self, message, timeout=None):
        with self.lock:
            while message.answer is None:
                message.actor.take()
        try:
            return message.answer(timeout)
        except TimeoutError as error:
            raise GetTimeoutError("no answer yet") from error
        except concurrent.futures.CancelledError as error:
            raise ActorDiedError("the actor is gone") from error

    def wait(self, messages, timeout):
        with self.lock:
            if self.eager:
                for message in messages:
                    while message.answer is None:
                        message.actor.take()
        return [message for message in messages if message.answer is not None], []

    def kill(self, actor, no_restart):
        with self.lock:
            actor.die()
            actor.gone = no_restart


def _raises(error):
    def answer(seconds):
        raise error

    return answer


def _carried(value):
    """Return a value as received from another process. Functions of tests are returned unchanged."""
    try:
        value = pickle.loads(pickle.dumps(value))
    except (AttributeError, TypeError, pickle.PicklingError):
        return value
    for one in value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(one, np.ndarray):
            one.flags.writeable = False
    return value

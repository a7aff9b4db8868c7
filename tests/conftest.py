"""Settings for all tests: hypothesis profiles, the imports of the fork server, and a check that tests leave nothing."""

from __future__ import annotations

import functools
import gc
import importlib.util
import multiprocessing
import os
import signal
import threading

import pytest
from hypothesis import HealthCheck, settings

from tests.effort import examples

# Two tests at a time on two cores: more threads in each of them would only wait for each other, and spin.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell starts what runs in its background with interrupts ignored, and programs inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# CI machines are shared and noisy: time limits of single examples would fail there without a defect.
usual = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("ci", max_examples=examples(30), print_blob=True, **usual)
settings.load_profile("ci")

# Whichever test starts the server of this process: ranks and workers come out of it with their imports done, among
# them what torch imports only when it is first used in earnest.
multiprocessing.set_forkserver_preload(
    ["torch", "torch._dynamo", "pytest", "hypothesis.strategies", "feedline", "feedline.kvstore", "feedline.train"]
)

#: Files and folders that take longest. They go first, so that short ones fill up all processes at the end.
LONGEST = (
    "frameworks",
    "docs/test_docs",
    "kvstore/test_async",
    "feed/ray",
    "examples/test_examples",
    "collective/test_communicator",
    "train/test_agreement",
    "train/test_sharded",
    "cli/test_demo",
    "feed/workers/test_finalisers",
    "laws/test_fetching",
    "examples/test_workers",
    "train/test_elastic",
    "torture",
    "feed/test_group",
    "feed/workers/test_ends",
    "feed/workers/test_death",
    "cli",
    "collective",
    "kvstore/test_hosts",
    "kvstore/parameter_server",
    "laws/test_interrupts",
    "train",
    "laws",
    "compat/test_cntk_checkpoints",
    "feed/loader/test_torch_lifetime",
    "feed/test_shuffling",
    "feed/test_page_cache",
    "benchmarks",
    "docs",
    "kvstore",
    "feed/loader/test_torch_workers",
    "feed/formats/test_store",
    "feed/workers",
    "compat/test_cntk_",
)


def pytest_collection_modifyitems(items):
    """Long files first."""
    starts = [f"tests/{name}" for name in LONGEST]
    items.sort(
        key=lambda item: next((i for i, start in enumerate(starts) if item.nodeid.startswith(start)), len(starts))
    )


def pytest_runtest_setup(item):
    """Skip what needs a package that is not installed, and name it."""
    for mark in item.iter_markers("frameworks"):
        for module in mark.args:
            # Of a package only: the search for a submodule imports its package, and Ray has to be imported by ours.
            if importlib.util.find_spec(module.partition(".")[0]) is None:
                pytest.skip(f"{module} is not installed here: make frameworks")
            if module == "torchcodec" and (reason := without_ffmpeg()):
                pytest.skip(reason)


@functools.cache
def without_ffmpeg() -> str:
    """Return why torchcodec, which is installed, cannot be imported, or nothing."""
    try:
        importlib.import_module("torchcodec.decoders")
    except Exception as error:  # of many kinds
        reason = str(error).strip().partition("\n")[0]
        return f"torchcodec finds no shared libraries of FFmpeg (Debian: libavdevice59, libavfilter8): {reason:.80}"
    return ""


def pytest_collection_finish():
    """Spare every later collection of garbage the modules and the ten thousand tests, which stay until the end.

    A test that checks for leaks collects twice, which takes more than half a second with these objects.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def collects_often():
    """For files whose tests collect garbage again and again: spares them what earlier files have left in memory."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def leaves_nothing():
    """Checks that threads and descriptors are as many after the test as before."""
    before = threads(), descriptors()
    yield
    import time

    for _ in range(50):
        gc.collect()
        if (threads(), descriptors()) <= before:
            return
        time.sleep(0.02)
    assert (threads(), descriptors()) <= before


def threads() -> list[str]:
    """Names of reading threads that are alive."""
    return sorted(t.name for t in threading.enumerate() if t.name.startswith("feedline"))


def descriptors() -> int:
    """Number of open file descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))

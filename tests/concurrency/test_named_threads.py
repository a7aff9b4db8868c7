"""The system knows named threads, and the end of the process waits only for threads that ask for it."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from feedline.concurrency.named_threads import begin
from tests.linux import linux_only


@linux_only("names of threads")
def test_the_system_knows_its_name():
    names = []
    thread = begin("heartbeat", lambda: names.append(Path("/proc/thread-self/comm").read_text().strip()))
    thread.join()
    assert names == ["feedline-heartb"]  # of 15 bytes
    assert thread.name == "feedline-heartbeat"


def test_a_thread_does_not_wait_for_itself():
    """Garbage that is collected in a thread may close the thread's owner."""
    ended, made = threading.Event(), threading.Event()

    def call():
        made.wait()
        thread.end(60)
        ended.set()

    thread = begin("fetch", call)
    made.set()
    assert ended.wait(50)
    thread.end(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("waited", [False, True])
def test_the_end_of_a_process(waited):
    program = f"""if True:
        import os, time
        from feedline.concurrency.named_threads import begin

        def call():
            time.sleep(0.2 if {waited} else 3600)
            os.write(1, b"done")

        begin("checksums", call, waited={waited})
    """
    ran = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True, timeout=120)
    assert ran.stdout == (b"done" if waited else b"")

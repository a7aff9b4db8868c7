"""The operating system: all that feedline asks of it and that not every system has.

No other module calls these functions by their names in `os`, `fcntl`, `select` or the C library, reads ``/proc`` or
``/sys``, or looks at the platform (tests/test_system.py). Each function exists twice: `linux` has it as Linux offers
it, `portable` with what POSIX and Python offer. The choice is made once, at import: `linux` on Linux, unless
``FEEDLINE_PORTABLE=1`` is set. Order, states, values and errors are the same with both. docs/explanation/platforms.md
lists what the portable version lacks.
"""

from __future__ import annotations

import os
import sys

PORTABLE: bool = sys.platform != "linux" or os.environ.get("FEEDLINE_PORTABLE") == "1"
"""Whether the portable version is in use."""

if PORTABLE:
    from feedline.system.portable import (
        KNOWS_PAGE_CACHE,
        LOOK_S,
        allocate,
        anonymous_file,
        boot_id,
        drop_cached,
        end_of_parent,
        end_of_process,
        file_maps,
        forwarder,
        free_range,
        group_socket,
        lock_range,
        map_private,
        name_thread,
        note_map,
        open_descriptors,
        open_direct,
        peer_of,
        populate,
        receive,
        reopen,
        seal,
        started_at,
        unlock_range,
        work_poller,
    )
    from feedline.system.portable_figures import (
        activity_of,
        allowed_cores,
        available_bytes,
        copied_counts,
        memory_groups,
        process_figures,
        processor_name,
        resident_bytes,
        thread_reads,
        throttled_seconds,
        usable_cores,
    )
else:
    from feedline.system.linux import (
        KNOWS_PAGE_CACHE,
        LOOK_S,
        allocate,
        anonymous_file,
        boot_id,
        drop_cached,
        end_of_parent,
        end_of_process,
        forwarder,
        free_range,
        group_socket,
        lock_range,
        map_private,
        name_thread,
        note_map,
        open_descriptors,
        open_direct,
        peer_of,
        populate,
        receive,
        reopen,
        seal,
        started_at,
        unlock_range,
        work_poller,
    )
    from feedline.system.linux_figures import (
        activity_of,
        allowed_cores,
        available_bytes,
        copied_counts,
        file_maps,
        memory_groups,
        process_figures,
        processor_name,
        resident_bytes,
        thread_reads,
        throttled_seconds,
        usable_cores,
    )

__all__ = [
    "KNOWS_PAGE_CACHE",
    "LOOK_S",
    "PORTABLE",
    "activity_of",
    "allocate",
    "allowed_cores",
    "anonymous_file",
    "available_bytes",
    "boot_id",
    "copied_counts",
    "drop_cached",
    "end_of_parent",
    "end_of_process",
    "file_maps",
    "forwarder",
    "free_range",
    "group_socket",
    "lock_range",
    "map_private",
    "memory_groups",
    "name_thread",
    "note_map",
    "open_descriptors",
    "open_direct",
    "peer_of",
    "populate",
    "process_figures",
    "processor_name",
    "receive",
    "reopen",
    "resident_bytes",
    "seal",
    "started_at",
    "thread_reads",
    "throttled_seconds",
    "unlock_range",
    "usable_cores",
    "work_poller",
]

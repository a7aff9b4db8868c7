"""What a control group leaves free: page cache counts as free in both versions of the files."""

from __future__ import annotations

import functools

import pytest

from feedline.feed.workers import limits
from feedline.system import control_groups
from tests.linux import linux_only

MIB = 1 << 20
VERSIONS = {
    1: ("5:memory:/job", "memory/job", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    2: ("0::/job", "job", "memory.max", "memory.current", ""),
}


@linux_only("control groups")
@pytest.mark.parametrize("version", [1, 2])
def test_page_cache_of_a_group_counts_as_free(tmp_path, monkeypatch, version):
    line, name, limit, usage, prefix = VERSIONS[version]
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"{line}\n")
    group = tmp_path / "sys/fs/cgroup" / name
    group.mkdir(parents=True)
    (group / limit).write_text(f"{100 * MIB}\n")
    (group / usage).write_text(f"{70 * MIB}\n")
    cached = {"inactive_file": 20 * MIB, "active_file": 30 * MIB}
    (group / "memory.stat").write_text("".join(f"{prefix}{key} {size}\n" for key, size in cached.items()))
    monkeypatch.setattr(control_groups, "folders", functools.partial(control_groups.folders, system=tmp_path))
    assert limits.available() == 80 * MIB
    assert "20.0 MiB of 100.0 MiB used" in limits.situation()

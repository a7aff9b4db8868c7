"""Processors that control groups leave to a process, from folders as the kernel has them."""

from __future__ import annotations

import pytest

from feedline.system.control_groups import usable_cores
from tests.linux import linux_only

pytestmark = linux_only("control groups")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000"}, 8),
        ({"jobs/mine/cpu.max": "200000 100000"}, 2),
        ({"jobs/mine/cpu.max": "250000 100000"}, 3),
        ({"jobs/mine/cpu.max": "10000 100000"}, 1),
        ({"jobs/mine/cpu.max": "1600000 100000"}, 8),
        ({"jobs/mine/cpu.max": "max 100000", "jobs/cpu.max": "300000 100000"}, 3),
        ({"cpu.max": "400000 100000"}, 4),  # of a container
        ({"others/cpu.max": "100000 100000"}, 8),
        ({"cpu/jobs/mine/cpu.cfs_quota_us": "150000", "cpu/jobs/mine/cpu.cfs_period_us": "50000"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ({"cpu/cpu.cfs_quota_us": "90000", "cpu/cpu.cfs_period_us": "100000"}, 1),
    ],
)
def test_quotas_of_processor_time(files, expected, tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("3:cpuacct,cpu:/jobs/mine\n2:memory:/\n0::/jobs/mine\n")
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert usable_cores(tmp_path) == expected


def test_no_control_groups(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 5})
    assert usable_cores(tmp_path) == 3

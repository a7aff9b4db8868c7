"""The scenarios, one class a file."""

from __future__ import annotations

from tests.torture.scenario import Scenario
from tests.torture.scenarios.damaged_index import DamagedIndex
from tests.torture.scenarios.damaged_store import DamagedStore
from tests.torture.scenarios.killed_feeds import KilledFeeds
from tests.torture.scenarios.worlds import Worlds

ALL: list[Scenario] = [DamagedIndex(), DamagedStore(), KilledFeeds(), Worlds()]

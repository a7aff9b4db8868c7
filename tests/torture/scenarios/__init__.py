"""The scenarios, one class a file."""

from __future__ import annotations

from tests.torture.scenario import Scenario
from tests.torture.scenarios.damaged_checkpoints import DamagedCheckpoints
from tests.torture.scenarios.damaged_index import DamagedIndex
from tests.torture.scenarios.damaged_store import DamagedStore
from tests.torture.scenarios.hostile_arrays import HostileArrays
from tests.torture.scenarios.hostile_cntk import HostileCNTK
from tests.torture.scenarios.hostile_ctf import HostileCTF
from tests.torture.scenarios.hostile_index import HostileIndex
from tests.torture.scenarios.hostile_logs import HostileLogs
from tests.torture.scenarios.hostile_parquet import HostileParquet
from tests.torture.scenarios.hostile_states import HostileStates
from tests.torture.scenarios.hostile_store import HostileStore
from tests.torture.scenarios.hostile_symbols import HostileSymbols
from tests.torture.scenarios.hostile_tensors import HostileTensors
from tests.torture.scenarios.killed_feeds import KilledFeeds
from tests.torture.scenarios.killed_loaders import KilledLoaders
from tests.torture.scenarios.killed_sessions import KilledSessions
from tests.torture.scenarios.killed_writers import KilledWriters
from tests.torture.scenarios.worlds import Worlds

ALL: list[Scenario] = [
    DamagedCheckpoints(),
    DamagedIndex(),
    DamagedStore(),
    HostileArrays(),
    HostileCNTK(),
    HostileCTF(),
    HostileIndex(),
    HostileLogs(),
    HostileParquet(),
    HostileStates(),
    HostileStore(),
    HostileSymbols(),
    HostileTensors(),
    KilledFeeds(),
    KilledLoaders(),
    KilledSessions(),
    KilledWriters(),
    Worlds(),
]

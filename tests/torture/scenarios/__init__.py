"""The scenarios, one class a file."""

from __future__ import annotations

from tests.torture.scenario import Scenario
from tests.torture.scenarios.changed_data import ChangedData
from tests.torture.scenarios.collector import Collector
from tests.torture.scenarios.damaged_checkpoints import DamagedCheckpoints
from tests.torture.scenarios.damaged_files import DamagedFiles
from tests.torture.scenarios.damaged_index import DamagedIndex
from tests.torture.scenarios.damaged_store import DamagedStore
from tests.torture.scenarios.exits import Exits
from tests.torture.scenarios.few_descriptors import FewDescriptors
from tests.torture.scenarios.forks import Forks
from tests.torture.scenarios.full_disks import FullDisks
from tests.torture.scenarios.hostile_arrayrecord import HostileArrayRecord
from tests.torture.scenarios.hostile_arrays import HostileArrays
from tests.torture.scenarios.hostile_arrow import HostileArrow
from tests.torture.scenarios.hostile_cntk import HostileCNTK
from tests.torture.scenarios.hostile_ctf import HostileCTF
from tests.torture.scenarios.hostile_foreign import HostileForeign
from tests.torture.scenarios.hostile_hdf5 import HostileHDF5
from tests.torture.scenarios.hostile_images import HostileImages
from tests.torture.scenarios.hostile_index import HostileIndex
from tests.torture.scenarios.hostile_lance import HostileLance
from tests.torture.scenarios.hostile_lerobot import HostileLeRobot
from tests.torture.scenarios.hostile_litdata import HostileLitData
from tests.torture.scenarios.hostile_logs import HostileLogs
from tests.torture.scenarios.hostile_manifests import HostileManifests
from tests.torture.scenarios.hostile_mds import HostileMDS
from tests.torture.scenarios.hostile_parquet import HostileParquet
from tests.torture.scenarios.hostile_recordio import HostileRecordIO
from tests.torture.scenarios.hostile_rows import HostileRows
from tests.torture.scenarios.hostile_speech import HostileSpeech
from tests.torture.scenarios.hostile_states import HostileStates
from tests.torture.scenarios.hostile_store import HostileStore
from tests.torture.scenarios.hostile_symbols import HostileSymbols
from tests.torture.scenarios.hostile_tar import HostileTar
from tests.torture.scenarios.hostile_tensors import HostileTensors
from tests.torture.scenarios.hostile_tfrecord import HostileTFRecord
from tests.torture.scenarios.hostile_tokens import HostileTokens
from tests.torture.scenarios.hostile_zarr import HostileZarr
from tests.torture.scenarios.interrupts import Interrupts
from tests.torture.scenarios.killed_compositions import KilledCompositions
from tests.torture.scenarios.killed_feeds import KilledFeeds
from tests.torture.scenarios.killed_fetchers import KilledFetchers
from tests.torture.scenarios.killed_loaders import KilledLoaders
from tests.torture.scenarios.killed_mixtures import KilledMixtures
from tests.torture.scenarios.killed_neighbours import KilledNeighbours
from tests.torture.scenarios.killed_pictures import KilledPictures
from tests.torture.scenarios.killed_ranks import KilledRanks
from tests.torture.scenarios.killed_servers import KilledServers
from tests.torture.scenarios.killed_sessions import KilledSessions
from tests.torture.scenarios.killed_writers import KilledWriters
from tests.torture.scenarios.ranks_come_and_go import RanksComeAndGo
from tests.torture.scenarios.replaced_objects import ReplacedObjects
from tests.torture.scenarios.slow_lines import SlowLines
from tests.torture.scenarios.small_shared_memory import SmallSharedMemory
from tests.torture.scenarios.threads import Threads
from tests.torture.scenarios.verdicts import Verdicts
from tests.torture.scenarios.worlds import Worlds

ALL: list[Scenario] = [
    Collector(),
    DamagedCheckpoints(),
    DamagedFiles(),
    DamagedIndex(),
    DamagedStore(),
    Exits(),
    FewDescriptors(),
    Forks(),
    FullDisks(),
    HostileArrayRecord(),
    HostileArrays(),
    HostileArrow(),
    HostileCNTK(),
    HostileCTF(),
    HostileImages(),
    HostileIndex(),
    HostileLance(),
    HostileLeRobot(),
    HostileLitData(),
    HostileLogs(),
    HostileManifests(),
    HostileMDS(),
    HostileParquet(),
    HostileRows(),
    HostileSpeech(),
    HostileStates(),
    HostileStore(),
    HostileSymbols(),
    HostileTar(),
    HostileTensors(),
    HostileRecordIO(),
    HostileTFRecord(),
    HostileTokens(),
    HostileForeign(),
    HostileHDF5(),
    HostileZarr(),
    Interrupts(),
    KilledCompositions(),
    KilledFeeds(),
    KilledFetchers(),
    KilledLoaders(),
    ChangedData(),
    KilledMixtures(),
    KilledNeighbours(),
    KilledPictures(),
    KilledRanks(),
    KilledServers(),
    KilledSessions(),
    KilledWriters(),
    RanksComeAndGo(),
    ReplacedObjects(),
    SlowLines(),
    SmallSharedMemory(),
    Threads(),
    Verdicts(),
    Worlds(),
]

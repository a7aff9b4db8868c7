"""`cntk.io`: deserializers, minibatch sources and their data, over feedline.

Order and filling are CNTK 2.7's. Where CNTK crashed, lost data or ignored a setting, this module does the intended
thing. docs/compat/cntk.md lists the cases.
"""

from typing import Any

from feedline.cntk._names import NAMES, look_up
from feedline.cntk.cntk_py import FULL_DATA_SWEEP, INFINITELY_REPEAT
from feedline.cntk.cntk_py import WINDOW_IN_CHUNKS as DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS
from feedline.cntk.io import transforms
from feedline.cntk.io._data import MinibatchSourceFromData
from feedline.cntk.io._deserializers import *
from feedline.cntk.io._minibatch import MinibatchData
from feedline.cntk.io._source import MinibatchSource
from feedline.cntk.io._streams import StreamConfiguration, StreamDef, StreamDefs, StreamInformation
from feedline.cntk.io._text import sequence_to_cntk_text_format
from feedline.cntk.io._user import UserDeserializer, UserFeed, UserMinibatchSource
from feedline.cntk.logging import TraceLevel

# Scripts import absent readers, too, and do not always call them.
__all__ = [*NAMES["cntk.io"].exported, *NAMES["cntk.io"].absent]


def __getattr__(name: str) -> Any:
    return look_up("cntk.io", name)

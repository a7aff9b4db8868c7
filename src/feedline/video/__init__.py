"""Frames of videos, decoded in threads at the end of the way into the minibatch.

    corpus = video.folder("clips")
    source = fl.MinibatchSource(corpus, seed=7, transforms=[video.Decode("frame", size=(256, 256))])

Until then a frame is a short text, its address ``clip.mp4#t=1.5``. PyAV and torchcodec (``pip install
'feedline[video]'``) read and decode.
"""

from feedline.data import Stream
from feedline.feed.files.paths import PathLike
from feedline.video.frame_decode import Decode
from feedline.video.video_files import VideoDeserializer


def folder(path: PathLike, **streams: Stream) -> VideoDeserializer:
    """Return the corpus of the frames of all videos in a folder: streams ``frame`` (str), ``video`` (int64) and
    ``time`` (float64).

    Args:
        path: the folder.
        streams: other streams than these, see `VideoDeserializer`.

    Raises:
        DataError: there is no such folder, it has no video, or a file is no video.
        SchemaError: the videos cannot fill a stream.
    """
    return VideoDeserializer(path, streams or None)


__all__ = ["Decode", "VideoDeserializer", "folder"]

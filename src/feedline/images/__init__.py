"""Steps that crop, resize, turn and color pictures, planned for all pictures of a minibatch at once.

`PictureStep` is what they have in common. Pillow and simplejpeg (``pip install 'feedline[images]'``) decode.
"""

from feedline.data import Stream
from feedline.feed.files.paths import PathLike
from feedline.feed.formats.images import ImageFolderDeserializer
from feedline.images import decoders
from feedline.images.color import ColorJitter, Normalize
from feedline.images.cropping import CenterCrop, RandomCrop, RandomResizedCrop
from feedline.images.flipping import Flip
from feedline.images.padding import Pad
from feedline.images.resizing import Resize
from feedline.images.step import PictureOp, PictureStep
from feedline.images.views import MultiView


def folder(path: PathLike, **streams: Stream) -> ImageFolderDeserializer:
    """Return the corpus of a folder of classes, ``path/cat/1.jpg``: streams ``image`` (bytes) and ``label`` (int64).

    Args:
        path: the folder.
        streams: other streams than these; see `ImageFolderDeserializer`, whose ``classes`` names the labels.

    Raises:
        DataError: there is no such folder, or a class without pictures.
        SchemaError: a stream that it cannot fill.
    """
    return ImageFolderDeserializer(path, streams or None)


__all__ = [
    "CenterCrop",
    "ColorJitter",
    "Flip",
    "MultiView",
    "Normalize",
    "Pad",
    "PictureOp",
    "PictureStep",
    "RandomCrop",
    "RandomResizedCrop",
    "Resize",
    "decoders",
    "folder",
]

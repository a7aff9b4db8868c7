"""Pictures, decoded in native threads, and cropped, resized, turned and coloured on the way into the minibatch.

    corpus = images.folder("train")
    steps = [images.RandomResizedCrop(224), images.Flip(0.5), images.Normalize(mean, std)]
    source = fl.MinibatchSource(corpus, seed=7, transforms=[images.Decode("image", *steps)])

`Decode` is the transform. The others are its steps, and `PictureStep` is their base class. Pillow and simplejpeg (``pip
install 'feedline[images]'``) decode the formats that native code does not.
"""

from feedline.data import Stream
from feedline.feed.files.paths import PathLike
from feedline.feed.formats.images import ImageFolderDeserializer
from feedline.images import decoders
from feedline.images.color import ColorJitter, Normalize
from feedline.images.cropping import CenterCrop, RandomCrop, RandomResizedCrop
from feedline.images.decode import Decode
from feedline.images.flipping import Flip
from feedline.images.padding import Pad
from feedline.images.resizing import Resize
from feedline.images.step import PictureOp, PictureStep
from feedline.images.views import MultiView


def folder(path: PathLike, **streams: Stream) -> ImageFolderDeserializer:
    """Return the corpus of a folder of classes, ``path/cat/1.jpg``: streams ``image`` (bytes) and ``label`` (int64).

    Args:
        path: the folder.
        streams: other streams than these, see `ImageFolderDeserializer`. Its ``classes`` has the names of the labels.

    Raises:
        DataError: there is no such folder, or a class without pictures.
        SchemaError: the folder cannot fill a stream.
    """
    return ImageFolderDeserializer(path, streams or None)


__all__ = [
    "CenterCrop",
    "ColorJitter",
    "Decode",
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

"""Frames of videos, decoded in threads at the end of the way into the minibatch.

    corpus = video.folder("clips")
    source = fl.MinibatchSource(corpus, seed=7, transforms=[video.Decode("frame", size=(256, 256))])

Until then a frame is a short text, its address ``clip.mp4#t=1.5``. PyAV and torchcodec (``pip install
'feedline[video]'``) read and decode.
"""

from feedline.video.frame_decode import Decode

__all__ = ["Decode"]

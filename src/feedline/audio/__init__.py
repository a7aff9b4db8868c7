"""Recordings, decoded in threads, cut and resampled, and turned into features on the way into the minibatch.

    corpus = fl.open_corpus("cuts.jsonl.gz")
    steps = [audio.Decode("audio"), audio.LogMel("audio")]
    source = fl.MinibatchSource(fl.Bucketed(corpus, 8, budget=16000 * 120), transforms=steps)

`Decode` reads WAV, FLAC, Ogg and MP3 with soundfile, and resamples with soxr (``pip install 'feedline[audio]'``). Other
formats, such as AAC, are decoded by torchcodec, if it is installed.
"""

from feedline.audio.crop import Crop
from feedline.audio.decode_audio import Decode
from feedline.audio.log_mel import LogMel
from feedline.audio.resample import Resample

__all__ = ["Crop", "Decode", "LogMel", "Resample"]

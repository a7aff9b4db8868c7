"""Videos for the tests, which need PyAV, torchcodec and FFmpeg's shared libraries."""

import pytest

from tests.video.clips import KINDS, make_video


@pytest.fixture(scope="session")
def codecs():
    """Skips where the libraries are missing, and names them."""
    pytest.importorskip("av", reason="av is not installed here: make frameworks")
    try:
        import torchcodec.decoders  # noqa: F401
    except ModuleNotFoundError:
        pytest.skip("torchcodec is not installed here: make frameworks")
    except Exception as error:
        pytest.skip(
            f"torchcodec finds no shared libraries of FFmpeg (Debian: libavfilter8, libavdevice59): {error!r:.80}"
        )


@pytest.fixture(autouse=True)
def own_cache(codecs, tmp_path_factory, monkeypatch):
    """A cache folder of its own for each test."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture(scope="session")
def videos(codecs, tmp_path_factory):
    """A function that returns the path of a video of a kind, which is made once."""
    folder = tmp_path_factory.mktemp("videos")
    made = {}

    def video(kind="h264"):
        if kind not in made:
            made[kind] = make_video(folder / kind.replace(" ", "-"), kind)
        return made[kind]

    return video


@pytest.fixture(params=KINDS)
def path(request, videos):
    """The path of a video of each kind."""
    return videos(request.param)

"""Videos for the tests, and a cache folder for each."""

import pytest

from tests.video.clips import KINDS, make_video


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """A cache folder of its own for each test."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture(scope="session")
def videos(tmp_path_factory):
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

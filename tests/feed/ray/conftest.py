"""Tests with a real Ray: a private one, which is started once for each module of tests, and ends with it."""

from __future__ import annotations

import pytest

from feedline.interop import ray_session


@pytest.fixture(autouse=True, scope="module")
def one_ray():
    """The workers of a module share a private Ray; these tests never join one that somebody has started here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", "local")
        yield
        ray_session.leave()


@pytest.fixture
def joining() -> dict[str, str]:
    """The environment of a program that joins the module's Ray, and leaves it as it is."""
    ray_session.join()
    cluster = ray_session._private
    return {**cluster.settings, "RAY_ADDRESS": cluster.address}

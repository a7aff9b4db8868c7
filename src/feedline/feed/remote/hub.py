"""Repositories of the Hugging Face hub, read at one commit.

The commit is looked up once, at opening, and is part of every key from then on. What a commit has never changes, so
nothing is compared afterwards, and a list of its files is valid for every process and later run. huggingface_hub finds
the endpoint and the token, and lists.
"""

from __future__ import annotations

import urllib.parse

from feedline.feed.remote.blocking_calls import in_own_thread
from feedline.feed.remote.file_systems import FileSystemStore
from feedline.feed.remote.stores import ObjectInfo, StoreFault, faults

_PARTIAL = 206


class HubStore(FileSystemStore):
    """Repositories of one type, or models of one owner. Keys have the form ``name@commit/path``."""

    commits = True

    async def pinned(self, key: str) -> str:
        """See `Store.pinned`."""

        def ask() -> str:
            from huggingface_hub import HfApi

            system = self._system
            system.invalidate_cache()
            place = system.resolve_path(self._path(key))
            api = HfApi(endpoint=system.endpoint, token=system.token)
            commit = api.repo_info(place.repo_id, repo_type=place.repo_type, revision=place.revision).sha
            repository = place.unresolve().removesuffix(place.path_in_repo).partition("@")[0].rstrip("/")
            name = repository.removeprefix(self._base)
            return f"{name}@{commit}/{place.path_in_repo}".rstrip("/")

        with faults():
            try:
                return await in_own_thread(ask)
            except FileNotFoundError as error:
                what = "no such repository or revision, or none that this token (HF_TOKEN) may read"
                raise StoreFault(f"{what}: {error}", kind="missing") from error

    def _forget(self, path: str) -> None:
        """What a commit has never changes."""

    def _etag(self, path: str, etag: str) -> str:
        return etag or path.partition("@")[2].partition("/")[0]

    async def _check_unchanged(self, info: ObjectInfo, path: str) -> None:
        """What a commit has never changes."""

    def _cat(self, path: str, begin: int, end: int) -> bytes:
        # Not by `cat_file`, which would list the folder in every process.
        from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

        system = self._system
        repository, _, revision_and_path = path.partition("@")
        commit, _, inside = revision_and_path.partition("/")
        url = f"{system.endpoint}/{repository}/resolve/{commit}/{urllib.parse.quote(inside)}"
        headers = {**build_hf_headers(token=system.token), "range": f"bytes={begin}-{end - 1}"}
        response = get_session().get(url, headers=headers)
        hf_raise_for_status(response)
        data: bytes = response.content
        return data if response.status_code == _PARTIAL else data[begin:end]

"""Zarr stores, written and read by zarr itself in event loops that end, so that no threads of its stay."""

import asyncio
import warnings

import zarr.api.asynchronous as library
import zarr.storage


def write(path, arrays, zarr_format=3, zipped=False, **options):
    """Write a group. ``arrays``: by path the data, and other arguments of `create_array`."""

    async def written():
        store = zarr.storage.ZipStore(str(path), mode="w") if zipped else zarr.storage.LocalStore(str(path))
        group = await library.create_group(store=store, zarr_format=zarr_format)
        for name, (data, more) in arrays.items():
            about = {"shape": data.shape, "dtype": data.dtype, **options, **more}
            array = await group.create_array(name, **about)
            if "fill_value" not in more:
                await array.setitem(Ellipsis, data)
        store.close()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of kinds of strings that version 3 does not specify
        asyncio.run(written())
    return str(path)


def read(path, name):
    """What zarr reads: all rows of an array."""

    async def rows():
        group = await library.open_group(store=str(path), mode="r")
        array = await group.getitem(name)
        return await array.getitem(slice(None))

    return asyncio.run(rows())

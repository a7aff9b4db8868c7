"""HDF5 and Zarr: files of arrays, mostly in chunks, that other libraries read."""

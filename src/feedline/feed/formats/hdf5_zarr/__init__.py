"""Arrays that other libraries store in chunks: HDF5 and Zarr."""

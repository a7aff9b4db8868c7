"""How is a batch made? Formats, order, packing, execution, and the source that joins them.

Inside: ``source → ahead → packing | prefetch → formats | timeline | transforms → assembly → protocol``.
"""

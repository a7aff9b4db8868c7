"""How is a batch made? Formats, order, packing, execution, and the source that joins them.

Inside: ``source → delivery | states | plan → ahead | lengths → packing | prefetch → formats | timeline | transforms →
assembly → protocol``.
"""

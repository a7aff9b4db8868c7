"""How is a batch made? Formats, order, packing, execution, and the source that joins them.

Inside: ``source → prefetch → formats | timeline | transforms | packing → assembly → protocol``.
"""

"""Minibatches from data: formats, order, packing, execution, and the source that joins them.

Inside: ``loader → source → delivery | states | plan | device → ahead | lengths → packing | prefetch → formats |
timeline | transforms | workers → assembly → protocol``.
"""

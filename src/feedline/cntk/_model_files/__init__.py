"""Model files of CNTK 2.7 (`.model`, `.dnn`): protobuf messages, and the graphs that they hold.

`dictionaries` knows the messages, `operators` and `blocks` the operations, `reading` and `writing` the graph.
"""

"""Model files of CNTK 2.7 (`.model`, `.dnn`): protobuf messages, and the graphs in them.

`dictionaries` converts the messages, `operators` and `blocks` the operations, `reading` and `writing` the graph.
"""

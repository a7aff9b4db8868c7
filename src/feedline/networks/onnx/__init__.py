"""Writing ONNX files: `onnx_writer` lists nodes, `onnx_operators` writes the graph's operations.

Tensors have their dynamic axes in front, as CNTK has them in ONNX: the batch, or the steps of sequences and then the
batch. All sequences of one run are equally long, since ONNX has no ragged tensors.
"""

"""Networks as source code of torch: a `torch.nn.Module` that needs torch alone, and its weights as safetensors.

`source_writer` lists lines, `torch_operators` has the expression of each operation. Tensors have their dynamic axes in
front: the batch, or the batch and the steps of sequences, which are padded at their ends. Lengths are an argument.
"""

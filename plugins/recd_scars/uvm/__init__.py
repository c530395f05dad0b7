"""Tables in host memory on CUDA: which of TorchRec's kernels serves each, how much is cached."""

"""Tables in host memory on CUDA: which TorchRec kernel serves each, and how much of it is
cached."""

"""One command for a machine with a GPU: whether every path of CUDA is right, and how fast it is."""

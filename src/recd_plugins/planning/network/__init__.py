"""What the network is worth: measured, and told to TorchRec."""

"""Other people's code where it is private or changes: TorchRec, versions."""

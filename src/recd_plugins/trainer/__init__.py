"""The standard TorchRec pipeline, assembled."""

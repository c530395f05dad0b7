"""IKJTs as Arrow and as bytes: nothing is pickled, no sample is expanded."""

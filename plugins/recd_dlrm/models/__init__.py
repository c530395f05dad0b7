"""Click models: from the dense and sparse features of a sample to the logit of a click."""

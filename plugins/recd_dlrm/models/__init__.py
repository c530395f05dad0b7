"""Click models: from the dense and sparse features of a sample to the logit of a click.

`click_model` gives any net a batch's columns and the losses of its labels. `dlrm` has TorchRec's
two models and the tables of all, `sequence_dlrm` a model that pools its sequences by choice.
"""

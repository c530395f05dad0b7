"""What ranks exchange about a batch's ids before it is computed.

    ids that miss       go home, each once where they are coalesced            home_ids
      over a node       by TorchRec, once the node has agreed on them          deferred_exchange
    ids of `per_node`   go to the ranks of the node that have their rows       node_exchange
    all ranks           learn which replicas the batch touches                 group_request

`group_request` does the last two in the waits of TorchRec's own exchange. The rows come back by
`HomeIds.back` and by `NodeExchange.rows_to_askers`.
"""

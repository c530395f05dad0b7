"""After backward: gradients of replicas are summed over ranks and applied once."""

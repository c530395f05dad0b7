"""The cluster that a plan is for: what registry.yaml states of it, and what was measured.

    the links and devices, as a user states them        topology
      by `recd topology measure`                         measured_topology
        lookups, updates and the disk with it            measured_work, measured_disk
        each by a clock of all ranks                     timer
      ranks exchange both ways at once, if it says so    exchanges
      the machines of ranks, as the launcher says        machines
    the same as prices have it, with all its rates      cluster

Whatever nobody stated or measured is TorchRec's default.
"""

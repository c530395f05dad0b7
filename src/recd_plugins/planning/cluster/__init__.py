"""The cluster that a plan is for: what registry.yaml states of it, and what was measured.

    the links and devices, as a user states them        topology
      by `recd topology measure`                         measured_topology, measured_work
      of a disk for mapped files                         measured_disk
        each by a clock of all ranks                     timer
      the machines of ranks, as the launcher says        machines
    the same as prices have it, with all its rates      cluster

What is neither stated nor measured has TorchRec's rates, or what stands for them.
"""

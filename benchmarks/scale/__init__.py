"""Steps of whole clusters, modelled: 4x8 to 64x8 GPUs; held to a simulation, to the papers, and to
what an emulated cluster measures."""

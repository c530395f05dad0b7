"""The host's own callbacks: what a run can do beside training, where registry.yaml names it."""

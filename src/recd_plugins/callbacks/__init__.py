"""The host's own callbacks: what a run can do beside training, if registry.yaml names it."""

"""The pluggy host: markers, specifications, manager."""

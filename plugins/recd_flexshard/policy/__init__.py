"""The policy of how many rows each tier takes: functions from prices to sizes."""

"""Forecasts for data that were not seen, compared with what happened."""

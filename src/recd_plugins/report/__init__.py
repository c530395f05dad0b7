"""Draws a report of what runs recorded and commands printed: one HTML page that needs no other
files."""

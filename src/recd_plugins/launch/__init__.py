"""Ranks of one machine: started, joined over loopback, ended with their parent, heard when they
fail."""

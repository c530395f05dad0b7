"""What each slot asks of the thing that its record builds: one file per slot."""

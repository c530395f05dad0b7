"""An emulated cluster on one Linux machine: nodes with slow links between them. Needs root."""

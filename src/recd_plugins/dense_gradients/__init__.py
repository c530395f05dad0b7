"""Dense gradients: all-reduced in parts during backward. With gloo and slow links between nodes,
they cross nodes once."""

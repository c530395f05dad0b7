"""FlexShard: tables of the paper, and plans measured on an emulated cluster."""

"""What the ledger adds up: the price of a row, of a bag, of a step and of a replica's memory."""

"""Where rows are when no replica has them: TorchRec's tables, in memory or in mapped files."""

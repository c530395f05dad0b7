"""The reader service, measured."""

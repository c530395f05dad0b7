"""DSI's transforms and layouts, measured."""

"""RecD's data side against what it replaces: files, logs, reader, conversions (O1 to O4)."""

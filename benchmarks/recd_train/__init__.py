"""RecD's trainer side against plain KJTs: step time, bytes, memory (O5 to O7)."""

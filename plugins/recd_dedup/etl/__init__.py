"""O2: clustering of tables by session, and downsampling."""

"""O2: tables clustered by session; downsampling."""

"""What the project says about data that it has not seen, compared with what turns out."""

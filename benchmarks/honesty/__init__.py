"""What the project says of data that it has not seen, beside what turns out."""

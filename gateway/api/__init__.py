"""What callers may ask, independent of any protocol."""

"""What callers may ask, in words of no protocol."""

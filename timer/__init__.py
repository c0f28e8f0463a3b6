"""Delayed records: a wheel of one-second slots, a log of what is in them, and the service that fires them."""

"""Delayed records: a wheel of one-second slots, a log of what hangs in them, and the service that fires them."""

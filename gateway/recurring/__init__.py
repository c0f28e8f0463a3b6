"""Recurring schedules: records that the server sends by itself, again and again, by a rule."""

"""What every HTTP surface needs and none owns: connections, admission, bodies, media types, statuses, answers."""

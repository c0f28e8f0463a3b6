"""Consumer groups at work: the shell around the machines of `gateway/groups/` that writes, applies, waits and reads."""

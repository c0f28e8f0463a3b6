"""Consumer groups as pure state machines: who is in, who owns which partition, what is done, what is out on lease.

Each machine changes in one way: `decide_…` looks at the state and returns events, the shell writes them to system topic
`__offsets`, and `apply` changes the state. Recovery is `apply` over what was written; a snapshot is a short list of
events that leads to the same state. Nothing here does I/O or reads a clock.
"""

"""Every kind of user, a steady number of them: more senders of single records than anything else."""

from loadtest.locustfile import *  # noqa: F403

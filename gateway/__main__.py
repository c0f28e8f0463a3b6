"""`python -m gateway` is the command `mq`."""

from gateway.cli import main

main()

"""How cost grows: each scenario at 1x, 10x and 100x of its size, on a new server each time.

    python -m loadtest.growth [--only push] [--rounds 3] [--resume] [--quick]

    scenarios.py   what grows in each, from where, and what is measured
    workloads.py   the workloads: against a server, with a size, numbers back
    report.py      all runs as JSON, a table of growth, a plot for each scenario

A point is one server and one size; every point has a file of its own (artifacts/growth/runs), and the report is made
from those and from nothing else. A point in which the server died or the work failed is marked failed, and has none.
"""

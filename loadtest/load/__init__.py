"""The load test: users of a server for Locust, their own checks of what the server promises, and its numbers.

    ledger.py     which records were acknowledged, and which came where: exact, small, put together over processes. Pure
    metrics.py    counts of the run by the second: for Locust's page, a CSV file, and the report. Pure
    socket.py     one WebSocket of a user
    run.py        one run: its name, its topic, what this process knows of it
    senders.py, readers.py, groups.py     the users
    audit.py      what is checked when the users have gone
    events.py     when all this happens: Locust's events, on one process or on a master and its workers
    page.py       the tab in Locust's page
    shapes.py     how the number of users goes over time
    __main__.py   `make load`: a server if none is given, Locust without its page, the report

A profile (loadtest/profiles/) is a locustfile that names users and a shape. How to use it: docs/load.md.
"""

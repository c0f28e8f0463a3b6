"""The scoreboard: the same work done by mq and by what people would run instead, on one machine, in one run.

    python -m loadtest.peers [--peers 'mq; kafka; nats'] [--rounds 5] [--quick]

    peer.py        what a peer is: a server that is started and stopped here, and the ways in which load reaches it
    registry.py    all peers by name
    fetch.py       where a peer's programs come from: pinned versions, Debian, Maven artifacts, the Go module proxy
    plan.py        the workloads, their sizes, and the order of a run
    fleet.py       all servers of one durability, up at once; one row after the other is measured
    session.py     one step: a client process against a server, and what it came to
    servers.py     processes of a peer: started, watched, stopped, killed
    usage.py       CPU of server, clients and kernel threads within a window; what limits a row
    drive.py       the client process: one way of one work, one result as JSON
    work.py        the workloads of Python clients, each written once for all of them
    replay.py      prebuilt bytes replayed, raw bytes fetched, wrk: the workloads of the server alone
    tool.py        a peer's own benchmark tool as a client
    runs.py        the files of a run; what is there is not run again
    report.py      all results as JSON, a page of tables and ratios, and charts
    compare.py     whether two results agree
    mq.py, kafka.py, rocketmq.py, nats.py, rabbitmq.py, redis.py, nsq.py, beanstalkd.py, bridge.py     the peers
    bare.py        a limit beside them: an HTTP handler that stores nothing

Rules. Every number comes from a file that its run wrote. A server that dies, a client that fails or a count that is
wrong makes the row "failed", never a number. Servers listen on loopback only, or in a network namespace of their own. A
peer that cannot be had is left out, with the reason in the report. Rows are compared only within a work and a
durability: a disk sync behind every acknowledged record, or written to the operating system before the answer. What
has the server alone (prebuilt bytes) and what has its client as well are different workloads.
"""

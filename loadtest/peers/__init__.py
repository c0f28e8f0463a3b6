"""The scoreboard: the same work done by mq and by what people would run instead, on one machine, in one run.

    python -m loadtest.peers [--peers mq,kafka,nats] [--rounds 5] [--seconds 3] [--quick]

    peer.py        what a peer is: a server that is started and stopped here, and a client of it
    fetch.py       where a peer's programs come from: pinned versions, Debian, Maven artifacts, the Go module proxy
    work.py        the works, each written once, for every peer's client
    drive.py       the client process: one work, one result as JSON
    servers.py     processes of a peer: started, measured (CPU, memory), stopped, killed
    report.py      all runs as JSON, a page of ratios, and charts
    mq.py, kafka.py, rocketmq.py, nats.py, nsq.py, rabbitmq.py, redis.py, beanstalkd.py, bridge.py     the peers

Rules. Every number comes from a file that its run wrote. A server that dies, a client that fails or a count that is
wrong makes the row "failed", never a number. Servers listen on loopback only, or in a network namespace of their own. A
peer that cannot be had is left out, with the reason in the report. Each is measured with a disk sync behind every
acknowledged batch and, where it has that level, without one before the answer.
"""

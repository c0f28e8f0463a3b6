"""`make bench`: how fast a server is, each number beside its limit measured in the same run.

    subject      one thing whose speed is measured: our server, or a limit
    limit        what nobody in our place could beat: a bare aiohttp handler that parses and stores nothing, or a
                 bare loop of pwritev and fdatasync
    run          one measurement of one subject, a second or two
    round        one run of every subject of a scenario, in turn (A B A B), so that what else the machine does
                 falls on all of them alike
    comparison   one line of the result: ours beside a limit; the median of the rounds' ratios, and their range

A run with a single wrong answer has no number: its scenario is reported as failed, and the program exits with 1.
"""

"""`make bench`: how fast a server is, each number beside its limit measured in the same run.

    subject      one thing whose speed is measured: our server, or a limit
    limit        the same work with ours left out: a bare aiohttp handler that parses and stores nothing, or a bare
                 loop of pwritev and fdatasync, which merges as many batches into a write as ours can. No upper
                 bound: ours goes another way to the same end (its own HTTP parser's fast path, small groups synced
                 by the kernel, the disk started early), and rounds above 100 % have been measured
    run          one measurement of one subject, a second or two
    round        one run of every subject of a scenario, in turn (A B A B), so that what else the machine does
                 falls on all of them alike
    comparison   one line of the result: ours beside a limit; the median of the rounds' ratios, and their range

A run with a single wrong answer has no number: its scenario is reported as failed, and the program exits with 1.
"""

"""For tests of programs that use mq: a server in memory whose time is yours, and pytest fixtures (`mq_fake`,
`mq_server`).

async def test_a_mail_is_tried_again(mq_fake):
    await mq_fake.topics.create("mails")
    await mq_fake.send("mails", {"to": "ann"})
    run = asyncio.create_task(send_mail.run(mq_fake))
    await mq_fake.advance("1m")
"""

from mq.testing.fake import Fake

__all__ = ["Fake"]

// RocketMQ's own client, for the scoreboard: frames on standard input, answers and values on standard output.
// See rocketmq.py, which compiles it and speaks to it.

import java.io.*;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.constant.ConsumeInitMode;
import org.apache.rocketmq.common.filter.ExpressionType;
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.remoting.protocol.header.*;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

public final class RocketMqClient {
    private static final int CREATE = 1, SEND = 2, READ = 3, DELAY = 4, RECEIVE = 5, CLOSE = 6, DROP = 7;
    private static final int ANSWER = 0, VALUES = 1, FAILURE = 2;

    /** Messages of a pull; the broker is set to give as many (its default is 32). */
    private static final int PULL_MESSAGES = 1024;

    /** How many messages a consumer holds before it stops pulling: not below a few pulls, or it waits 50 ms each. */
    private static final int HELD_MESSAGES = 64 * PULL_MESSAGES;

    private static final int POP_MESSAGES = 32; // the most that a broker gives
    private static final int POPS_UNDER_WAY = 16;
    private static final long INVISIBLE_MS = 60_000, POLL_MS = 10_000, TIMEOUT_MS = 30_000;
    private static final String GROUP = "scoreboard";

    /** Delayed messages on their way at a time: more, and the broker answers that it is busy. */
    private final Semaphore delaying = new Semaphore(256);

    private final String nameServer;
    private final String broker;
    private final DefaultMQProducer producer = new DefaultMQProducer(GROUP);
    private final DefaultMQAdminExt admin = new DefaultMQAdminExt();
    private final ExecutorService workers = Executors.newCachedThreadPool();
    private final Map<Integer, Runnable> readers = new ConcurrentHashMap<>();
    private final DataOutputStream out;

    private RocketMqClient(String nameServer, String broker, OutputStream out) throws Exception {
        this.nameServer = nameServer;
        this.broker = broker;
        this.out = new DataOutputStream(new BufferedOutputStream(out, 1 << 20));
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout((int) TIMEOUT_MS);
        producer.setMaxMessageSize(8 << 20);
        producer.start();
        admin.setNamesrvAddr(nameServer);
        admin.start();
    }

    public static void main(String[] arguments) throws Exception {
        OutputStream out = System.out;
        System.setOut(System.err); // its logging prints there
        new RocketMqClient(arguments[0], arguments[1], out).run();
    }

    private void run() throws Exception {
        answer(ANSWER, 0, ""); // ready
        DataInputStream in = new DataInputStream(new BufferedInputStream(System.in, 1 << 20));
        while (true) {
            int size = in.readInt();
            int kind = in.readByte();
            ByteBuffer body = ByteBuffer.wrap(in.readNBytes(size));
            int id = body.getInt();
            byte[] name = new byte[body.getShort()];
            body.get(name);
            String topic = new String(name, StandardCharsets.UTF_8);
            workers.submit(() -> work(kind, id, topic, body));
        }
    }

    private void work(int kind, int id, String topic, ByteBuffer body) {
        try {
            switch (kind) {
                case CREATE -> create(topic);
                case SEND -> {
                    send(id, topic, values(body));
                    return; // answered by its callback
                }
                case DELAY -> {
                    delay(id, topic, values(body), body);
                    return;
                }
                case READ -> read(id, topic);
                case RECEIVE -> receive(id, topic);
                case CLOSE -> readers.remove(body.getInt()).run();
                case DROP -> drop(topic);
                default -> throw new IllegalArgumentException("kind " + kind);
            }
            answer(ANSWER, id, "");
        } catch (Throwable problem) {
            answer(FAILURE, id, problem.toString());
        }
    }

    private void create(String topic) throws Exception {
        for (int attempt = 0; ; attempt++) {
            try {
                producer.createTopic("TBW102", topic, 1, Map.of());
                break;
            } catch (Exception problem) { // the broker has not told the name server of itself yet
                if (attempt == 100) {
                    throw problem;
                }
                Thread.sleep(200);
            }
        }
        for (int attempt = 0; producer.fetchPublishMessageQueues(topic).isEmpty() && attempt < 100; attempt++) {
            Thread.sleep(50);
        }
    }

    private void drop(String topic) throws Exception {
        admin.deleteTopicInBroker(Set.of(broker), topic);
        admin.deleteTopicInNameServer(Set.of(nameServer), topic);
    }

    private void send(int id, String topic, List<byte[]> values) throws Exception {
        SendCallback callback = answering(id, new AtomicInteger(1), () -> {});
        if (values.size() == 1) {
            producer.send(new Message(topic, values.get(0)), callback);
            return;
        }
        List<Message> batch = new ArrayList<>(values.size());
        for (byte[] value : values) {
            batch.add(new Message(topic, value));
        }
        producer.send(batch, callback);
    }

    private void delay(int id, String topic, List<byte[]> values, ByteBuffer times) throws Exception {
        SendCallback callback = answering(id, new AtomicInteger(values.size()), delaying::release);
        for (byte[] value : values) { // a batch cannot be delayed
            Message message = new Message(topic, value);
            message.setDeliverTimeMs(times.getLong());
            delaying.acquire();
            producer.send(message, callback);
        }
    }

    /** Answers once so many sends are acknowledged, or one has failed. */
    private SendCallback answering(int id, AtomicInteger left, Runnable after) {
        return new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                if (result.getSendStatus() != SendStatus.SEND_OK) {
                    onException(new IOException("not sent: " + result.getSendStatus()));
                    return;
                }
                after.run();
                if (left.decrementAndGet() == 0) {
                    answer(ANSWER, id, "");
                }
            }

            @Override
            public void onException(Throwable problem) {
                after.run();
                if (left.getAndSet(-1) > 0) {
                    answer(FAILURE, id, problem.toString());
                }
            }
        };
    }

    /** A pull consumer that is assigned the topic's queue, from its start. */
    private void read(int id, String topic) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("reader-" + topic + "-" + id);
        consumer.setNamesrvAddr(nameServer);
        consumer.setAutoCommit(false);
        consumer.setPullBatchSize(PULL_MESSAGES);
        consumer.setPullThresholdForQueue(HELD_MESSAGES);
        consumer.setPullThresholdForAll(HELD_MESSAGES);
        consumer.setConsumeMaxSpan(HELD_MESSAGES);
        consumer.start();
        Collection<MessageQueue> queues = List.of();
        for (int attempt = 0; queues.isEmpty(); attempt++) {
            try {
                queues = consumer.fetchMessageQueues(topic);
            } catch (Exception problem) { // a broker that has just started has not told the name server of it yet
                if (attempt == 600) {
                    throw problem;
                }
                Thread.sleep(50);
            }
        }
        consumer.assign(queues);
        for (MessageQueue queue : queues) {
            consumer.seekToBegin(queue);
        }
        CountDownLatch closing = new CountDownLatch(1);
        readers.put(id, () -> {
            closing.countDown();
            consumer.shutdown();
        });
        workers.submit(() -> {
            while (closing.getCount() > 0) {
                push(id, consumer.poll(100));
            }
        });
    }

    /** Pops, as its push consumer does in pop mode, an ack for each message; it is handed on when that is confirmed. */
    private void receive(int id, String topic) {
        CountDownLatch closing = new CountDownLatch(1);
        readers.put(id, closing::countDown);
        for (int number = 0; number < POPS_UNDER_WAY; number++) {
            workers.submit(() -> pop(id, topic, closing));
        }
    }

    private void pop(int id, String topic, CountDownLatch closing) {
        if (closing.getCount() == 0) {
            return;
        }
        PopMessageRequestHeader header = new PopMessageRequestHeader();
        header.setConsumerGroup(GROUP);
        header.setTopic(topic);
        header.setQueueId(0);
        header.setMaxMsgNums(POP_MESSAGES);
        header.setInvisibleTime(INVISIBLE_MS);
        header.setPollTime(POLL_MS);
        header.setBornTime(System.currentTimeMillis());
        header.setInitMode(ConsumeInitMode.MIN);
        header.setExpType(ExpressionType.TAG);
        header.setExp("*");
        header.setOrder(false);
        try {
            api().popMessageAsync("mq", broker, header, TIMEOUT_MS, new PopCallback() {
                @Override
                public void onSuccess(PopResult result) {
                    List<MessageExt> found = result.getMsgFoundList();
                    acknowledge(found == null ? List.of() : found, closing, () -> {
                        push(id, found);
                        pop(id, topic, closing);
                    });
                }

                @Override
                public void onException(Throwable problem) {
                    fail(closing, problem);
                }
            });
        } catch (Exception problem) {
            fail(closing, problem);
        }
    }

    private void acknowledge(List<MessageExt> messages, CountDownLatch closing, Runnable done) {
        if (messages.isEmpty()) {
            done.run();
            return;
        }
        AtomicInteger left = new AtomicInteger(messages.size());
        for (MessageExt message : messages) {
            String info = message.getProperty(MessageConst.PROPERTY_POP_CK);
            String[] parts = ExtraInfoUtil.split(info);
            AckMessageRequestHeader header = new AckMessageRequestHeader();
            header.setConsumerGroup(GROUP);
            header.setTopic(ExtraInfoUtil.getRealTopic(parts, message.getTopic(), GROUP));
            header.setQueueId(ExtraInfoUtil.getQueueId(parts));
            header.setOffset(ExtraInfoUtil.getQueueOffset(parts));
            header.setExtraInfo(info);
            try {
                api().ackMessageAsync(broker, TIMEOUT_MS, new AckCallback() {
                    @Override
                    public void onSuccess(AckResult result) {
                        if (result.getStatus() != AckStatus.OK) {
                            onException(new IOException("not acknowledged: " + result.getStatus()));
                        } else if (left.decrementAndGet() == 0) {
                            done.run();
                        }
                    }

                    @Override
                    public void onException(Throwable problem) {
                        fail(closing, problem);
                    }
                }, header);
            } catch (Exception problem) {
                fail(closing, problem);
            }
        }
    }

    private MQClientAPIImpl api() {
        return producer.getDefaultMQProducerImpl().getMqClientFactory().getMQClientAPIImpl();
    }

    private static List<byte[]> values(ByteBuffer body) {
        List<byte[]> found = new ArrayList<>();
        for (int left = body.getInt(); left > 0; left--) {
            byte[] value = new byte[body.getInt()];
            body.get(value);
            found.add(value);
        }
        return found;
    }

    private void push(int id, List<MessageExt> messages) {
        if (messages == null || messages.isEmpty()) {
            return;
        }
        int size = 4;
        for (MessageExt message : messages) {
            size += 4 + message.getBody().length;
        }
        ByteBuffer body = ByteBuffer.allocate(size).putInt(id);
        for (MessageExt message : messages) {
            body.putInt(message.getBody().length).put(message.getBody());
        }
        write(VALUES, body.array());
    }

    private void answer(int kind, int id, String text) {
        byte[] encoded = text.getBytes(StandardCharsets.UTF_8);
        write(kind, ByteBuffer.allocate(4 + encoded.length).putInt(id).put(encoded).array());
    }

    private synchronized void write(int kind, byte[] body) {
        try {
            out.writeInt(body.length);
            out.writeByte(kind);
            out.write(body);
            out.flush();
        } catch (IOException problem) {
            System.exit(1);
        }
    }

    /** A reader has no request that could be answered: the process ends, and with it all that waits for it. */
    private static void fail(CountDownLatch closing, Throwable problem) {
        if (closing.getCount() == 0) {
            return;
        }
        problem.printStackTrace();
        System.exit(1);
    }
}

// RocketMQ's own client, for the scoreboard: frames on standard input, answers and values on standard output.
// See rocketmq.py, which speaks to it. Run as a source file: java -cp '<jars>/*' RocketMqClient.java HOST:PORT

import java.io.*;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.message.*;

public final class RocketMqClient {
    /** Delayed messages on their way at a time: more, and the broker answers that it is busy. */
    private final Semaphore delaying = new Semaphore(256);

    private static final int CREATE = 1, SEND = 2, READ = 3, DELAY = 4;
    private static final int ANSWER = 0, VALUES = 1, FAILURE = 2;

    private final String nameServer;
    private final DefaultMQProducer producer = new DefaultMQProducer("scoreboard");
    private final ExecutorService workers = Executors.newFixedThreadPool(64);
    private final DataOutputStream out;

    private RocketMqClient(String nameServer, OutputStream out) throws Exception {
        this.nameServer = nameServer;
        this.out = new DataOutputStream(new BufferedOutputStream(out, 1 << 20));
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(30_000);
        producer.setMaxMessageSize(8 << 20);
        producer.start();
    }

    public static void main(String[] arguments) throws Exception {
        OutputStream out = System.out;
        System.setOut(System.err); // its logging prints there
        new RocketMqClient(arguments[0], out).run();
    }

    private void run() throws Exception {
        DataInputStream in = new DataInputStream(new BufferedInputStream(System.in, 1 << 20));
        while (true) {
            int size = in.readInt();
            int kind = in.readByte();
            byte[] body = in.readNBytes(size);
            workers.submit(() -> work(kind, ByteBuffer.wrap(body)));
        }
    }

    private void work(int kind, ByteBuffer body) {
        int id = body.getInt();
        byte[] name = new byte[body.getShort()];
        body.get(name);
        String topic = new String(name, StandardCharsets.UTF_8);
        try {
            switch (kind) {
                case CREATE -> create(topic);
                case SEND -> send(topic, values(body));
                case READ -> read(topic);
                case DELAY -> delay(topic, values(body), body);
                default -> throw new IllegalArgumentException("kind " + kind);
            }
            answer(ANSWER, id, new byte[0]);
        } catch (Throwable problem) {
            answer(FAILURE, id, problem.toString().getBytes(StandardCharsets.UTF_8));
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

    private void send(String topic, List<byte[]> values) throws Exception {
        List<Message> batch = new ArrayList<>(values.size());
        for (byte[] value : values) {
            batch.add(new Message(topic, value));
        }
        check(batch.size() == 1 ? producer.send(batch.get(0)) : producer.send(batch));
    }

    private void delay(String topic, List<byte[]> values, ByteBuffer times) throws Exception {
        CountDownLatch left = new CountDownLatch(values.size());
        List<Throwable> problems = Collections.synchronizedList(new ArrayList<>());
        for (byte[] value : values) {
            Message message = new Message(topic, value);
            message.setDeliverTimeMs(times.getLong());
            delaying.acquire();
            producer.send(message, new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    delaying.release();
                    left.countDown();
                }

                @Override
                public void onException(Throwable problem) {
                    problems.add(problem);
                    delaying.release();
                    left.countDown();
                }
            });
        }
        left.await();
        if (!problems.isEmpty()) {
            throw new IOException(problems.get(0));
        }
    }

    private void read(String topic) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("reader-" + topic);
        consumer.setNamesrvAddr(nameServer);
        consumer.setAutoCommit(false);
        consumer.setPullBatchSize(1024);
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
        Thread pump = new Thread(() -> {
            while (true) {
                List<MessageExt> messages = consumer.poll(50);
                if (!messages.isEmpty()) {
                    push(messages);
                }
            }
        });
        pump.setDaemon(true);
        pump.start();
    }

    private static void check(SendResult result) throws IOException {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IOException("not sent: " + result.getSendStatus());
        }
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

    private synchronized void push(List<MessageExt> messages) {
        try {
            int size = 0;
            for (MessageExt message : messages) {
                size += 4 + message.getBody().length;
            }
            out.writeInt(size);
            out.writeByte(VALUES);
            for (MessageExt message : messages) {
                out.writeInt(message.getBody().length);
                out.write(message.getBody());
            }
            out.flush();
        } catch (IOException problem) {
            System.exit(1);
        }
    }

    private synchronized void answer(int kind, int id, byte[] text) {
        try {
            out.writeInt(4 + text.length);
            out.writeByte(kind);
            out.writeInt(id);
            out.write(text);
            out.flush();
        } catch (IOException problem) {
            System.exit(1);
        }
    }
}

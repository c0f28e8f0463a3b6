// Apache Kafka's Java client for tests/e2e/test_kafka_clients.py: lines in, what is acknowledged or consumed out.
//
//     KafkaLines produce ADDRESS TOPIC         sends each line of standard input; prints it when it is acknowledged
//     KafkaLines consume ADDRESS TOPIC GROUP   prints what it consumes, until it is killed
//     KafkaLines admin ADDRESS TOPIC           makes, grows and describes a topic; prints what it finds

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class KafkaLines {
    public static void main(String[] args) throws Exception {
        switch (args[0]) {
            case "produce" -> produce(args[1], args[2]);
            case "consume" -> consume(args[1], args[2], args[3]);
            default -> admin(args[1], args[2]);
        }
    }

    static void produce(String address, String topic) throws Exception {
        // Idempotent and acks=all: the defaults since 3.0.
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", address, "linger.ms", 5, "delivery.timeout.ms", 90_000, "max.block.ms", 90_000);
        AtomicInteger failures = new AtomicInteger();
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            var lines = new BufferedReader(new InputStreamReader(System.in));
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                String value = line;
                producer.send(new ProducerRecord<>(topic, value, value), (placed, error) -> {
                    if (error == null) {
                        System.out.println(value);
                    } else {
                        failures.incrementAndGet();
                        error.printStackTrace();
                    }
                });
            }
        }
        System.exit(failures.get() == 0 ? 0 : 1);
    }

    static void consume(String address, String topic, String group) {
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", address, "group.id", group, "auto.offset.reset", "earliest",
            "auto.commit.interval.ms", 200, "session.timeout.ms", 6_000, "heartbeat.interval.ms", 500);
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            while (true) {
                for (var found : consumer.poll(Duration.ofMillis(100))) {
                    System.out.println(found.value());
                }
            }
        }
    }

    static void admin(String address, String topic) throws Exception {
        try (var admin = Admin.create(Map.of("bootstrap.servers", address))) {
            admin.createTopics(List.of(new NewTopic(topic, 2, (short) 1).configs(Map.of("retention.ms", "60000")))).all().get();
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all().get();
            var resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
            var retention = admin.describeConfigs(List.of(resource)).all().get().get(resource).get("retention.ms").value();
            var partitions = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size();
            var end = admin.listOffsets(Map.of(new TopicPartition(topic, 0), OffsetSpec.latest())).all().get();
            var nodes = admin.describeCluster().nodes().get().size();
            System.out.println(retention + " " + partitions + " " + end.values().iterator().next().offset() + " " + nodes);
            admin.deleteTopics(List.of(topic)).all().get();
            System.out.println(admin.listTopics().names().get().contains(topic));
        }
    }
}

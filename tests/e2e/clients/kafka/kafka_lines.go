// franz-go for tests/e2e/test_kafka_clients.py: lines in, what is acknowledged or consumed out.
//
//	kafka_lines produce ADDRESS TOPIC         sends each line of standard input; prints it when it is acknowledged
//	kafka_lines consume ADDRESS TOPIC GROUP   prints what it consumes, until it is killed
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	if os.Args[1] == "produce" {
		produce(os.Args[2], os.Args[3])
	} else {
		consume(os.Args[2], os.Args[3], os.Args[4])
	}
}

func client(options ...kgo.Opt) *kgo.Client {
	made, err := kgo.NewClient(options...)
	if err != nil {
		panic(err)
	}
	return made
}

// Idempotent and acks=all: its defaults.
func produce(address, topic string) {
	made := client(kgo.SeedBrokers(address), kgo.ProducerLinger(5*time.Millisecond), kgo.RecordDeliveryTimeout(90*time.Second))
	var failures atomic.Int32
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		line := lines.Text()
		record := &kgo.Record{Topic: topic, Key: []byte(line), Value: []byte(line)}
		made.Produce(context.Background(), record, func(_ *kgo.Record, err error) {
			if err != nil {
				failures.Add(1)
				fmt.Fprintln(os.Stderr, err)
			} else {
				fmt.Println(line)
			}
		})
	}
	if err := made.Flush(context.Background()); err != nil || failures.Load() > 0 {
		os.Exit(1)
	}
}

func consume(address, topic, group string) {
	made := client(
		kgo.SeedBrokers(address), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.SessionTimeout(6*time.Second),
		kgo.HeartbeatInterval(500*time.Millisecond), kgo.AutoCommitInterval(200*time.Millisecond),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	for {
		made.PollFetches(context.Background()).EachRecord(func(record *kgo.Record) {
			fmt.Println(string(record.Value))
		})
	}
}

import com.fasterxml.jackson.annotation.JsonIgnoreProperties;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.ObjectReader;
import com.fasterxml.jackson.databind.ObjectWriter;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.processor.api.FixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyProcessorContext;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * Totals per user with Kafka Streams and exactly_once_v2, tuned as KafkaStreamsPeer: an aggregate with its cache and
 * its changelog, whose outputs are those that the cache lets out at each commit. Option every: a processor over the
 * same kind of store that forwards the total of each order.
 */
public final class KafkaStreamsTotals {
    private static final String STORE = "totals";
    private static final AtomicBoolean SAID = new AtomicBoolean();
    private static final ObjectMapper MAPPER = new ObjectMapper();
    private static final ObjectReader ORDERS = MAPPER.readerFor(Order.class);
    private static final ObjectWriter TOTALS = MAPPER.writerFor(Total.class);

    private KafkaStreamsTotals() { }

    @JsonIgnoreProperties(ignoreUnknown = true)
    public record Order(String user, long amount) { }

    public record Total(String user, long total) { }

    public static void main(String[] args) throws InterruptedException {
        String task = args[0];
        boolean every = task.contains("\"every\": true");
        Serde<Order> orders = Serdes.serdeFrom((topic, order) -> null, (topic, data) -> order(data));
        StreamsBuilder builder = new StreamsBuilder();
        if (every) {
            builder.addStateStore(Stores.keyValueStoreBuilder(
                Stores.persistentKeyValueStore(STORE), Serdes.String(), Serdes.Long()).withCachingEnabled());
        }
        KStream<String, Order> input = builder.stream(text(task, "input"), Consumed.with(Serdes.String(), orders));
        KStream<String, byte[]> output = every
            ? input.processValues(AddUp::new, STORE)
            : input
                .groupByKey(Grouped.with(Serdes.String(), orders))
                .aggregate(() -> 0L, (user, order, total) -> total + order.amount(),
                    Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as(STORE)
                        .withKeySerde(Serdes.String()).withValueSerde(Serdes.Long()).withCachingEnabled())
                .toStream()
                .mapValues(KafkaStreamsTotals::total);
        output.to(text(task, "output"), Produced.with(Serdes.String(), Serdes.ByteArray()));
        CountDownLatch stopped = new CountDownLatch(1);
        KafkaStreams streams = new KafkaStreams(builder.build(), settings(task));
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            streams.close();
            stopped.countDown();
        }));
        streams.start();
        stopped.await();
    }

    private static Properties settings(String task) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, text(task, "group"));
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, text(task, "bootstrap"));
        settings.put(StreamsConfig.STATE_DIR_CONFIG, text(task, "folder") + "/state");
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, number(task, "commit_ms"));
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG), 10_000);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 512L << 20);
        settings.put(StreamsConfig.BUFFERED_RECORDS_PER_PARTITION_CONFIG, 10_000);
        settings.put(StreamsConfig.producerPrefix(ProducerConfig.BATCH_SIZE_CONFIG), 512 << 10);
        settings.put(StreamsConfig.producerPrefix(ProducerConfig.LINGER_MS_CONFIG), 20);
        settings.put(StreamsConfig.producerPrefix(ProducerConfig.BUFFER_MEMORY_CONFIG), 128L << 20);
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.MAX_POLL_RECORDS_CONFIG), 10_000);
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.MAX_PARTITION_FETCH_BYTES_CONFIG), 4 << 20);
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.FETCH_MAX_BYTES_CONFIG), 32 << 20);
        String compression = text(task, "compression");
        if (compression != null) {
            settings.put(StreamsConfig.producerPrefix(ProducerConfig.COMPRESSION_TYPE_CONFIG), compression);
        }
        return settings;
    }

    private static Order order(byte[] data) {
        if (SAID.compareAndSet(false, true)) {
            System.out.println("first records");
        }
        try {
            return ORDERS.readValue(data);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private static byte[] total(String user, long total) {
        try {
            return TOTALS.writeValueAsBytes(new Total(user, total));
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private static final class AddUp implements FixedKeyProcessor<String, Order, byte[]> {
        private FixedKeyProcessorContext<String, byte[]> context;
        private KeyValueStore<String, Long> totals;

        @Override
        public void init(FixedKeyProcessorContext<String, byte[]> given) {
            context = given;
            totals = given.getStateStore(STORE);
        }

        @Override
        public void process(FixedKeyRecord<String, Order> record) {
            Long before = totals.get(record.key());
            long sum = (before == null ? 0 : before) + record.value().amount();
            totals.put(record.key(), sum);
            context.forward(record.withValue(total(record.key(), sum)));
        }
    }

    private static String text(String task, String name) {
        Matcher found = Pattern.compile("\"" + name + "\": \"([^\"]*)\"").matcher(task);
        return found.find() ? found.group(1) : null;
    }

    private static int number(String task, String name) {
        Matcher found = Pattern.compile("\"" + name + "\": (\\d+)").matcher(task);
        found.find();
        return Integer.parseInt(found.group(1));
    }
}

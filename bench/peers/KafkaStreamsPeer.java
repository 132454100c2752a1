import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.processor.api.FixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyProcessorContext;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.WindowStore;
import org.apache.kafka.streams.state.WindowStoreIterator;

/**
 * Kafka Streams with exactly_once_v2: a FixedKeyProcessor that forwards what moves its key's sequence forward, over a
 * persistent store with a changelog. Option tuned: a cache that holds the state, large batches, and two threads, or as
 * many as option threads says. Option remembered_s: it forwards the first record of each key, over a window store with that retention, as Confluent's
 * tutorial does it.
 */
public final class KafkaStreamsPeer {
    private static final String STORE = "sequences";
    private static final AtomicBoolean SAID = new AtomicBoolean();

    private KafkaStreamsPeer() { }

    public static void main(String[] args) throws InterruptedException {
        String task = args[0];
        boolean tuned = task.contains("\"tuned\": true");
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, text(task, "group"));
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, text(task, "bootstrap"));
        settings.put(StreamsConfig.STATE_DIR_CONFIG, text(task, "folder") + "/state");
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, number(task, "commit_ms"));
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG), 10_000);
        if (tuned) {
            settings.put(
                StreamsConfig.NUM_STREAM_THREADS_CONFIG, task.contains("\"threads\":") ? number(task, "threads") : 2);
            settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 512L << 20);
            settings.put(StreamsConfig.BUFFERED_RECORDS_PER_PARTITION_CONFIG, 10_000);
            settings.put(StreamsConfig.producerPrefix(ProducerConfig.BATCH_SIZE_CONFIG), 512 << 10);
            settings.put(StreamsConfig.producerPrefix(ProducerConfig.LINGER_MS_CONFIG), 20);
            settings.put(StreamsConfig.producerPrefix(ProducerConfig.BUFFER_MEMORY_CONFIG), 128L << 20);
            settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.MAX_POLL_RECORDS_CONFIG), 10_000);
            settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.MAX_PARTITION_FETCH_BYTES_CONFIG), 4 << 20);
            settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.FETCH_MAX_BYTES_CONFIG), 32 << 20);
        }
        String compression = text(task, "compression");
        if (compression != null) {
            settings.put(StreamsConfig.producerPrefix(ProducerConfig.COMPRESSION_TYPE_CONFIG), compression);
        }
        Duration remembered = task.contains("remembered_s") ? Duration.ofSeconds(number(task, "remembered_s")) : null;
        StoreBuilder<?> store = remembered == null
            ? Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore(STORE), Serdes.ByteArray(), Serdes.Long())
            : Stores.windowStoreBuilder(
                Stores.persistentWindowStore(STORE, remembered, remembered, false), Serdes.ByteArray(), Serdes.ByteArray());
        StreamsBuilder builder = new StreamsBuilder();
        builder.addStateStore(tuned ? store.withCachingEnabled() : store);
        builder.stream(text(task, "input"), Consumed.with(Serdes.ByteArray(), Serdes.ByteArray()))
            .processValues(remembered == null ? Deduplicate::new : () -> new Ids(remembered), STORE)
            .to(text(task, "output"), Produced.with(Serdes.ByteArray(), Serdes.ByteArray()));
        CountDownLatch stopped = new CountDownLatch(1);
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            streams.close();
            stopped.countDown();
        }));
        streams.start();
        stopped.await();
    }

    private static final class Deduplicate implements FixedKeyProcessor<byte[], byte[], byte[]> {
        private FixedKeyProcessorContext<byte[], byte[]> context;
        private KeyValueStore<byte[], Long> last;

        @Override
        public void init(FixedKeyProcessorContext<byte[], byte[]> given) {
            context = given;
            last = given.getStateStore(STORE);
        }

        @Override
        public void process(FixedKeyRecord<byte[], byte[]> record) {
            if (SAID.compareAndSet(false, true)) {
                System.out.println("first records");
            }
            Header header = record.headers().lastHeader("ratchet-sequence");
            long sequence = ByteBuffer.wrap(header.value()).getLong();
            Long before = last.get(record.key());
            if (before == null || sequence > before) {
                last.put(record.key(), sequence);
                context.forward(record);
            }
        }
    }

    private static final class Ids implements FixedKeyProcessor<byte[], byte[], byte[]> {
        private static final byte[] SEEN = {1};
        private final long rememberedMs;
        private FixedKeyProcessorContext<byte[], byte[]> context;
        private WindowStore<byte[], byte[]> ids;

        Ids(Duration remembered) {
            rememberedMs = remembered.toMillis();
        }

        @Override
        public void init(FixedKeyProcessorContext<byte[], byte[]> given) {
            context = given;
            ids = given.getStateStore(STORE);
        }

        @Override
        public void process(FixedKeyRecord<byte[], byte[]> record) {
            if (SAID.compareAndSet(false, true)) {
                System.out.println("first records");
            }
            long at = record.timestamp();
            boolean known;
            try (WindowStoreIterator<byte[]> found = ids.fetch(record.key(), at - rememberedMs, at + rememberedMs)) {
                known = found.hasNext();
            }
            if (!known) {
                ids.put(record.key(), SEEN, at);
                context.forward(record);
            }
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

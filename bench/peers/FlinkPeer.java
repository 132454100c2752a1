import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.serialization.SerializationSchema;
import org.apache.flink.api.common.state.StateTtlConfig;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.PrimitiveArrayTypeInfo;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.api.java.typeutils.TupleTypeInfo;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.JobManagerOptions;
import org.apache.flink.configuration.PipelineOptions;
import org.apache.flink.configuration.RestOptions;
import org.apache.flink.configuration.RestartStrategyOptions;
import org.apache.flink.configuration.StateBackendOptions;
import org.apache.flink.configuration.TaskManagerOptions;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.sink.TransactionNamingStrategy;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.header.internals.RecordHeaders;

/**
 * Flink in this process, two slots: a KeyedProcessFunction over keyed state that forwards what moves its key's sequence
 * forward, into an exactly-once sink; a checkpoint is a commit. Option rocksdb: state on disk instead of on the heap.
 * Option remembered_s: the first record of each key is forwarded, by state with a time-to-live.
 * Its offsets reach the group up to ten seconds later, with the next poll of its consumer.
 */
public final class FlinkPeer {
    private static final AtomicBoolean SAID = new AtomicBoolean();
    private static final TypeInformation<byte[]> BYTES = PrimitiveArrayTypeInfo.BYTE_PRIMITIVE_ARRAY_TYPE_INFO;

    private FlinkPeer() { }

    public static void main(String[] args) throws Exception {
        String task = args[0];
        Configuration settings = new Configuration();
        settings.set(CheckpointingOptions.CHECKPOINTING_INTERVAL, Duration.ofMillis(number(task, "commit_ms")));
        settings.set(CheckpointingOptions.CHECKPOINTS_DIRECTORY, "file://" + text(task, "folder"));
        settings.set(StateBackendOptions.STATE_BACKEND, task.contains("\"rocksdb\": true") ? "rocksdb" : "hashmap");
        settings.set(PipelineOptions.OBJECT_REUSE, true);
        // A failure is to end the run, not to be hidden by another attempt.
        settings.set(RestartStrategyOptions.RESTART_STRATEGY, "none");
        settings.set(RestOptions.BIND_ADDRESS, "127.0.0.1");
        settings.set(JobManagerOptions.BIND_HOST, "127.0.0.1");
        settings.set(TaskManagerOptions.BIND_HOST, "127.0.0.1");
        StreamExecutionEnvironment flink = StreamExecutionEnvironment.createLocalEnvironment(2, settings);
        KafkaSource<Event> source = KafkaSource.<Event>builder()
            .setBootstrapServers(text(task, "bootstrap"))
            .setTopics(text(task, "input"))
            .setGroupId(text(task, "group"))
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setDeserializer(new Decode())
            .build();
        String compression = text(task, "compression");
        KafkaSink<Event> sink = KafkaSink.<Event>builder()
            .setBootstrapServers(text(task, "bootstrap"))
            .setRecordSerializer(KafkaRecordSerializationSchema.<Event>builder()
                .setTopic(text(task, "output"))
                .setKeySerializationSchema(event -> event.f0.getBytes(StandardCharsets.ISO_8859_1))
                .setValueSerializationSchema(new Value())
                .setHeaderProvider(FlinkPeer::headers)
                .build())
            .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
            .setTransactionalIdPrefix(text(task, "group"))
            // Few transactional ids, used again and again, in the place of new ones at every checkpoint.
            .setTransactionNamingStrategy(TransactionNamingStrategy.POOLING)
            // The connector's default of an hour is more than a broker allows.
            .setProperty("transaction.timeout.ms", "60000")
            .setProperty("compression.type", compression == null ? "none" : compression)
            .build();
        flink.fromSource(source, WatermarkStrategy.noWatermarks(), "input").returns(Event.TYPE)
            .keyBy(event -> event.f0, Types.STRING)
            .process(task.contains("remembered_s") ? new Ids(number(task, "remembered_s")) : new Deduplicate())
            .returns(Event.TYPE)
            .sinkTo(sink);
        flink.execute("bench");
    }

    /** Key, value, names and values of the headers; Flink itself carries the timestamp. */
    @SuppressWarnings("unchecked") // Flink's tuples override one another so
    public static final class Event extends Tuple4<String, byte[], String[], byte[][]> {
        private static final long serialVersionUID = 1L;
        static final TypeInformation<Event> TYPE = new TupleTypeInfo<>(
            Event.class, Types.STRING, BYTES, Types.OBJECT_ARRAY(Types.STRING), Types.OBJECT_ARRAY(BYTES));
    }

    private static final class Decode implements KafkaRecordDeserializationSchema<Event> {
        private static final long serialVersionUID = 1L;

        @Override
        public void deserialize(ConsumerRecord<byte[], byte[]> record, Collector<Event> out) {
            if (SAID.compareAndSet(false, true)) {
                System.out.println("first records");
            }
            Header[] headers = record.headers().toArray();
            Event event = new Event();
            // Flink cannot key by an array; a character for each byte is the cheapest that loses none.
            event.f0 = new String(record.key(), StandardCharsets.ISO_8859_1);
            event.f1 = record.value();
            event.f2 = new String[headers.length];
            event.f3 = new byte[headers.length][];
            for (int at = 0; at < headers.length; at++) {
                event.f2[at] = headers[at].key();
                event.f3[at] = headers[at].value();
            }
            out.collect(event);
        }

        @Override
        public TypeInformation<Event> getProducedType() {
            return Event.TYPE;
        }
    }

    private static final class Deduplicate extends KeyedProcessFunction<String, Event, Event> {
        private static final long serialVersionUID = 1L;
        private transient ValueState<Long> last;

        @Override
        public void open(OpenContext context) {
            last = getRuntimeContext().getState(new ValueStateDescriptor<>("last", Types.LONG));
        }

        @Override
        public void processElement(Event event, Context context, Collector<Event> out) throws Exception {
            int at = Arrays.asList(event.f2).lastIndexOf("ratchet-sequence");
            long sequence = ByteBuffer.wrap(event.f3[at]).getLong();
            Long before = last.value();
            if (before == null || sequence > before) {
                last.update(sequence);
                out.collect(event);
            }
        }
    }

    private static final class Ids extends KeyedProcessFunction<String, Event, Event> {
        private static final long serialVersionUID = 1L;
        private final int rememberedS;
        private transient ValueState<Boolean> seen;

        Ids(int rememberedS) {
            this.rememberedS = rememberedS;
        }

        @Override
        public void open(OpenContext context) {
            ValueStateDescriptor<Boolean> state = new ValueStateDescriptor<>("seen", Types.BOOLEAN);
            state.enableTimeToLive(StateTtlConfig.newBuilder(Duration.ofSeconds(rememberedS)).build());
            seen = getRuntimeContext().getState(state);
        }

        @Override
        public void processElement(Event event, Context context, Collector<Event> out) throws Exception {
            if (seen.value() == null) {
                out.collect(event);
            }
            seen.update(true); // a duplicate is activity too, as in the other programs
        }
    }

    /** A class, since Flink asks the value's schema for its type, which a lambda does not have. */
    private static final class Value implements SerializationSchema<Event> {
        private static final long serialVersionUID = 1L;

        @Override
        public byte[] serialize(Event event) {
            return event.f1;
        }
    }

    private static Headers headers(Event event) {
        Headers headers = new RecordHeaders();
        for (int at = 0; at < event.f2.length; at++) {
            headers.add(event.f2[at], event.f3[at]);
        }
        return headers;
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

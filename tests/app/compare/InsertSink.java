import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.connect.connector.Task;
import org.apache.kafka.connect.errors.ConnectException;
import org.apache.kafka.connect.sink.SinkConnector;
import org.apache.kafka.connect.sink.SinkRecord;
import org.apache.kafka.connect.sink.SinkTask;

/** Sink into a table without a primary key, as JDBC sinks in insert mode: a transaction for each batch of records. */
public final class InsertSink extends SinkConnector {
    private Map<String, String> options = Map.of();

    @Override
    public String version() {
        return "1";
    }

    @Override
    public void start(Map<String, String> given) {
        options = given;
    }

    @Override
    public void stop() {}

    @Override
    public Class<? extends Task> taskClass() {
        return Into.class;
    }

    @Override
    public List<Map<String, String>> taskConfigs(int most) {
        return Collections.nCopies(most, options);
    }

    @Override
    public ConfigDef config() {
        return new ConfigDef()
                .define("url", ConfigDef.Type.STRING, ConfigDef.Importance.HIGH, "JDBC address")
                .define("statement", ConfigDef.Type.STRING, ConfigDef.Importance.HIGH, "INSERT with question marks")
                .define("fields", ConfigDef.Type.LIST, ConfigDef.Importance.HIGH, "Fields of a record, in their order");
    }

    /** Task that inserts. Offsets are Connect's to commit, later and elsewhere. */
    public static final class Into extends SinkTask {
        private Connection connection;
        private String statement;
        private String[] fields;

        @Override
        public String version() {
            return "1";
        }

        @Override
        public void start(Map<String, String> options) {
            statement = options.get("statement");
            fields = options.get("fields").split(",");
            try {
                connection = DriverManager.getConnection(options.get("url"));
                connection.setAutoCommit(false);
            } catch (SQLException error) {
                throw new ConnectException(error);
            }
        }

        @Override
        public void put(Collection<SinkRecord> records) {
            if (records.isEmpty()) {
                return;
            }
            try (PreparedStatement insert = connection.prepareStatement(statement)) {
                for (SinkRecord each : records) {
                    Map<?, ?> value = (Map<?, ?>) each.value();
                    for (int at = 0; at < fields.length; at++) {
                        insert.setObject(at + 1, value.get(fields[at]));
                    }
                    insert.addBatch();
                }
                insert.executeBatch();
                connection.commit();
            } catch (SQLException error) {
                throw new ConnectException(error);
            }
        }

        @Override
        public void stop() {
            try {
                if (connection != null) {
                    connection.close();
                }
            } catch (SQLException error) {
                throw new ConnectException(error);
            }
        }
    }
}

import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.types.Row;
import org.apache.flink.util.CloseableIterator;

/**
 * Writes 5,000 rows of the table "flink" with Flink SQL, reads and joins them, and
 * keeps the counts of a stream in the table "totals". Usage: FlinkTable QUORUM
 */
public class FlinkTable {
	static void want(TableEnvironment env, String query, Object wanted) throws Exception {
		Object last = null;
		try (CloseableIterator<Row> rows = env.executeSql(query).collect()) {
			while (rows.hasNext()) {
				last = rows.next().getField(0);
			}
		}
		if (!wanted.equals(last)) {
			System.out.println("WRONG " + query + ": " + last + ", not " + wanted);
			System.exit(1);
		}
		System.out.println("ok " + query);
	}

	static TableEnvironment open(EnvironmentSettings settings, String quorum) {
		TableEnvironment env = TableEnvironment.create(settings);
		env.getConfig().set("parallelism.default", "2");
		env.executeSql("CREATE TABLE numbers (n BIGINT, moment AS PROCTIME()) WITH ('connector' = 'datagen', 'number-of-rows' = '5000', 'fields.n.kind' = 'sequence', 'fields.n.start' = '0', 'fields.n.end' = '4999')");
		env.executeSql("CREATE TABLE flink (k STRING, f ROW<n BIGINT, text STRING>, g ROW<half DOUBLE>, PRIMARY KEY (k) NOT ENFORCED) WITH ('connector' = 'hbase-2.2', 'table-name' = 'flink', 'zookeeper.quorum' = '"
			+ quorum + "')");
		env.executeSql("CREATE TABLE totals (k STRING, f ROW<n BIGINT>, PRIMARY KEY (k) NOT ENFORCED) WITH ('connector' = 'hbase-2.2', 'table-name' = 'totals', 'zookeeper.quorum' = '" + quorum + "')");
		return env;
	}

	public static void main(String[] args) {
		// Flink's threads go on when this one ends.
		try {
			run(args);
		} catch (Throwable e) {
			e.printStackTrace();
			System.exit(1);
		}
	}

	static void run(String[] args) throws Exception {
		TableEnvironment batch = open(EnvironmentSettings.inBatchMode(), args[0]);
		batch.executeSql("INSERT INTO flink SELECT CONCAT('row', LPAD(CAST(n AS STRING), 5, '0')), ROW(n, CONCAT('text ', CAST(MOD(n, 10) AS STRING))), ROW(n / 2.0E0) FROM numbers").await();
		want(batch, "SELECT COUNT(*) FROM flink", 5000L);
		want(batch, "SELECT SUM(flink.f.n) FROM flink", 12_497_500L);
		want(batch, "SELECT flink.g.half FROM flink WHERE k = 'row00007'", 3.5);
		TableEnvironment stream = open(EnvironmentSettings.inStreamingMode(), args[0]);
		stream.executeSql("INSERT INTO totals SELECT CONCAT('digit', CAST(digit AS STRING)), ROW(total) FROM (SELECT MOD(n, 10) AS digit, COUNT(*) AS total FROM numbers GROUP BY MOD(n, 10))").await();
		want(stream, "SELECT COUNT(*) FROM (SELECT numbers.n FROM numbers JOIN flink FOR SYSTEM_TIME AS OF numbers.moment ON flink.k = CONCAT('row', LPAD(CAST(numbers.n * 2 AS STRING), 5, '0')))", 2500L);
		System.out.println("flink ok");
		System.exit(0);
	}
}

import static org.apache.spark.sql.functions.*;

import java.util.Map;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;

/**
 * Writes 10,000 rows through Google's connector into the table "spark", and into
 * "made", which the connector makes; reads the first by filters of the key,
 * and groups and joins it. Usage: SparkTable PORT
 */
public class SparkTable {
	static void want(String what, long got, long wanted) {
		if (got != wanted) {
			System.out.println("WRONG " + what + ": " + got + ", not " + wanted);
			System.exit(1);
		}
		System.out.println("ok " + what);
	}

	static Map<String, String> options(String port, String table, boolean make) {
		String catalog = "{\"table\":{\"name\":\"" + table + "\",\"tableCoder\":\"PrimitiveType\"},\"rowkey\":\"key\",\"columns\":{"
			+ "\"key\":{\"cf\":\"rowkey\",\"col\":\"key\",\"type\":\"string\"},"
			+ "\"n\":{\"cf\":\"f\",\"col\":\"n\",\"type\":\"long\"},"
			+ "\"text\":{\"cf\":\"g\",\"col\":\"text\",\"type\":\"string\"}}}";
		return Map.of("catalog", catalog, "spark.bigtable.project.id", "p", "spark.bigtable.instance.id", "i", "spark.bigtable.emulator.port", port,
			"spark.bigtable.create.new.table", Boolean.toString(make));
	}

	public static void main(String[] args) {
		SparkSession spark = SparkSession.builder().master("local[2]").config("spark.ui.enabled", false).config("spark.sql.shuffle.partitions", 2).getOrCreate();
		spark.sparkContext().setLogLevel("WARN");
		Dataset<Row> rows = spark.range(10_000).select(format_string("row%05d", col("id")).as("key"), col("id").multiply(2).as("n"), concat(lit("text "), col("id").mod(10)).as("text"));
		rows.write().format("bigtable").options(options(args[0], "spark", false)).save();
		rows.write().format("bigtable").options(options(args[0], "made", true)).save();
		Dataset<Row> read = spark.read().format("bigtable").options(options(args[0], "spark", false)).load();
		want("rows", read.count(), 10_000);
		want("partitions", read.javaRDD().getNumPartitions(), 3);
		want("range", read.filter("key >= 'row00100' and key < 'row00200'").count(), 100);
		want("prefix", read.filter("key like 'row012%'").count(), 100);
		want("one", read.filter("key = 'row04242'").select("n").first().getLong(0), 8484);
		want("sum", read.agg(sum("n")).first().getLong(0), 99_990_000);
		want("groups", read.groupBy("text").count().filter("count = 1000").count(), 10);
		want("join", read.join(read.filter("key < 'row00050'").select(col("key").as("other")), col("key").equalTo(col("other"))).count(), 50);
		System.out.println("spark ok");
		System.exit(0);
	}
}

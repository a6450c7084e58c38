import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.Statement;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hbase.HBaseConfiguration;
import org.apache.hadoop.hbase.TableName;
import org.apache.hadoop.hbase.client.Admin;
import org.apache.hadoop.hbase.client.CompactionState;
import org.apache.hadoop.hbase.client.ConnectionFactory;

/**
 * Rows of a table of Phoenix, and queries of it: Phoenix ZOOKEEPER ROWS writes the rows and
 * compacts them, says "ready", then executes each line of its input and prints the first row of
 * the result, a tab, how many rows there are, a tab, and the microseconds that it took.
 */
public class Phoenix {
  public static void main(String[] args) throws Exception {
    int rows = Integer.parseInt(args[1]);
    try (Connection c = DriverManager.getConnection("jdbc:phoenix+zk:" + args[0])) {
      c.setAutoCommit(false);
      try (Statement s = c.createStatement()) {
        s.execute("CREATE TABLE T (K VARCHAR PRIMARY KEY, G VARCHAR, N BIGINT, P VARCHAR)");
      }
      String payload = "p".repeat(68);
      try (PreparedStatement s = c.prepareStatement("UPSERT INTO T VALUES (?, ?, ?, ?)")) {
        for (int i = 0; i < rows; i++) {
          s.setString(1, String.format("row%09d", i));
          s.setString(2, "group " + i % 10);
          s.setLong(3, i);
          s.setString(4, payload);
          s.executeUpdate();
          if (i % 1000 == 999) {
            c.commit();
          }
        }
      }
      c.commit();
      compact(args[0]);
      System.out.println("ready");
      BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
      for (String line = in.readLine(); line != null; line = in.readLine()) {
        long began = System.nanoTime();
        String first = "";
        int n = 0;
        try (Statement s = c.createStatement();
            ResultSet r = s.executeQuery(line)) {
          for (; r.next(); n++) {
            for (int i = 1; n == 0 && i <= r.getMetaData().getColumnCount(); i++) {
              first += (i > 1 ? " " : "") + r.getString(i);
            }
          }
        }
        System.out.printf("%s\t%d\t%d%n", first, n, (System.nanoTime() - began) / 1000);
      }
    }
    System.exit(0); // some of HBase's threads live on
  }

  static void compact(String zookeeper) throws Exception {
    Configuration conf = HBaseConfiguration.create();
    conf.set("hbase.zookeeper.quorum", zookeeper);
    TableName table = TableName.valueOf("T");
    try (org.apache.hadoop.hbase.client.Connection c = ConnectionFactory.createConnection(conf);
        Admin admin = c.getAdmin()) {
      admin.flush(table);
      admin.majorCompact(table);
      do {
        Thread.sleep(1000);
      } while (admin.getCompactionState(table) != CompactionState.NONE);
    }
  }
}

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hbase.*;
import org.apache.hadoop.hbase.client.*;
import org.apache.hadoop.hbase.security.AccessDeniedException;
import org.apache.hadoop.hbase.util.Bytes;

/** What a caller may do. Usage: Access none|reader|owner; where the server is and who calls is in hbase-site.xml. */
public class Access {
  static final byte[] F = Bytes.toBytes("f"), Q = Bytes.toBytes("q"), R = Bytes.toBytes("r");
  static int failed;
  static boolean read;

  interface Body { void run() throws Exception; }

  static void step(String what, boolean may, Body body) {
    String got = "allowed";
    try {
      body.run();
    } catch (AccessDeniedException e) {
      got = "denied";
    } catch (TableNotFoundException e) {
      got = read ? e.toString() : "denied"; // who may do nothing with a table is not told that it is there
    } catch (Throwable e) {
      got = e.toString();
    }
    boolean ok = got.equals(may ? "allowed" : "denied");
    if (!ok) failed++;
    System.out.println((ok ? "ok   " : "FAIL ") + what + ": " + got);
  }

  public static void main(String[] args) throws Exception {
    Configuration conf = HBaseConfiguration.create();
    conf.setInt("hbase.client.retries.number", 2);
    conf.setInt("hbase.client.operation.timeout", 20000);
    read = !args[0].equals("none");
    boolean write = args[0].equals("owner");
    TableName tn = TableName.valueOf("access");
    TableDescriptor d = TableDescriptorBuilder.newBuilder(tn).setColumnFamily(ColumnFamilyDescriptorBuilder.of("f")).build();
    try (Connection c = ConnectionFactory.createConnection(conf); Admin admin = c.getAdmin(); Table t = c.getTable(tn)) {
      if (write) step("create", true, () -> admin.createTable(d));
      else step("create", false, () -> admin.createTable(TableDescriptorBuilder.newBuilder(TableName.valueOf("other")).setColumnFamily(ColumnFamilyDescriptorBuilder.of("f")).build()));
      step("put", write, () -> t.put(new Put(R).addColumn(F, Q, Q)));
      step("get", read, () -> t.get(new Get(R)));
      step("scan", read, () -> { try (ResultScanner s = t.getScanner(new Scan())) { s.next(); } });
      step("increment", write, () -> t.incrementColumnValue(R, F, Bytes.toBytes("n"), 1));
      step("delete", write, () -> t.delete(new Delete(R).addColumns(F, Bytes.toBytes("x"))));
      step("disable", write, () -> admin.disableTable(tn));
      if (write) step("enable", true, () -> admin.enableTable(tn));
    }
    System.out.println(failed == 0 ? "done" : failed + " failed");
    System.exit(failed == 0 ? 0 : 1);
  }
}

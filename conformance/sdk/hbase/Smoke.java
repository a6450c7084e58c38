import java.util.*;
import java.util.concurrent.*;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hbase.*;
import org.apache.hadoop.hbase.client.*;
import org.apache.hadoop.hbase.filter.*;
import org.apache.hadoop.hbase.util.Bytes;

/** What an application does with HBase's client. Usage: Smoke zk|rpc host:port,... Prints a line per step. */
public class Smoke {
  static byte[] b(String s) { return Bytes.toBytes(s); }
  static final byte[] F = b("f"), G = b("g");
  static int step;

  static void ok(String what, boolean ok) {
    System.out.println((ok ? "ok   " : "FAIL ") + what);
    if (!ok) failed++;
  }

  static int failed;

  static void same(String what, Object got, Object want) {
    ok(what + (Objects.equals(got, want) ? "" : ": got " + got + ", want " + want), Objects.equals(got, want));
  }

  interface Body { void run() throws Exception; }

  static void fails(String what, Class<?> want, Body body) {
    try {
      body.run();
      ok(what + ": did not fail", false);
    } catch (Throwable e) {
      Throwable c = e;
      while (c != null && !want.isInstance(c)) c = c.getCause();
      ok(what + (c == null ? ": got " + e : ""), c != null);
      if (c == null) e.printStackTrace(System.out);
    }
  }

  static String text(Result r) {
    StringBuilder s = new StringBuilder();
    if (r.isEmpty()) return "-";
    for (Cell c : r.rawCells()) {
      s.append(s.length() > 0 ? " " : "").append(Bytes.toString(CellUtil.cloneFamily(c))).append(':').append(Bytes.toString(CellUtil.cloneQualifier(c))).append('@')
        .append(c.getTimestamp()).append('=').append(Bytes.toStringBinary(CellUtil.cloneValue(c)));
    }
    return s.toString();
  }

  static String rows(Table t, Scan scan) throws Exception {
    StringBuilder s = new StringBuilder();
    try (ResultScanner rs = t.getScanner(scan)) {
      for (Result r : rs) s.append(s.length() > 0 ? " " : "").append(Bytes.toString(r.getRow()));
    }
    return s.toString();
  }

  static void run(String name, Body body) {
    try {
      body.run();
    } catch (Throwable e) {
      ok(name + ": " + e, false);
      e.printStackTrace(System.out);
    }
  }

  public static void main(String[] args) throws Exception {
    Configuration conf = HBaseConfiguration.create();
    if (args[0].equals("zk")) {
      conf.set("hbase.zookeeper.quorum", args[1]);
    } else {
      conf.set("hbase.client.registry.impl", "org.apache.hadoop.hbase.client.RpcConnectionRegistry");
      conf.set("hbase.client.bootstrap.servers", args[1]);
    }
    conf.setInt("hbase.client.retries.number", 3);
    conf.setInt("hbase.rpc.timeout", 10000);
    conf.setInt("hbase.client.operation.timeout", 20000);
    try (Connection conn = ConnectionFactory.createConnection(conf); Admin admin = conn.getAdmin()) {
      TableName tn = TableName.valueOf("smoke_" + args[0]);
      run("admin", () -> admin(conn, admin, tn));
      try (Table t = conn.getTable(tn)) {
        run("data", () -> data(t));
        run("scans", () -> scans(t));
        run("filters", () -> filters(t));
        run("deletes", () -> deletes(t));
      }
      run("async", () -> async(conf, tn));
      run("alter", () -> alter(admin, tn));
      run("regions", () -> regions(conn, admin, tn));
      run("snapshots", () -> snapshots(conn, admin, tn));
      run("drop", () -> drop(admin, tn));
    }
    System.out.println(failed == 0 ? "done" : failed + " failed");
    System.exit(failed == 0 ? 0 : 1);
  }

  static void admin(Connection conn, Admin admin, TableName tn) throws Exception {
    same("no table yet", admin.tableExists(tn), false);
    fails("describe what is not there", TableNotFoundException.class, () -> admin.getDescriptor(tn));
    TableDescriptor d = TableDescriptorBuilder.newBuilder(tn).setValue("OWNER", "smoke")
      .setColumnFamily(ColumnFamilyDescriptorBuilder.newBuilder(F).setMaxVersions(3).setCompressionType(org.apache.hadoop.hbase.io.compress.Compression.Algorithm.NONE).build())
      .setColumnFamily(ColumnFamilyDescriptorBuilder.of("g")).build();
    admin.createTable(d, new byte[][] {b("row3"), b("row6")});
    same("table exists", admin.tableExists(tn), true);
    same("table is enabled", admin.isTableEnabled(tn), true);
    same("table is available", admin.isTableAvailable(tn), true);
    same("descriptor comes back", admin.getDescriptor(tn), d);
    fails("create again", TableExistsException.class, () -> admin.createTable(d));
    ok("listed", Arrays.asList(admin.listTableNames()).contains(tn));
    same("listed by pattern", admin.listTableDescriptors(java.util.regex.Pattern.compile("smoke_.*")).size() >= 1, true);
    same("regions", admin.getRegions(tn).size(), 3);
    same("locations", conn.getRegionLocator(tn).getAllRegionLocations().size(), 3);
    String ns = "ns_" + tn.getNameAsString();
    admin.createNamespace(NamespaceDescriptor.create(ns).addConfiguration("k", "v").build());
    same("namespace", admin.getNamespaceDescriptor(ns).getConfigurationValue("k"), "v");
    ok("namespaces", Arrays.asList(admin.listNamespaces()).contains(ns));
    fails("namespace again", NamespaceExistException.class, () -> admin.createNamespace(NamespaceDescriptor.create(ns).build()));
    TableName in = TableName.valueOf(ns, "t");
    admin.createTable(TableDescriptorBuilder.newBuilder(in).setColumnFamily(ColumnFamilyDescriptorBuilder.of("f")).build());
    try (Table t = conn.getTable(in)) {
      t.put(new Put(b("r")).addColumn(F, b("q"), b("v")));
      same("row in a namespace", Bytes.toString(t.get(new Get(b("r"))).getValue(F, b("q"))), "v");
    }
    same("tables of a namespace", admin.listTableNamesByNamespace(ns).length, 1);
    admin.disableTable(in);
    admin.deleteTable(in);
    admin.deleteNamespace(ns);
    fails("namespace is gone", NamespaceNotFoundException.class, () -> admin.getNamespaceDescriptor(ns));
    ClusterMetrics m = admin.getClusterMetrics();
    int servers = m.getLiveServerMetrics().size();
    ok("live servers: " + servers, servers >= 1);
    ok("version " + m.getHBaseVersion(), m.getHBaseVersion() != null);
    ok("balancer", admin.balancerSwitch(false, true) || true);
    same("balancer is off", admin.isBalancerEnabled(), false);
    admin.balancerSwitch(true, true);
  }

  static void data(Table t) throws Exception {
    t.put(new Put(b("row1")).addColumn(F, b("a"), 10, b("v10")).addColumn(F, b("a"), 20, b("v20")).addColumn(G, b("x"), 10, b("gx")));
    same("get", text(t.get(new Get(b("row1")))), "f:a@20=v20 g:x@10=gx");
    same("get versions", text(t.get(new Get(b("row1")).readAllVersions().addFamily(F))), "f:a@20=v20 f:a@10=v10");
    same("get time range", text(t.get(new Get(b("row1")).addColumn(F, b("a")).setTimeRange(0, 15))), "f:a@10=v10");
    same("exists", t.exists(new Get(b("row1"))), true);
    same("not exists", t.exists(new Get(b("nothing"))), false);
    same("missing row", text(t.get(new Get(b("nothing")))), "-");
    fails("unknown family", org.apache.hadoop.hbase.regionserver.NoSuchColumnFamilyException.class, () -> t.get(new Get(b("row1")).addFamily(b("nope"))));
    fails("put to an unknown family", org.apache.hadoop.hbase.regionserver.NoSuchColumnFamilyException.class, () -> t.put(new Put(b("row1")).addColumn(b("nope"), b("a"), b("v"))));
    List<Put> puts = new ArrayList<>();
    for (int i = 0; i < 10; i++) puts.add(new Put(b("row" + i)).addColumn(F, b("n"), 5, b("n" + i)));
    t.put(puts);
    Result[] rs = t.get(Arrays.asList(new Get(b("row2")), new Get(b("none")), new Get(b("row9"))));
    same("multi get", text(rs[0]) + "|" + text(rs[1]) + "|" + text(rs[2]), "f:n@5=n2|-|f:n@5=n9");
    same("increment", t.incrementColumnValue(b("row1"), F, b("count"), 5), 5L);
    same("increment again", t.incrementColumnValue(b("row1"), F, b("count"), -2), 3L);
    Result r = t.increment(new Increment(b("row1")).addColumn(F, b("count"), 1).addColumn(G, b("other"), 7));
    same("increment two", Bytes.toLong(r.getValue(F, b("count"))) + " " + Bytes.toLong(r.getValue(G, b("other"))), "4 7");
    fails("increment what is no number", DoNotRetryIOException.class, () -> t.incrementColumnValue(b("row1"), F, b("a"), 1));
    same("append", Bytes.toString(t.append(new Append(b("row1")).addColumn(F, b("s"), b("ab"))).getValue(F, b("s"))), "ab");
    same("append again", Bytes.toString(t.append(new Append(b("row1")).addColumn(F, b("s"), b("cd"))).getValue(F, b("s"))), "abcd");
    same("checkAndMutate equal", t.checkAndMutate(CheckAndMutate.newBuilder(b("row2")).ifEquals(F, b("n"), b("n2")).build(new Put(b("row2")).addColumn(F, b("c"), b("1")))).isSuccess(), true);
    same("checkAndMutate unequal", t.checkAndMutate(CheckAndMutate.newBuilder(b("row2")).ifEquals(F, b("n"), b("zz")).build(new Put(b("row2")).addColumn(F, b("c"), b("2")))).isSuccess(), false);
    same("checkAndMutate not there", t.checkAndMutate(CheckAndMutate.newBuilder(b("row2")).ifNotExists(F, b("d")).build(new Put(b("row2")).addColumn(F, b("d"), b("1")))).isSuccess(), true);
    same("checkAndMutate greater", t.checkAndMutate(CheckAndMutate.newBuilder(b("row2")).ifMatches(F, b("n"), CompareOperator.GREATER, b("n3")).build(new Delete(b("row2")).addColumns(F, b("d")))).isSuccess(), true);
    same("checkAndMutate filter", t.checkAndMutate(CheckAndMutate.newBuilder(b("row2")).ifMatches(new FilterList(new SingleColumnValueFilter(F, b("n"), CompareOperator.EQUAL, b("n2")),
      new SingleColumnValueFilter(F, b("c"), CompareOperator.EQUAL, b("1")))).build(new Put(b("row2")).addColumn(F, b("e"), b("1")))).isSuccess(), true);
    same("after the checks", Bytes.toString(t.get(new Get(b("row2"))).getValue(F, b("c"))) + Bytes.toString(t.get(new Get(b("row2"))).getValue(F, b("d"))) + Bytes.toString(t.get(new Get(b("row2"))).getValue(F, b("e"))), "1null1");
    t.mutateRow(RowMutations.of(Arrays.asList(new Put(b("row4")).addColumn(F, b("a"), b("1")), new Delete(b("row4")).addColumns(F, b("n")))));
    same("row mutations", t.get(new Get(b("row4"))).size() + Bytes.toString(t.get(new Get(b("row4"))).getValue(F, b("a"))), "11");
    Object[] res = new Object[4];
    t.batch(Arrays.asList(new Put(b("row5")).addColumn(F, b("a"), b("1")), new Get(b("row6")), new Delete(b("row7")).addColumns(F, b("n")), new Increment(b("row8")).addColumn(F, b("i"), 9)), res);
    same("batch", text((Result) res[1]) + " " + Bytes.toLong(((Result) res[3]).getValue(F, b("i"))), "f:n@5=n6 9");
    same("batch delete", t.exists(new Get(b("row7"))), false);
    Put ttl = new Put(b("row9")).addColumn(G, b("ttl"), b("x"));
    ttl.setTTL(300);
    t.put(ttl);
    same("cell with a TTL", t.exists(new Get(b("row9")).addColumn(G, b("ttl"))), true);
    Thread.sleep(400);
    same("cell after its TTL", t.exists(new Get(b("row9")).addColumn(G, b("ttl"))), false);
    byte[] big = new byte[5 << 20];
    new Random(1).nextBytes(big);
    t.put(new Put(b("big")).addColumn(G, b("v"), big));
    ok("5 MiB come back", Arrays.equals(t.get(new Get(b("big"))).getValue(G, b("v")), big));
    t.delete(new Delete(b("big")));
    fails("too large a cell", IllegalArgumentException.class, () -> t.put(new Put(b("big")).addColumn(G, b("v"), new byte[11 << 20])));
  }

  /**
   * Rows of 8 cells in three regions, in pieces, up to a limit of rows. Clients up to 2.6 count a row twice if its last piece is shorter than the
   * others, with any server.
   */
  static void batches(Table t) throws Exception {
    String[] keys = {"row1", "row2", "row3", "row5", "row6"};
    Scan scan = new Scan().setBatch(2);
    for (int i = 0; i < 8; i++) scan.addColumn(G, b("w" + i));
    for (String k : keys)
      for (int i = 0; i < 8; i++) t.put(new Put(b(k)).addColumn(G, b("w" + i), b("v")));
    for (int limit = 1; limit <= 5; limit++)
      for (int caching : new int[] {1, 3, 4, 100})
        for (boolean reversed : new boolean[] {false, true}) {
          List<String> got = new ArrayList<>(), want = new ArrayList<>();
          try (ResultScanner rs = t.getScanner(new Scan(scan).setLimit(limit).setCaching(caching).setReversed(reversed))) {
            for (Result r : rs) got.add(Bytes.toString(r.getRow()) + " " + r.size());
          }
          for (int i = 0; i < limit; i++)
            for (int n : new int[] {2, 2, 2, 2}) want.add(keys[reversed ? keys.length - 1 - i : i] + " " + n);
          same("batches of " + limit + " rows by " + caching + (reversed ? ", reversed" : ""), got, want);
        }
    for (String k : keys) {
      Delete d = new Delete(b(k));
      for (int i = 0; i < 8; i++) d.addColumns(G, b("w" + i));
      t.delete(d);
    }
  }

  static void scans(Table t) throws Exception {
    batches(t);
    same("scan", rows(t, new Scan()), "row0 row1 row2 row3 row4 row5 row6 row8 row9");
    same("scan small caching", rows(t, new Scan().setCaching(2)), "row0 row1 row2 row3 row4 row5 row6 row8 row9");
    same("scan range", rows(t, new Scan().withStartRow(b("row2")).withStopRow(b("row6"))), "row2 row3 row4 row5");
    same("scan bounds", rows(t, new Scan().withStartRow(b("row2"), false).withStopRow(b("row6"), true)), "row3 row4 row5 row6");
    same("scan limit", rows(t, new Scan().setLimit(4)), "row0 row1 row2 row3");
    same("scan reversed", rows(t, new Scan().setReversed(true)), "row9 row8 row6 row5 row4 row3 row2 row1 row0");
    same("scan reversed range", rows(t, new Scan().setReversed(true).withStartRow(b("row6")).withStopRow(b("row2")).setCaching(1)), "row6 row5 row4 row3");
    same("scan prefix", rows(t, new Scan().setStartStopRowForPrefixScan(b("row9"))), "row9");
    same("scan column", rows(t, new Scan().addColumn(F, b("a"))), "row1 row4 row5");
    int cells = 0, results = 0;
    try (ResultScanner rs = t.getScanner(new Scan().setBatch(2))) {
      for (Result r : rs) { results++; cells += r.size(); if (r.size() > 2) ok("batch of " + r.size(), false); }
    }
    int all = 0;
    try (ResultScanner rs = t.getScanner(new Scan())) { for (Result r : rs) all += r.size(); }
    same("scan in batches", cells, all);
    int partial = 0;
    try (ResultScanner rs = t.getScanner(new Scan().setAllowPartialResults(true).setMaxResultSize(1))) { for (Result r : rs) partial += r.size(); }
    same("scan with partial results", partial, all);
    try (ResultScanner rs = t.getScanner(new Scan().setCaching(1))) {
      rs.next();
      ok("renew", rs.renewLease());
      same("after a renewal", Bytes.toString(rs.next().getRow()), "row1");
    }
    Scan metrics = new Scan().setScanMetricsEnabled(true);
    try (ResultScanner rs = t.getScanner(metrics)) {
      for (Result r : rs) ;
      ok("metrics", rs.getScanMetrics().countOfRowsScanned.get() >= 9);
    }
  }

  static void filters(Table t) throws Exception {
    same("PageFilter", rows(t, new Scan().withStopRow(b("row3")).setFilter(new PageFilter(2))), "row0 row1");
    same("PrefixFilter", rows(t, new Scan().setFilter(new PrefixFilter(b("row4")))), "row4");
    same("SingleColumnValueFilter", rows(t, new Scan().setFilter(scvf("n3", CompareOperator.GREATER_OR_EQUAL))), "row3 row5 row6 row8 row9");
    same("FilterList", rows(t, new Scan().setFilter(new FilterList(FilterList.Operator.MUST_PASS_ONE, new RowFilter(CompareOperator.EQUAL, new RegexStringComparator("[12]$")), new PrefixFilter(b("row8"))))), "row1 row2 row8");
    same("KeyOnlyFilter", t.getScanner(new Scan().setFilter(new KeyOnlyFilter())).next().getValue(F, b("n")).length, 0);
    same("FirstKeyOnlyFilter", t.getScanner(new Scan().withStartRow(b("row1")).setFilter(new FirstKeyOnlyFilter())).next().size(), 1);
    same("FuzzyRowFilter", rows(t, new Scan().setFilter(new FuzzyRowFilter(Arrays.asList(new org.apache.hadoop.hbase.util.Pair<>(b("r??5"), new byte[] {0, 1, 1, 0}))))), "row5");
    same("MultiRowRangeFilter", rows(t, new Scan().setFilter(new MultiRowRangeFilter(new ArrayList<>(Arrays.asList(new MultiRowRangeFilter.RowRange("row1", true, "row2", true), new MultiRowRangeFilter.RowRange("row8", true, "row9", false)))))), "row1 row2 row8");
    same("ValueFilter", rows(t, new Scan().setFilter(new ValueFilter(CompareOperator.EQUAL, new SubstringComparator("N5")))), "row5");
    same("WhileMatchFilter reversed", rows(t, new Scan().setReversed(true).setFilter(new WhileMatchFilter(new RowFilter(CompareOperator.GREATER, new BinaryComparator(b("row5")))))), "row9 row8 row6");
    same("ColumnPaginationFilter", text(t.get(new Get(b("row1")).setFilter(new ColumnPaginationFilter(1, 1)))).startsWith("f:count"), true);
    same("filter of a string", rows(t, new Scan().setFilter(new ParseFilter().parseFilterString("PrefixFilter('row') AND InclusiveStopFilter('row2')"))), "row0 row1 row2");
  }

  static Filter scvf(String v, CompareOperator op) {
    SingleColumnValueFilter f = new SingleColumnValueFilter(F, b("n"), op, b(v));
    f.setFilterIfMissing(true);
    return f;
  }

  static void deletes(Table t) throws Exception {
    byte[] r = b("zdel");
    Put p = new Put(r);
    for (int ts = 1; ts <= 3; ts++) p.addColumn(F, b("a"), ts, b("v" + ts)).addColumn(F, b("b"), ts, b("w" + ts));
    t.put(p);
    Get all = new Get(r).readAllVersions();
    t.delete(new Delete(r).addColumn(F, b("a"), 2));
    same("delete one version", text(t.get(all)), "f:a@3=v3 f:a@1=v1 f:b@3=w3 f:b@2=w2 f:b@1=w1");
    t.delete(new Delete(r).addColumn(F, b("b")));
    same("delete the newest version", text(t.get(all)), "f:a@3=v3 f:a@1=v1 f:b@2=w2 f:b@1=w1");
    t.delete(new Delete(r).addColumns(F, b("b"), 1));
    same("delete versions up to a time", text(t.get(all)), "f:a@3=v3 f:a@1=v1 f:b@2=w2");
    t.delete(new Delete(r).addFamilyVersion(F, 3));
    same("delete a version of a family", text(t.get(all)), "f:a@1=v1 f:b@2=w2");
    t.put(new Put(r).addColumn(G, b("x"), 9, b("g")));
    t.delete(new Delete(r).addFamily(F));
    same("delete a family", text(t.get(all)), "g:x@9=g");
    t.put(new Put(r).addColumn(F, b("a"), 5, b("late")));
    same("a marker covers what is written later", text(t.get(all)), "g:x@9=g");
    t.delete(new Delete(r));
    same("delete a row", text(t.get(all)), "-");
    fails("raw scan", DoNotRetryIOException.class, () -> t.getScanner(new Scan().withStartRow(r).setRaw(true).readAllVersions()).next());
  }

  static void async(Configuration conf, TableName tn) throws Exception {
    try (AsyncConnection c = ConnectionFactory.createAsyncConnection(conf).get(20, TimeUnit.SECONDS)) {
      AsyncTable<AdvancedScanResultConsumer> t = c.getTable(tn);
      t.put(new Put(b("async")).addColumn(F, b("q"), b("v"))).get(10, TimeUnit.SECONDS);
      same("async get", Bytes.toString(t.get(new Get(b("async"))).get(10, TimeUnit.SECONDS).getValue(F, b("q"))), "v");
      same("async scan", t.scanAll(new Scan().withStartRow(b("row")).withStopRow(b("rox"))).get(20, TimeUnit.SECONDS).size(), 9);
      t.delete(new Delete(b("async"))).get(10, TimeUnit.SECONDS);
      try (AsyncBufferedMutator m = c.getBufferedMutator(tn)) {
        List<CompletableFuture<Void>> fs = new ArrayList<>();
        for (int i = 0; i < 1000; i++) fs.add(m.mutate(new Put(b("async" + i)).addColumn(G, b("q"), b("v"))));
        m.flush();
        for (CompletableFuture<Void> f : fs) f.get(20, TimeUnit.SECONDS);
      }
      same("async mutator", t.scanAll(new Scan().setStartStopRowForPrefixScan(b("async"))).get(20, TimeUnit.SECONDS).size(), 1000);
      List<Delete> del = new ArrayList<>();
      for (int i = 0; i < 1000; i++) del.add(new Delete(b("async" + i)));
      t.deleteAll(del).get(20, TimeUnit.SECONDS);
      same("async admin", c.getAdmin().tableExists(tn).get(10, TimeUnit.SECONDS), true);
    }
  }

  static void alter(Admin admin, TableName tn) throws Exception {
    admin.addColumnFamily(tn, ColumnFamilyDescriptorBuilder.newBuilder(b("h")).setTimeToLive(3600).setMinVersions(1).setMaxVersions(5).build());
    ColumnFamilyDescriptor h = admin.getDescriptor(tn).getColumnFamily(b("h"));
    same("new family", h.getTimeToLive() + " " + h.getMinVersions() + " " + h.getMaxVersions(), "3600 1 5");
    fails("family again", InvalidFamilyOperationException.class, () -> admin.addColumnFamily(tn, ColumnFamilyDescriptorBuilder.of("h")));
    admin.modifyColumnFamily(tn, ColumnFamilyDescriptorBuilder.newBuilder(h).setMaxVersions(7).build());
    same("modified family", admin.getDescriptor(tn).getColumnFamily(b("h")).getMaxVersions(), 7);
    admin.deleteColumnFamily(tn, b("h"));
    same("family is gone", admin.getDescriptor(tn).hasColumnFamily(b("h")), false);
    admin.modifyTable(TableDescriptorBuilder.newBuilder(admin.getDescriptor(tn)).setValue("OWNER", "else").build());
    same("modified table", admin.getDescriptor(tn).getValue("OWNER"), "else");
  }

  static void regions(Connection conn, Admin admin, TableName tn) throws Exception {
    admin.flush(tn);
    admin.majorCompact(tn);
    ok("compaction state", admin.getCompactionState(tn) != null);
    RegionInfo first = admin.getRegions(tn).get(0);
    admin.splitRegionAsync(first.getRegionName(), b("row1")).get(20, TimeUnit.SECONDS);
    same("regions after a split", admin.getRegions(tn).size(), 4);
    try (Table t = conn.getTable(tn)) {
      same("rows after a split", rows(t, new Scan().withStartRow(b("row")).withStopRow(b("rox"))), "row0 row1 row2 row3 row4 row5 row6 row8 row9");
      same("get after a split", t.exists(new Get(b("row1"))), true);
    }
    List<RegionInfo> now = admin.getRegions(tn);
    admin.mergeRegionsAsync(new byte[][] {now.get(0).getRegionName(), now.get(1).getRegionName()}, false).get(20, TimeUnit.SECONDS);
    same("regions after a merge", admin.getRegions(tn).size(), 3);
    try (Table t = conn.getTable(tn)) {
      same("rows after a merge", rows(t, new Scan().withStartRow(b("row")).withStopRow(b("rox"))), "row0 row1 row2 row3 row4 row5 row6 row8 row9");
    }
    Set<ServerName> live = admin.getClusterMetrics().getLiveServerMetrics().keySet();
    byte[] start = admin.getRegions(tn).get(0).getStartKey();
    try (RegionLocator at = conn.getRegionLocator(tn)) {
      ServerName before = at.getRegionLocation(start, true).getServerName();
      admin.move(admin.getRegions(tn).get(0).getEncodedNameAsBytes());
      same("moved to another server, if there is one", !before.equals(at.getRegionLocation(start, true).getServerName()), live.size() > 1);
      int gateways = 0;
      for (ServerName s : live) {
        try {
          admin.move(admin.getRegions(tn).get(0).getEncodedNameAsBytes(), s);
        } catch (DoNotRetryIOException e) {
          ok(s + " has no regions: " + e.getMessage(), e.getMessage().contains("has no tablet server"));
          gateways++;
          continue;
        }
        same("moved to " + s, at.getRegionLocation(start, true).getServerName(), s);
      }
      ok(gateways + " gateways", gateways == 0 || gateways < live.size() - 1);
    }
    int regions = 0;
    for (ServerName s : live) regions += admin.getRegionMetrics(s, tn).size();
    same("region metrics", regions, 3);
  }

  static void snapshots(Connection conn, Admin admin, TableName tn) throws Exception {
    String s = "snap_" + tn.getNameAsString();
    admin.snapshot(s, tn);
    ok("snapshot", admin.listSnapshots().stream().anyMatch(d -> d.getName().equals(s)));
    fails("snapshot again", org.apache.hadoop.hbase.snapshot.SnapshotExistsException.class, () -> admin.snapshot(s, tn));
    TableName clone = TableName.valueOf("clone_" + tn.getNameAsString());
    admin.cloneSnapshot(s, clone);
    try (Table c = conn.getTable(clone); Table t = conn.getTable(tn)) {
      same("clone", rows(c, new Scan().withStartRow(b("row")).withStopRow(b("rox"))), "row0 row1 row2 row3 row4 row5 row6 row8 row9");
      t.put(new Put(b("row7")).addColumn(F, b("a"), b("late")));
      admin.disableTable(tn);
      admin.restoreSnapshot(s);
      admin.enableTable(tn);
      same("restored", t.exists(new Get(b("row7"))), false);
    }
    admin.disableTable(clone);
    admin.deleteTable(clone);
    admin.deleteSnapshot(s);
    ok("snapshot is gone", admin.listSnapshots().stream().noneMatch(d -> d.getName().equals(s)));
  }

  static void drop(Admin admin, TableName tn) throws Exception {
    fails("delete what is enabled", TableNotDisabledException.class, () -> admin.deleteTable(tn));
    admin.disableTable(tn);
    same("table is disabled", admin.isTableDisabled(tn), true);
    fails("disable again", TableNotEnabledException.class, () -> admin.disableTable(tn));
    admin.truncateTable(tn, true);
    same("truncated table is enabled", admin.isTableEnabled(tn), true);
    same("truncated table keeps its regions", admin.getRegions(tn).size(), 3);
    admin.disableTable(tn);
    admin.deleteTable(tn);
    same("table is gone", admin.tableExists(tn), false);
  }
}

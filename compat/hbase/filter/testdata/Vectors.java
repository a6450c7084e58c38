import java.io.*;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.regex.Pattern;
import java.util.zip.GZIPOutputStream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hbase.*;
import org.apache.hadoop.hbase.client.*;
import org.apache.hadoop.hbase.filter.*;
import org.apache.hadoop.hbase.regionserver.*;
import org.apache.hadoop.hbase.shaded.protobuf.ProtobufUtil;
import org.apache.hadoop.hbase.util.*;
import org.apache.hadoop.hbase.util.Pair;
import org.apache.hadoop.hbase.wal.WALFactory;

/**
 * Writes vectors.txt.gz and regex.txt.gz: what a region of HBase answers to random filters.
 *
 * mvn dependency:copy-dependencies of org.apache.hbase:hbase-server:2.6.4-hadoop3 into lib, then
 * java --add-opens java.base/java.nio=ALL-UNNAMED --add-opens java.base/java.lang=ALL-UNNAMED
 *   --add-opens java.base/jdk.internal.misc=ALL-UNNAMED -cp 'lib/*' Vectors.java testdata
 */
public class Vectors {
  static Random rnd = new Random(7);
  static byte[] b(String s) { return s.getBytes(StandardCharsets.ISO_8859_1); }
  static <T> T pick(T... a) { return a[rnd.nextInt(a.length)]; }
  static String hex(byte[] x) { return x.length == 0 ? "-" : Bytes.toHex(x); }

  static final String[] FAMILIES = {"f1", "f2", "f3"};
  static final int[] VERSIONS = {3, 1, Integer.MAX_VALUE};
  static final String[] QUALIFIERS = {"a", "aa", "ab", "b", "ba", "c", "n", ""};

  static String row() { return "r" + pick("a", "b", "c") + pick("a", "b", "c") + pick("0", "1"); }
  static String part(String s) { return s.substring(0, 1 + rnd.nextInt(s.length())); }
  static String qualifier() { return pick(QUALIFIERS); }
  static String value() { return pick("abcd", "abce", "Abcd", "bcde", "zzzz", "0000", "abcdef"); }

  static CompareOperator op() {
    return pick(CompareOperator.LESS, CompareOperator.LESS_OR_EQUAL, CompareOperator.EQUAL, CompareOperator.EQUAL,
      CompareOperator.NOT_EQUAL, CompareOperator.GREATER_OR_EQUAL, CompareOperator.GREATER);
  }

  static ByteArrayComparable comparator(String like) {
    switch (rnd.nextInt(9)) {
      case 0: return new BinaryPrefixComparator(b(like.isEmpty() ? "" : part(like)));
      case 1: return new RegexStringComparator(pick("a", "^r", "b.$", "[^a]b", "(a|b)c", "d$", "^[a-c]+$", "^$"));
      case 2: return new SubstringComparator(pick("A", "bc", "b", "Z", "r"));
      case 3: return new NullComparator();
      case 4: return new BitComparator(b(pick("abcd", "    ", "a", "ra0")), pick(BitComparator.BitwiseOp.values()));
      default: return new BinaryComparator(b(like));
    }
  }

  /** With the column that it is meant for, or with another type of value now and then. */
  static Object[] columnComparator() {
    switch (rnd.nextInt(12)) {
      case 0: return new Object[] {"f2", "n", new LongComparator(rnd.nextInt(5) - 2)};
      case 1: return new Object[] {"f3", "d", new BigDecimalComparator(new BigDecimal(pick("1.5", "1.50", "-2", "100", "1E+2")))};
      case 2: return new Object[] {pick(FAMILIES), pick("a", "b"), new BinaryComponentComparator(b(pick("bc", "b", "zz")), rnd.nextInt(3))};
      case 3: if (rnd.nextInt(4) == 0) return new Object[] {pick(FAMILIES), "a", new LongComparator(1)};
      default: return new Object[] {pick(FAMILIES), qualifier(), comparator(value())};
    }
  }

  static Filter filter(int depth) throws Exception {
    if (depth > 0 && rnd.nextInt(2) == 0) {
      int k = rnd.nextInt(10);
      if (k == 0) return new SkipFilter(filter(depth - 1));
      if (k == 1) return new WhileMatchFilter(filter(depth - 1));
      List<Filter> list = new ArrayList<>();
      for (int i = rnd.nextInt(5) == 0 ? rnd.nextInt(2) : 2 + rnd.nextInt(3); i > 0; i--) list.add(filter(depth - 1));
      return new FilterList(rnd.nextBoolean() ? FilterList.Operator.MUST_PASS_ALL : FilterList.Operator.MUST_PASS_ONE, list);
    }
    Object[] cc = columnComparator();
    byte[] family = b((String) cc[0]), qualifier = b((String) cc[1]);
    ByteArrayComparable cmp = (ByteArrayComparable) cc[2];
    switch (rnd.nextInt(25)) {
      case 0: return new RowFilter(op(), comparator(row()));
      case 1: return new FamilyFilter(op(), comparator(pick(FAMILIES)));
      case 2: return new QualifierFilter(op(), comparator(qualifier()));
      case 3: return new ValueFilter(op(), comparator(value()));
      case 4: {
        DependentColumnFilter f = rnd.nextInt(3) == 0 ? new DependentColumnFilter(family, qualifier, rnd.nextBoolean(), op(), cmp)
          : new DependentColumnFilter(family, qualifier, rnd.nextBoolean());
        return f;
      }
      case 5: case 6: {
        SingleColumnValueFilter f = new SingleColumnValueFilter(family, qualifier, op(), cmp);
        f.setFilterIfMissing(rnd.nextBoolean());
        f.setLatestVersionOnly(rnd.nextBoolean());
        return f;
      }
      case 7: {
        SingleColumnValueExcludeFilter f = new SingleColumnValueExcludeFilter(family, qualifier, op(), cmp);
        f.setFilterIfMissing(rnd.nextBoolean());
        f.setLatestVersionOnly(rnd.nextBoolean());
        return f;
      }
      case 8: return new ColumnValueFilter(family, qualifier, op(), cmp);
      case 9: return new ColumnCountGetFilter(rnd.nextInt(6));
      case 10: return new ColumnPaginationFilter(rnd.nextInt(5), rnd.nextInt(4));
      case 11: return new ColumnPaginationFilter(1 + rnd.nextInt(4), b(qualifier()));
      case 12: return new ColumnPrefixFilter(b(qualifier()));
      case 13: {
        Set<String> p = new HashSet<>(Arrays.asList(qualifier(), qualifier(), qualifier()));
        return new MultipleColumnPrefixFilter(p.stream().map(Vectors::b).toArray(byte[][]::new));
      }
      case 14: {
        String lo = qualifier(), hi = qualifier();
        return new ColumnRangeFilter(rnd.nextInt(4) == 0 ? null : b(lo), rnd.nextBoolean(), rnd.nextInt(4) == 0 ? null : b(hi), rnd.nextBoolean());
      }
      case 15: return new FirstKeyOnlyFilter();
      case 16: return new FirstKeyValueMatchingQualifiersFilter(new TreeSet<byte[]>(Bytes.BYTES_COMPARATOR) {{ add(b(qualifier())); add(b(qualifier())); }});
      case 17: return new KeyOnlyFilter(rnd.nextBoolean());
      case 18: {
        List<Long> ts = new ArrayList<>();
        for (int i = rnd.nextInt(4); i > 0; i--) ts.add((long) (1 + rnd.nextInt(6)));
        return new TimestampsFilter(ts, rnd.nextBoolean());
      }
      case 19: return new PrefixFilter(b(part(row())));
      case 20: return new InclusiveStopFilter(b(part(row())));
      case 21: return new PageFilter(rnd.nextInt(7));
      case 22: return new RandomRowFilter(rnd.nextBoolean() ? -1f : 2f);
      case 23: {
        List<Pair<byte[], byte[]>> keys = new ArrayList<>();
        for (int i = 1 + rnd.nextInt(3); i > 0; i--) {
          byte[] key = b(row()), mask = new byte[4];
          for (int j = 0; j < 4; j++) mask[j] = (byte) rnd.nextInt(2);
          int n = 1 + rnd.nextInt(4);
          keys.add(new Pair<>(Arrays.copyOf(key, n), Arrays.copyOf(mask, n)));
        }
        return new FuzzyRowFilter(keys);
      }
      default: {
        List<MultiRowRangeFilter.RowRange> ranges = new ArrayList<>();
        for (int i = 1 + rnd.nextInt(3); i > 0; i--) {
          String x = row(), y = row();
          if (x.compareTo(y) > 0) { String t = x; x = y; y = t; }
          ranges.add(new MultiRowRangeFilter.RowRange(b(rnd.nextInt(8) == 0 ? "" : x), rnd.nextBoolean(), b(rnd.nextInt(8) == 0 ? "" : y),
            rnd.nextBoolean() || x.equals(y)));
        }
        try { return new MultiRowRangeFilter(ranges); } catch (IllegalArgumentException e) { return filter(depth); }
      }
    }
  }

  static String key(Cell c) {
    return hex(CellUtil.cloneRow(c)) + " " + hex(CellUtil.cloneFamily(c)) + " " + hex(CellUtil.cloneQualifier(c)) + " " + c.getTimestamp();
  }

  public static void main(String[] args) throws Exception {
    Configuration conf = HBaseConfiguration.create();
    conf.setBoolean("hbase.regionserver.hlog.enabled", false);
    conf.setBoolean("hbase.hregion.memstore.mslab.enabled", false);
    conf.setBoolean("hbase.unsafe.stream.capability.enforce", false);
    File dir = java.nio.file.Files.createTempDirectory("vectors").toFile();
    TableDescriptorBuilder t = TableDescriptorBuilder.newBuilder(TableName.valueOf("t"));
    for (int i = 0; i < 3; i++)
      t.setColumnFamily(ColumnFamilyDescriptorBuilder.newBuilder(b(FAMILIES[i])).setMaxVersions(VERSIONS[i]).build());
    RegionInfo info = RegionInfoBuilder.newBuilder(TableName.valueOf("t")).build();
    HRegion region = HRegion.createHRegion(info, new Path("file://" + dir), conf, t.build(), new WALFactory(conf, "w").getWAL(info));

    TreeMap<Cell, Integer> cells = new TreeMap<>(CellComparator.getInstance());
    Map<String, Integer> place = new HashMap<>();
    Map<String, byte[]> values = new HashMap<>();
    try (PrintStream out = new PrintStream(new GZIPOutputStream(new FileOutputStream(args[0] + "/vectors.txt.gz")))) {
      for (int n = 0; n < 120; n++) {
        byte[] row = b(row());
        String f = pick(FAMILIES), q = qualifier();
        long ts = 1 + rnd.nextInt(6);
        if (q.isEmpty()) ts = 4; // whether NEXT_COL skips the versions of "" depends on where they are stored
        byte[] v = b(value());
        if (f.equals("f2") && rnd.nextInt(3) == 0) { q = "n"; }
        if (f.equals("f2") && q.equals("n")) v = Bytes.toBytes((long) (rnd.nextInt(5) - 2));
        if (f.equals("f3") && rnd.nextInt(4) == 0) { q = "d"; v = Bytes.toBytes(new BigDecimal(pick("1.5", "1.500", "-2", "-3", "99.99", "100", "1E+3"))); }
        if (cells.put(new KeyValue(row, b(f), b(q), ts, v), 0) != null) continue; // which of two would win is not the filter's
        region.put(new Put(row).addColumn(b(f), b(q), ts, v));
      }
      int i = 0;
      for (Cell c : cells.keySet()) {
        place.put(key(c), i++);
        values.put(key(c), CellUtil.cloneValue(c));
        out.println("cell " + hex(CellUtil.cloneRow(c)) + " " + hex(CellUtil.cloneFamily(c)) + " " + hex(CellUtil.cloneQualifier(c)) + " " + c.getTimestamp() + " "
          + hex(CellUtil.cloneValue(c)));
      }
      int errors = 0, returned = 0;
      for (int n = 0; n < 4000; n++) {
        Filter made = filter(n % 4);
        byte[] wire = ProtobufUtil.toFilter(made).toByteArray();
        Scan scan = new Scan();
        boolean reversed = rnd.nextInt(4) == 0;
        int versions = pick(1, 2, Integer.MAX_VALUE);
        boolean eager = reversed || rnd.nextInt(3) == 0; // HBase refuses to load families on demand in reversed scans
        int offset = rnd.nextInt(8) == 0 ? 1 : 0, limit = rnd.nextInt(8) == 0 ? 2 : 0;
        scan.setReversed(reversed).readVersions(versions).setLoadColumnFamiliesOnDemand(!eager).setRowOffsetPerColumnFamily(offset);
        if (limit > 0) scan.setMaxResultsPerColumnFamily(limit);
        scan.setFilter(ProtobufUtil.toFilter(ProtobufUtil.toFilter(made)));
        StringBuilder got = new StringBuilder();
        try (RegionScanner s = region.getScanner(scan)) {
          boolean more = true;
          while (more) {
            List<Cell> list = new ArrayList<>();
            more = s.next(list);
            if (list.isEmpty()) continue;
            got.append('|');
            for (Cell c : list) {
              got.append(' ').append(place.get(key(c)));
              byte[] v = CellUtil.cloneValue(c);
              if (!Bytes.equals(v, values.get(key(c)))) got.append('=').append(hex(v));
              returned++;
            }
          }
        } catch (IllegalArgumentException | NullPointerException e) {
          got.append("!");
          errors++;
        }
        out.println("scan " + hex(wire) + " " + reversed + " " + versions + " " + eager + " " + offset + " " + limit + " " + got);
      }
      System.out.println(cells.size() + " cells, " + returned + " returned, " + errors + " errors");
    }

    try (PrintStream out = new PrintStream(new GZIPOutputStream(new FileOutputStream(args[0] + "/regex.txt.gz")), false, "UTF-8")) {
      String[] atoms = {"a", "b", ".", "[ab]", "[^a]", "\\d", "\\w", "\\s", "\\W", "(a|b)", "(?:ab)", "x", "[a-c&&[^b]]", "\\Qa.b\\E", "\\.", "$", "^", "\\b", "\\n",
        "(?i)A", "[[:alpha:]]", "\\p{Alpha}", "\\P{Lower}", "\\x61", "\\u0062", "(?=b)", "(?!b)", "(?<=a)", "(?<!a)", "\\1", "(?>a*)", "\\Z", "\\z", "\\A", "é", "\\p{L}",
        "[]a]", "[a-]", "\\h", "(?<n>a)\\k<n>", "[\\d\\-]", "\\0141", "\\cA", "(", ")", "[", "{", "\\", "\\y", "(?x: a b )", "[^\\s]", "[a-b[x-z]]", "\\t"};
      String[] quantifiers = {"", "", "", "", "*", "+", "?", "{2}", "{1,2}", "{0,}", "*?", "++", "?+"};
      String[] texts = {"", "a", "b", "ab", "ba", "aab", "a.b", "abab", "xyz", "A", "a\n", "a\nb", "\n", "\r\n", "a b", "12", "a1", "é", "aé", "b\u2028", "ABC", "a-b", "a\tb", "]"};
      int[] flags = {Pattern.DOTALL, Pattern.DOTALL, 0, Pattern.CASE_INSENSITIVE, Pattern.MULTILINE, Pattern.MULTILINE | Pattern.UNIX_LINES, Pattern.COMMENTS | Pattern.DOTALL,
        Pattern.LITERAL, Pattern.CASE_INSENSITIVE | Pattern.UNICODE_CASE, Pattern.UNIX_LINES};
      for (int n = 0; n < 6000; n++) {
        StringBuilder p = new StringBuilder();
        for (int i = 1 + rnd.nextInt(4); i > 0; i--) {
          p.append(pick(atoms)).append(quantifiers[rnd.nextInt(quantifiers.length)]);
          if (i > 1 && rnd.nextInt(8) == 0) p.append('|');
        }
        int flag = flags[rnd.nextInt(flags.length)];
        StringBuilder got = new StringBuilder();
        try {
          RegexStringComparator c = new RegexStringComparator(p.toString(), flag);
          for (String s : texts) {
            byte[] v = s.getBytes(StandardCharsets.UTF_8);
            got.append(c.compareTo(v, 0, v.length));
          }
        } catch (IllegalArgumentException e) {
          got.append("!");
        }
        out.println(flag + " " + got + " " + hex(p.toString().getBytes(StandardCharsets.UTF_8)));
      }
      for (String s : texts) out.println("text " + hex(s.getBytes(StandardCharsets.UTF_8)));
    }
    System.exit(0);
  }
}

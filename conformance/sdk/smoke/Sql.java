import com.google.api.gax.rpc.ApiException;
import com.google.api.gax.rpc.FailedPreconditionException;
import com.google.api.gax.rpc.NotFoundException;
import com.google.cloud.Date;
import com.google.cloud.bigtable.admin.v2.BigtableInstanceAdminClient;
import com.google.cloud.bigtable.admin.v2.BigtableInstanceAdminSettings;
import com.google.cloud.bigtable.admin.v2.BigtableTableAdminClient;
import com.google.cloud.bigtable.admin.v2.BigtableTableAdminSettings;
import com.google.cloud.bigtable.admin.v2.models.CreateInstanceRequest;
import com.google.cloud.bigtable.admin.v2.models.CreateLogicalViewRequest;
import com.google.cloud.bigtable.admin.v2.models.CreateMaterializedViewRequest;
import com.google.cloud.bigtable.admin.v2.models.CreateTableRequest;
import com.google.cloud.bigtable.admin.v2.models.LogicalView;
import com.google.cloud.bigtable.admin.v2.models.MaterializedView;
import com.google.cloud.bigtable.admin.v2.models.ModifyColumnFamiliesRequest;
import com.google.cloud.bigtable.admin.v2.models.StorageType;
import com.google.cloud.bigtable.admin.v2.models.UpdateLogicalViewRequest;
import com.google.cloud.bigtable.admin.v2.models.UpdateMaterializedViewRequest;
import com.google.cloud.bigtable.data.v2.BigtableDataClient;
import com.google.cloud.bigtable.data.v2.BigtableDataSettings;
import com.google.cloud.bigtable.data.v2.models.BulkMutation;
import com.google.cloud.bigtable.data.v2.models.RowMutationEntry;
import com.google.cloud.bigtable.data.v2.models.TableId;
import com.google.cloud.bigtable.data.v2.models.sql.BoundStatement;
import com.google.cloud.bigtable.data.v2.models.sql.ColumnMetadata;
import com.google.cloud.bigtable.data.v2.models.sql.PreparedStatement;
import com.google.cloud.bigtable.data.v2.models.sql.ResultSet;
import com.google.cloud.bigtable.data.v2.models.sql.SqlType;
import com.google.cloud.bigtable.data.v2.models.sql.Struct;
import com.google.cloud.bigtable.data.v2.models.sql.StructReader;
import com.google.cloud.bigtable.data.v2.stub.metrics.NoopMetricsProvider;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.protobuf.ByteString;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/**
 * SQL by the Java client, beside Smoke and with its environment: the steps of sql.json, which the
 * argument names, then what only a program can do, and views.
 */
public class Sql {
  static final String ID = "java-sql";
  static final Map<String, SqlType<?>> SCALARS =
      Map.of(
          "BOOL", SqlType.bool(), "INT64", SqlType.int64(), "FLOAT32", SqlType.float32(), "FLOAT64", SqlType.float64(),
          "STRING", SqlType.string(), "BYTES", SqlType.bytes(), "DATE", SqlType.date(), "TIMESTAMP", SqlType.timestamp());

  static void check(boolean ok, Object what) {
    if (!ok) {
      throw new AssertionError(what);
    }
  }

  /** The type that a step names. */
  static SqlType<?> typeOf(String name) {
    return name.startsWith("ARRAY<") ? SqlType.arrayOf(SCALARS.get(name.substring(6, name.length() - 1))) : SCALARS.get(name);
  }

  /** The value of a parameter of a step. */
  static Object valueOf(JsonElement json, String type) {
    if (json.isJsonNull()) {
      return null;
    }
    if (type.startsWith("ARRAY<")) {
      List<Object> list = new ArrayList<>();
      for (JsonElement e : json.getAsJsonArray()) {
        list.add(valueOf(e, type.substring(6, type.length() - 1)));
      }
      return list;
    }
    switch (type) {
      case "BOOL":
        return json.getAsBoolean();
      case "INT64":
        return json.getAsLong();
      case "FLOAT32":
        return json.getAsFloat();
      case "FLOAT64":
        return json.getAsDouble();
      case "BYTES":
        return ByteString.copyFrom(HexFormat.of().parseHex(json.getAsString()));
      case "DATE":
        JsonArray d = json.getAsJsonArray();
        return Date.fromYearMonthDay(d.get(0).getAsInt(), d.get(1).getAsInt(), d.get(2).getAsInt());
      case "TIMESTAMP":
        return Instant.parse(json.getAsString());
      default:
        return json.getAsString();
    }
  }

  @SuppressWarnings("unchecked")
  static void bind(BoundStatement.Builder b, String name, String type, Object v) {
    if (type.startsWith("ARRAY<")) {
      b.setListParam(name, (List<Object>) v, (SqlType.Array<Object>) typeOf(type));
      return;
    }
    switch (type) {
      case "BOOL" -> b.setBooleanParam(name, (Boolean) v);
      case "INT64" -> b.setLongParam(name, (Long) v);
      case "FLOAT32" -> b.setFloatParam(name, (Float) v);
      case "FLOAT64" -> b.setDoubleParam(name, (Double) v);
      case "STRING" -> b.setStringParam(name, (String) v);
      case "BYTES" -> b.setBytesParam(name, (ByteString) v);
      case "DATE" -> b.setDateParam(name, (Date) v);
      case "TIMESTAMP" -> b.setTimestampParam(name, (Instant) v);
      default -> throw new AssertionError(type);
    }
  }

  /** A type as the steps have it. */
  static String typeName(SqlType<?> t) {
    switch (t.getCode()) {
      case ARRAY:
        return "ARRAY<" + typeName(((SqlType.Array<?>) t).getElementType()) + ">";
      case MAP:
        SqlType.Map<?, ?> m = (SqlType.Map<?, ?>) t;
        return "MAP<" + typeName(m.getKeyType()) + "," + typeName(m.getValueType()) + ">";
      case STRUCT:
        return ((SqlType.Struct) t)
            .getFields().stream().map(f -> f.name() + " " + typeName(f.type())).collect(Collectors.joining(",", "STRUCT<", ">"));
      default:
        return t.getCode().name();
    }
  }

  /** The value of a column or field. */
  @SuppressWarnings("unchecked")
  static Object get(StructReader r, int i, SqlType<?> t) {
    if (r.isNull(i)) {
      return null;
    }
    return switch (t.getCode()) {
      case BOOL -> r.getBoolean(i);
      case INT64 -> r.getLong(i);
      case FLOAT32 -> r.getFloat(i);
      case FLOAT64 -> r.getDouble(i);
      case STRING -> r.getString(i);
      case BYTES -> r.getBytes(i);
      case DATE -> r.getDate(i);
      case TIMESTAMP -> r.getTimestamp(i);
      case ARRAY -> r.getList(i, (SqlType.Array<Object>) t);
      case MAP -> r.getMap(i, (SqlType.Map<Object, Object>) t);
      case STRUCT -> r.getStruct(i);
      default -> throw new AssertionError(t);
    };
  }

  /** A value as the steps have it. */
  static String text(Object v, SqlType<?> t) {
    if (v == null) {
      return "null";
    }
    switch (t.getCode()) {
      case ARRAY:
        return ((List<?>) v)
            .stream().map(e -> text(e, ((SqlType.Array<?>) t).getElementType())).collect(Collectors.joining(",", "[", "]"));
      case MAP:
        SqlType.Map<?, ?> m = (SqlType.Map<?, ?>) t;
        return ((Map<?, ?>) v)
            .entrySet().stream()
                .map(e -> text(e.getKey(), m.getKeyType()) + ":" + text(e.getValue(), m.getValueType()))
                .sorted()
                .collect(Collectors.joining(",", "(", ")"));
      case STRUCT:
        SqlType.Struct s = (SqlType.Struct) t;
        return IntStream.range(0, s.getFields().size())
            .mapToObj(i -> s.getFields().get(i).name() + "=" + text(get((Struct) v, i, s.getType(i)), s.getType(i)))
            .collect(Collectors.joining(",", "{", "}"));
      case STRING:
        return "\"" + v + "\"";
      case BYTES:
        return HexFormat.of().formatHex(((ByteString) v).toByteArray());
      case DATE:
        Date d = (Date) v;
        return d.getYear() + "-" + d.getMonth() + "-" + d.getDayOfMonth();
      case TIMESTAMP:
        Instant at = (Instant) v;
        return BigInteger.valueOf(at.getEpochSecond()).multiply(BigInteger.valueOf(1_000_000_000)).add(BigInteger.valueOf(at.getNano())).toString();
      case FLOAT32:
      case FLOAT64:
        double f = ((Number) v).doubleValue();
        return Double.isFinite(f) ? BigDecimal.valueOf(f).stripTrailingZeros().toPlainString() : Double.toString(f);
      default:
        return v.toString();
    }
  }

  /** The cells of a result as a step has them. */
  static List<String> run(BigtableDataClient client, JsonObject step) {
    JsonObject params = step.has("params") ? step.getAsJsonObject("params") : new JsonObject();
    Map<String, SqlType<?>> types = new HashMap<>();
    for (String name : params.keySet()) {
      types.put(name, typeOf(params.getAsJsonArray(name).get(0).getAsString()));
    }
    BoundStatement.Builder b = client.prepareStatement(step.get("query").getAsString(), types).bind();
    for (String name : params.keySet()) {
      String type = params.getAsJsonArray(name).get(0).getAsString();
      bind(b, name, type, valueOf(params.getAsJsonArray(name).get(1), type));
    }
    List<String> cells = new ArrayList<>();
    try (ResultSet rows = client.executeQuery(b.build())) {
      while (rows.next()) {
        List<? extends ColumnMetadata> columns = rows.getMetadata().getColumns();
        for (int i = 0; i < columns.size(); i++) {
          SqlType<?> t = columns.get(i).type();
          cells.add(columns.get(i).name() + " " + typeName(t) + " " + text(get(rows, i, t), t));
        }
      }
    }
    return cells;
  }

  static List<String> run(BigtableDataClient client, String query) {
    JsonObject step = new JsonObject();
    step.addProperty("query", query);
    return run(client, step);
  }

  public static void main(String[] args) throws Exception {
    JsonObject steps = JsonParser.parseString(Files.readString(Path.of(args[0]))).getAsJsonObject();
    String endpoint = System.getenv("SMOKE_ENDPOINT");
    BigtableDataSettings.Builder data;
    BigtableTableAdminSettings.Builder admin;
    BigtableInstanceAdminSettings.Builder instance;
    if (endpoint == null) {
      String[] emulator = System.getenv("BIGTABLE_EMULATOR_HOST").split(":");
      int port = Integer.parseInt(emulator[1]);
      data = BigtableDataSettings.newBuilderForEmulator(emulator[0], port);
      admin = BigtableTableAdminSettings.newBuilderForEmulator(emulator[0], port);
      instance = BigtableInstanceAdminSettings.newBuilderForEmulator(emulator[0], port);
    } else {
      data = BigtableDataSettings.newBuilder();
      data.stubSettings().setEndpoint(endpoint);
      data.setMetricsProvider(NoopMetricsProvider.INSTANCE);
      admin = BigtableTableAdminSettings.newBuilder();
      admin.stubSettings().setEndpoint(endpoint);
      instance = BigtableInstanceAdminSettings.newBuilder();
      instance.stubSettings().setEndpoint(endpoint);
    }
    admin.setProjectId("p").setInstanceId(ID);
    data.setProjectId("p").setInstanceId(ID);
    instance.setProjectId("p");
    try (BigtableInstanceAdminClient instances = BigtableInstanceAdminClient.create(instance.build());
        BigtableTableAdminClient tables = BigtableTableAdminClient.create(admin.build());
        BigtableDataClient client = BigtableDataClient.create(data.build())) {
      if (!instances.exists(ID)) {
        instances.createInstance(CreateInstanceRequest.of(ID).setDisplayName(ID).addCluster(ID, "local-a", 1, StorageType.SSD));
      }
      if (tables.exists("steps")) {
        tables.deleteTable("steps");
      }
      tables.createTable(CreateTableRequest.of("steps").addFamily("f").addFamily("g").addSplit(ByteString.copyFromUtf8("b")));
      fill(client);
      take(client, steps);
      stream(client);
      together(client);
      expire(client, tables);
      logicalViews(client, instances);
      materializedViews(client, instances);
      tables.deleteTable("steps");
      instances.deleteInstance(ID);
    }
    System.out.printf("java sql ok, %d queries, %d errors%n", steps.getAsJsonArray("queries").size(), steps.getAsJsonArray("errors").size());
    System.exit(0); // some of the clients' threads live on for a minute
  }

  static ByteString number(int n) {
    return ByteString.copyFrom(new byte[] {0, 0, 0, 0, 0, 0, 0, (byte) n});
  }

  static ByteString bytes(String s) {
    return ByteString.copyFromUtf8(s);
  }

  static void fill(BigtableDataClient client) {
    BulkMutation bulk = BulkMutation.create(TableId.of("steps"));
    String[] words = {"one", "two", "three"};
    for (int i = 0; i < 3; i++) {
      bulk.add(
          RowMutationEntry.create("abc".substring(i, i + 1))
              .setCell("f", bytes("n"), 1000, number(i + 1))
              .setCell("f", bytes("t"), 1000, bytes(words[i])));
    }
    bulk.add(RowMutationEntry.create("h").setCell("f", "v", 1000, "old").setCell("f", "v", 2000, "new"));
    client.bulkMutateRows(bulk);
  }

  static void take(BigtableDataClient client, JsonObject steps) {
    for (JsonElement e : steps.getAsJsonArray("queries")) {
      JsonObject step = e.getAsJsonObject();
      List<String> want = new ArrayList<>();
      step.getAsJsonArray("want").forEach(w -> want.add(w.getAsString()));
      List<String> got = run(client, step);
      check(got.equals(want), step.get("query") + ": " + got + ", not " + want);
    }
    for (JsonElement e : steps.getAsJsonArray("errors")) {
      JsonObject step = e.getAsJsonObject();
      try {
        throw new AssertionError(step.get("query") + " was answered: " + run(client, step));
      } catch (ApiException ex) {
        check(
            ex.getStatusCode().getCode().name().equals(step.get("code").getAsString()) && ex.getMessage().contains(step.get("text").getAsString()),
            step.get("query") + ": " + ex);
      }
    }
  }

  /** A result of several batches and tokens, in order; then one that is not read to its end. */
  static void stream(BigtableDataClient client) {
    ByteString wide = bytes("x".repeat(1000));
    for (int from = 0; from < 12000; from += 3000) {
      BulkMutation bulk = BulkMutation.create(TableId.of("steps"));
      for (int i = from; i < from + 3000; i++) {
        bulk.add(RowMutationEntry.create(String.format("w%05d", i)).setCell("g", bytes("wide"), 1000, wide));
      }
      client.bulkMutateRows(bulk);
    }
    PreparedStatement statement = client.prepareStatement("SELECT _key, g['wide'] AS wide FROM steps WHERE _key >= 'w'", Map.of());
    try (ResultSet rows = client.executeQuery(statement.bind().build())) {
      int n = 0;
      for (; rows.next(); n++) {
        check(rows.getBytes("_key").toStringUtf8().equals(String.format("w%05d", n)), rows.getBytes("_key"));
        check(rows.getBytes("wide").equals(wide), n);
      }
      check(n == 12000, n);
    }
    try (ResultSet rows = client.executeQuery(statement.bind().build())) {
      for (int i = 0; i < 10; i++) {
        check(rows.next(), i);
      }
    }
  }

  /** One statement, many times at once. */
  static void together(BigtableDataClient client) {
    PreparedStatement point =
        client.prepareStatement("SELECT TO_INT64(f['n']) AS n FROM steps WHERE _key = @k", Map.of("k", SqlType.bytes()));
    List<AssertionError> wrong = Collections.synchronizedList(new ArrayList<>());
    List<Thread> threads = new ArrayList<>();
    for (int t = 0; t < 20; t++) {
      Thread thread =
          new Thread(
              () -> {
                for (int i = 0; i < 15; i++) {
                  try (ResultSet rows = client.executeQuery(point.bind().setBytesParam("k", bytes("abc".substring(i % 3, i % 3 + 1))).build())) {
                    if (!rows.next() || rows.getLong("n") != 1 + i % 3 || rows.next()) {
                      wrong.add(new AssertionError(i));
                    }
                  }
                }
              });
      threads.add(thread);
      thread.setUncaughtExceptionHandler((of, e) -> wrong.add(new AssertionError(e)));
      thread.start();
    }
    for (Thread thread : threads) {
      try {
        thread.join();
      } catch (InterruptedException e) {
        throw new AssertionError(e);
      }
    }
    check(wrong.isEmpty(), wrong);
  }

  /** A statement whose columns have changed is prepared again by the client. */
  static void expire(BigtableDataClient client, BigtableTableAdminClient tables) {
    PreparedStatement all = client.prepareStatement("SELECT * FROM steps WHERE _key = 'a'", Map.of());
    for (int columns = 3; columns <= 4; columns++) {
      try (ResultSet rows = client.executeQuery(all.bind().build())) {
        check(rows.next() && rows.getMetadata().getColumns().size() == columns, columns);
      }
      if (columns == 3) {
        tables.modifyFamilies(ModifyColumnFamiliesRequest.of("steps").addFamily("later"));
      }
    }
  }

  static void logicalViews(BigtableDataClient client, BigtableInstanceAdminClient instances) {
    LogicalView made =
        instances.createLogicalView(
            CreateLogicalViewRequest.of(ID, "numbers")
                .setQuery("SELECT _key AS k, TO_INT64(f['n']) AS n FROM steps WHERE f['n'] IS NOT NULL")
                .setDeletionProtection(true));
    check(instances.getLogicalView(ID, "numbers").equals(made) && instances.listLogicalViews(ID).equals(List.of(made)), made);
    List<String> got = run(client, "SELECT SUM(n) AS s FROM numbers WHERE k > b'a'");
    check(got.equals(List.of("s INT64 5")), got);
    try {
      instances.deleteLogicalView(ID, "numbers");
      throw new AssertionError("a protected view was deleted");
    } catch (FailedPreconditionException expected) {
      // as it should be
    }
    LogicalView changed = instances.updateLogicalView(UpdateLogicalViewRequest.of(made).setDeletionProtection(false));
    check(!changed.isDeletionProtected() && changed.getQuery().equals(made.getQuery()), changed);
    instances.updateLogicalView(UpdateLogicalViewRequest.of(ID, "numbers").setQuery("SELECT 7 AS n"));
    got = run(client, "SELECT n FROM numbers");
    check(got.equals(List.of("n INT64 7")), got);
    instances.deleteLogicalView(ID, "numbers");
    try {
      throw new AssertionError("a view that is gone: " + instances.getLogicalView(ID, "numbers"));
    } catch (NotFoundException expected) {
      // as it should be
    }
  }

  static void materializedViews(BigtableDataClient client, BigtableInstanceAdminClient instances) {
    MaterializedView made =
        instances.createMaterializedView(
            CreateMaterializedViewRequest.of(ID, "letters")
                .setQuery("SELECT SUBSTR(_key, 1, 1) AS letter, COUNT(*) AS result FROM steps GROUP BY letter")
                .setDeletionProtection(true));
    check(instances.getMaterializedView(ID, "letters").equals(made) && instances.listMaterializedViews(ID).equals(List.of(made)), made);
    List<String> got = run(client, "SELECT result FROM letters WHERE letter = 'w'");
    check(got.equals(List.of("result INT64 12000")), got);
    try {
      instances.deleteMaterializedView(ID, "letters");
      throw new AssertionError("a protected view was deleted");
    } catch (FailedPreconditionException expected) {
      // as it should be
    }
    instances.updateMaterializedView(UpdateMaterializedViewRequest.of(made).setDeletionProtection(false));
    instances.deleteMaterializedView(ID, "letters");
  }
}

import com.google.api.gax.rpc.NotFoundException;
import com.google.cloud.bigtable.admin.v2.BigtableInstanceAdminClient;
import com.google.cloud.bigtable.admin.v2.BigtableInstanceAdminSettings;
import com.google.cloud.bigtable.admin.v2.BigtableTableAdminClient;
import com.google.cloud.bigtable.admin.v2.BigtableTableAdminSettings;
import com.google.cloud.bigtable.admin.v2.models.CreateInstanceRequest;
import com.google.cloud.bigtable.admin.v2.models.CreateTableRequest;
import com.google.cloud.bigtable.admin.v2.models.GCRules;
import com.google.cloud.bigtable.admin.v2.models.StorageType;
import com.google.cloud.bigtable.data.v2.BigtableDataClient;
import com.google.cloud.bigtable.data.v2.BigtableDataSettings;
import com.google.cloud.bigtable.data.v2.models.BulkMutation;
import com.google.cloud.bigtable.data.v2.models.ConditionalRowMutation;
import com.google.cloud.bigtable.data.v2.models.Filters;
import com.google.cloud.bigtable.data.v2.models.Mutation;
import com.google.cloud.bigtable.data.v2.models.Query;
import com.google.cloud.bigtable.data.v2.models.ReadModifyWriteRow;
import com.google.cloud.bigtable.data.v2.models.Row;
import com.google.cloud.bigtable.data.v2.models.RowMutation;
import com.google.cloud.bigtable.data.v2.models.RowMutationEntry;
import com.google.cloud.bigtable.data.v2.models.TableId;
import com.google.cloud.bigtable.data.v2.stub.metrics.NoopMetricsProvider;
import com.google.protobuf.ByteString;
import java.util.ArrayList;
import java.util.List;

/**
 * Smoke test of the Java client: with BIGTABLE_EMULATOR_HOST set, or with TLS and login at
 * SMOKE_ENDPOINT (HOST:PORT), by the JVM's trust store and GOOGLE_APPLICATION_CREDENTIALS.
 */
public class Smoke {
  static void check(boolean ok, Object what) {
    if (!ok) {
      throw new AssertionError(what);
    }
  }

  public static void main(String[] args) throws Exception {
    String endpoint = System.getenv("SMOKE_ENDPOINT");
    String id = "java-1";
    BigtableDataSettings.Builder data;
    BigtableTableAdminSettings.Builder admin;
    if (endpoint == null) {
      String[] emulator = System.getenv("BIGTABLE_EMULATOR_HOST").split(":");
      int port = Integer.parseInt(emulator[1]);
      data = BigtableDataSettings.newBuilderForEmulator(emulator[0], port);
      admin = BigtableTableAdminSettings.newBuilderForEmulator(emulator[0], port);
    } else {
      data = BigtableDataSettings.newBuilder();
      data.stubSettings().setEndpoint(endpoint);
      data.setMetricsProvider(NoopMetricsProvider.INSTANCE);
      admin = BigtableTableAdminSettings.newBuilder();
      admin.stubSettings().setEndpoint(endpoint);
      BigtableInstanceAdminSettings.Builder instances = BigtableInstanceAdminSettings.newBuilder().setProjectId("p");
      instances.stubSettings().setEndpoint(endpoint);
      try (BigtableInstanceAdminClient client = BigtableInstanceAdminClient.create(instances.build())) {
        if (!client.exists(id)) {
          client.createInstance(CreateInstanceRequest.of(id).setDisplayName(id).addCluster(id, "local-a", 1, StorageType.SSD));
        }
      }
    }
    admin.setProjectId("p").setInstanceId(id);
    data.setProjectId("p").setInstanceId(id);
    TableId table = TableId.of("smoke");
    try (BigtableTableAdminClient tables = BigtableTableAdminClient.create(admin.build())) {
      if (tables.exists("smoke")) {
        tables.deleteTable("smoke");
      }
      tables.createTable(
          CreateTableRequest.of("smoke").addFamily("f", GCRules.GCRULES.maxVersions(2)).addFamily("g").addSplit(ByteString.copyFromUtf8("m")));
      use(BigtableDataClient.create(data.build()), table);
      tables.deleteTable("smoke");
    }
    System.out.println("java ok");
    System.exit(0); // some of the clients' threads live on for a minute
  }

  static void use(BigtableDataClient client, TableId table) {
    try (client) {
      BulkMutation bulk = BulkMutation.create(table);
      for (int i = 0; i < 1000; i++) {
        bulk.add(
            RowMutationEntry.create(String.format("row%05d", i)).setCell("f", "q", 1000, String.valueOf(i)).setCell("g", "x", 1000, "y"));
      }
      client.bulkMutateRows(bulk);
      int n = 0;
      for (Row ignored : client.readRows(Query.create(table))) {
        n++;
      }
      check(n == 1000, n);
      Row row = client.readRow(table, "row00042");
      check(row.getCells("f", "q").get(0).getValue().toStringUtf8().equals("42"), row);
      List<String> some = new ArrayList<>();
      for (Row r : client.readRows(Query.create(table).range("row00010", "row00020").filter(Filters.FILTERS.value().regex("1[357]")))) {
        some.add(r.getKey().toStringUtf8());
      }
      check(some.equals(List.of("row00013", "row00015", "row00017")), some);
      client.readModifyWriteRow(ReadModifyWriteRow.create(table, "counter").increment("f", "n", 5));
      Row counter = client.readModifyWriteRow(ReadModifyWriteRow.create(table, "counter").increment("f", "n", 6));
      check(counter.getCells("f", "n").get(0).getValue().asReadOnlyByteBuffer().getLong() == 11, counter);
      check(
          client.checkAndMutateRow(
              ConditionalRowMutation.create(table, "row00001")
                  .condition(Filters.FILTERS.value().exactMatch("1"))
                  .then(Mutation.create().setCell("f", "hit", "y"))),
          "no hit");
      try {
        client.mutateRow(RowMutation.create(table, "x").setCell("nofam", "q", "v"));
        throw new AssertionError("an unknown family was written");
      } catch (NotFoundException expected) {
        // as it should be
      }
      check(client.sampleRowKeys(table).size() == 2, "splits");
    }
  }
}

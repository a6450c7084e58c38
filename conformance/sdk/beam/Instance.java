import com.google.cloud.bigtable.admin.v2.BigtableInstanceAdminClient;
import com.google.cloud.bigtable.admin.v2.BigtableInstanceAdminSettings;
import com.google.cloud.bigtable.admin.v2.models.CreateInstanceRequest;
import com.google.cloud.bigtable.admin.v2.models.StorageType;

/** Makes an instance of one cluster, unless it is there: Instance HOST:PORT PROJECT INSTANCE. */
public class Instance {
  public static void main(String[] args) throws Exception {
    BigtableInstanceAdminSettings.Builder settings = BigtableInstanceAdminSettings.newBuilder().setProjectId(args[1]);
    settings.stubSettings().setEndpoint(args[0]);
    try (BigtableInstanceAdminClient client = BigtableInstanceAdminClient.create(settings.build())) {
      if (!client.exists(args[2])) {
        client.createInstance(CreateInstanceRequest.of(args[2]).setDisplayName(args[2]).addCluster(args[2] + "-c1", "local-a", 1, StorageType.SSD));
      }
    }
  }
}

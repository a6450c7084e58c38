package org.apache.beam.sdk.io.gcp.bigtable;

import com.google.api.gax.core.NoCredentialsProvider;
import com.google.api.gax.grpc.InstantiatingGrpcChannelProvider;
import com.google.api.gax.rpc.StubSettings;
import com.google.cloud.bigtable.admin.v2.BigtableInstanceAdminSettings;
import com.google.cloud.bigtable.admin.v2.BigtableTableAdminSettings;
import com.google.cloud.bigtable.data.v2.BigtableDataSettings;
import io.grpc.ManagedChannelBuilder;
import java.io.Serializable;
import org.apache.beam.sdk.io.gcp.bigtable.changestreams.dao.BigtableClientOverride;

/**
 * Has Beam's connector read from another server than Google's, in plaintext and without login.
 * Only its own package can.
 */
public class Endpoint implements BigtableClientOverride, Serializable {
  private final String address;

  private Endpoint(String address) {
    this.address = address;
  }

  /** Returns read with the server at an address, HOST:PORT. */
  public static BigtableIO.ReadChangeStream of(BigtableIO.ReadChangeStream read, String address) {
    return read.withBigtableClientOverride(new Endpoint(address));
  }

  @Override
  public void updateInstanceAdminClientSettings(BigtableInstanceAdminSettings.Builder settings) {
    update(settings.stubSettings());
  }

  @Override
  public void updateTableAdminClientSettings(BigtableTableAdminSettings.Builder settings) {
    update(settings.stubSettings());
  }

  @Override
  public void updateDataClientSettings(BigtableDataSettings.Builder settings) {
    update(settings.stubSettings());
  }

  private void update(StubSettings.Builder<?, ?> settings) {
    settings.setTransportChannelProvider(
        InstantiatingGrpcChannelProvider.newBuilder()
            .setEndpoint(address)
            .setMaxInboundMessageSize(256 << 20)
            .setChannelConfigurator(ManagedChannelBuilder::usePlaintext)
            .build());
    settings.setCredentialsProvider(NoCredentialsProvider.create());
  }
}

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.google.cloud.bigtable.data.v2.models.AddToCell;
import com.google.cloud.bigtable.data.v2.models.ChangeStreamMutation;
import com.google.cloud.bigtable.data.v2.models.DeleteCells;
import com.google.cloud.bigtable.data.v2.models.DeleteFamily;
import com.google.cloud.bigtable.data.v2.models.Entry;
import com.google.cloud.bigtable.data.v2.models.Range.BoundType;
import com.google.cloud.bigtable.data.v2.models.Range.TimestampRange;
import com.google.cloud.bigtable.data.v2.models.SetCell;
import com.google.cloud.bigtable.data.v2.models.Value;
import com.google.protobuf.ByteString;
import java.io.FileOutputStream;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import org.apache.beam.runners.direct.DirectOptions;
import org.apache.beam.sdk.Pipeline;
import org.apache.beam.sdk.io.gcp.bigtable.BigtableIO;
import org.apache.beam.sdk.io.gcp.bigtable.Endpoint;
import org.apache.beam.sdk.options.PipelineOptionsFactory;
import org.apache.beam.sdk.transforms.DoFn;
import org.apache.beam.sdk.transforms.ParDo;
import org.apache.beam.sdk.values.KV;
import org.joda.time.Instant;

/**
 * Writes the changes of a table to a file, a line of JSON for each as `trestle stream` writes
 * them: Changes HOST:PORT PROJECT INSTANCE TABLE NAME START_MILLIS FILE.
 */
public class Changes {
  public static void main(String[] args) {
    DirectOptions options = PipelineOptionsFactory.create().as(DirectOptions.class);
    options.setTargetParallelism(16); // a thread each waits for a partition without changes
    options.setEnforceEncodability(false);
    options.setEnforceImmutability(false);
    Pipeline pipeline = Pipeline.create(options);
    pipeline
        .apply(
            Endpoint.of(
                BigtableIO.readChangeStream()
                    .withProjectId(args[1])
                    .withInstanceId(args[2])
                    .withTableId(args[3])
                    .withAppProfileId("default")
                    .withChangeStreamName(args[4])
                    .withExistingPipelineOptions(BigtableIO.ExistingPipelineOptions.RESUME_OR_NEW)
                    .withStartTime(new Instant(Long.parseLong(args[5]))),
                args[0]))
        .apply(ParDo.of(new Write(args[3], args[6])));
    pipeline.run().waitUntilFinish();
  }

  static class Write extends DoFn<KV<ByteString, ChangeStreamMutation>, Void> {
    private static OutputStream out; // of all that run at once
    private final String table;
    private final String file;

    Write(String table, String file) {
      this.table = table;
      this.file = file;
    }

    @Setup
    public void open() throws Exception {
      synchronized (Write.class) {
        if (out == null) {
          out = new FileOutputStream(file, true);
        }
      }
    }

    @ProcessElement
    public void process(@Element KV<ByteString, ChangeStreamMutation> change) throws Exception {
      byte[] line = (line(change.getValue()) + "\n").getBytes(StandardCharsets.UTF_8);
      synchronized (Write.class) {
        out.write(line);
      }
    }

    private String line(ChangeStreamMutation change) {
      ObjectNode line = JSON.createObjectNode();
      line.put("table", table);
      put(line, "row", change.getRowKey());
      line.put("type", change.getType().name());
      line.put("cluster", change.getSourceClusterId());
      line.put("commit", change.getCommitTime().toString());
      line.put("tiebreaker", change.getTieBreaker());
      ArrayNode mutations = line.putArray("mutations");
      for (Entry entry : change.getEntries()) {
        ObjectNode mutation = mutations.addObject();
        if (entry instanceof SetCell) {
          SetCell set = (SetCell) entry;
          mutation.put("op", "SetCell").put("family", set.getFamilyName());
          put(mutation, "qualifier", set.getQualifier());
          mutation.put("timestamp_micros", set.getTimestamp());
          put(mutation, "value", set.getValue());
        } else if (entry instanceof DeleteCells) {
          DeleteCells delete = (DeleteCells) entry;
          mutation.put("op", "DeleteFromColumn").put("family", delete.getFamilyName());
          put(mutation, "qualifier", delete.getQualifier());
          TimestampRange range = delete.getTimestampRange();
          mutation.put("start", range.getStartBound() == BoundType.UNBOUNDED ? 0 : range.getStart());
          mutation.put("end", range.getEndBound() == BoundType.UNBOUNDED ? 0 : range.getEnd());
        } else if (entry instanceof DeleteFamily) {
          mutation.put("op", "DeleteFromFamily").put("family", ((DeleteFamily) entry).getFamilyName());
        } else if (entry instanceof AddToCell) {
          AddToCell add = (AddToCell) entry;
          mutation.put("op", "AddToCell").put("family", add.getFamily());
          put(mutation, "qualifier", ((Value.RawValue) add.getQualifier()).getValue());
          mutation.put("timestamp_micros", ((Value.RawTimestamp) add.getTimestamp()).getValue());
          mutation.put("int", ((Value.IntValue) add.getInput()).getValue());
        } else {
          throw new IllegalArgumentException("a change of class " + entry.getClass());
        }
      }
      return line.toString();
    }

    private static final ObjectMapper JSON = new ObjectMapper();

    private static void put(ObjectNode node, String name, ByteString value) {
      if (value.isValidUtf8()) {
        node.put(name, value.toStringUtf8());
      } else {
        node.putObject(name).put("base64", value.toByteArray());
      }
    }
  }
}

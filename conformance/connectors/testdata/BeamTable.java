import com.google.bigtable.v2.Mutation;
import com.google.bigtable.v2.RowFilter;
import com.google.protobuf.ByteString;
import java.util.Collections;
import org.apache.beam.sdk.Pipeline;
import org.apache.beam.sdk.io.GenerateSequence;
import org.apache.beam.sdk.io.gcp.bigtable.BigtableIO;
import org.apache.beam.sdk.options.PipelineOptionsFactory;
import org.apache.beam.sdk.testing.PAssert;
import org.apache.beam.sdk.transforms.Count;
import org.apache.beam.sdk.transforms.MapElements;
import org.apache.beam.sdk.transforms.Sum;
import org.apache.beam.sdk.io.range.ByteKey;
import org.apache.beam.sdk.io.range.ByteKeyRange;
import org.apache.beam.sdk.values.KV;
import org.apache.beam.sdk.values.TypeDescriptors;
import org.apache.beam.sdk.values.TypeDescriptor;

/** Writes 100,000 rows of the table "beam" with BigtableIO, and reads them. Usage: BeamTable HOST:PORT */
public class BeamTable {
	static final long ROWS = 100_000;

	static BigtableIO.Read read(String at) {
		return BigtableIO.read().withProjectId("p").withInstanceId("i").withTableId("beam").withEmulator(at);
	}

	static Pipeline pipeline() {
		return Pipeline.create(PipelineOptionsFactory.fromArgs("--runner=DirectRunner", "--targetParallelism=2").create());
	}

	public static void main(String[] args) {
		String at = args[0];
		Pipeline write = pipeline();
		write.apply(GenerateSequence.from(0).to(ROWS))
			.apply(MapElements.into(new TypeDescriptor<KV<ByteString, Iterable<Mutation>>>() {}).via(n -> KV.of(
				ByteString.copyFromUtf8(String.format("row%05d", n)),
				Collections.singletonList(Mutation.newBuilder().setSetCell(Mutation.SetCell.newBuilder().setFamilyName("f")
					.setColumnQualifier(ByteString.copyFromUtf8("square")).setTimestampMicros(1767225600000000L)
					.setValue(ByteString.copyFromUtf8(Long.toString(n * n)))).build()))))
			.apply(BigtableIO.write().withProjectId("p").withInstanceId("i").withTableId("beam").withEmulator(at));
		write.run().waitUntilFinish();

		Pipeline read = pipeline();
		PAssert.thatSingleton(read.apply(read(at)).apply(MapElements.into(TypeDescriptors.longs())
			.via(row -> Long.parseLong(row.getFamilies(0).getColumns(0).getCells(0).getValue().toStringUtf8()))).apply(Sum.longsGlobally()))
			.isEqualTo((ROWS - 1) * ROWS * (2 * ROWS - 1) / 6);
		PAssert.thatSingleton(read.apply("range", read(at).withKeyRange(ByteKeyRange.of(ByteKey.copyFrom("row10000".getBytes()), ByteKey.copyFrom("row20000".getBytes()))))
			.apply("count range", Count.globally())).isEqualTo(10_000L);
		PAssert.thatSingleton(read.apply("filter", read(at).withRowFilter(RowFilter.newBuilder().setValueRegexFilter(ByteString.copyFromUtf8(".*00")).build()))
			.apply("count filter", Count.globally())).isEqualTo(9_999L);
		read.run().waitUntilFinish();
		System.out.println("beam ok");
		System.exit(0);
	}
}

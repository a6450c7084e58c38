import java.util.ArrayList;
import org.hbase.async.AtomicIncrementRequest;
import org.hbase.async.DeleteRequest;
import org.hbase.async.GetRequest;
import org.hbase.async.HBaseClient;
import org.hbase.async.KeyValue;
import org.hbase.async.PutRequest;
import org.hbase.async.Scanner;

/** Writes, reads, counts and scans with asynchbase, which OpenTSDB is built on. Usage: Async QUORUM TABLE */
public class Async {
	static final byte[] F = "f".getBytes(), Q = "q".getBytes();

	static byte[] row(int i) { return String.format("row%03d", i).getBytes(); }

	static void want(String what, Object got, Object wanted) {
		if (!wanted.equals(got)) {
			System.out.println("WRONG " + what + ": " + got + ", not " + wanted);
			System.exit(1);
		}
		System.out.println("ok " + what);
	}

	public static void main(String[] args) throws Exception {
		HBaseClient client = new HBaseClient(args[0]);
		byte[] table = args[1].getBytes();
		client.setFlushInterval((short) 5);
		client.ensureTableFamilyExists(table, F).join(30_000);
		for (int i = 0; i < 50; i++) {
			client.put(new PutRequest(table, row(i), F, Q, ("v" + i).getBytes())).join(30_000);
		}
		ArrayList<KeyValue> got = client.get(new GetRequest(table, row(7), F, Q)).join(30_000);
		want("get", new String(got.get(0).value()), "v7");
		int rows = 0, pages = 0;
		Scanner scanner = client.newScanner(table);
		scanner.setMaxNumRows(8);
		for (ArrayList<ArrayList<KeyValue>> page; (page = scanner.nextRows().join(30_000)) != null; pages++) {
			for (ArrayList<KeyValue> row : page) {
				want("row " + rows, new String(row.get(0).key()) + new String(row.get(0).value()), new String(row(rows)) + "v" + rows);
				rows++;
			}
		}
		want("scan", rows, 50);
		want("scan in several calls", pages > 5, true);
		want("counter", client.atomicIncrement(new AtomicIncrementRequest(table, row(60), F, Q, 5)).join(30_000), 5L);
		want("compare and set", client.compareAndSet(new PutRequest(table, row(7), F, Q, "w".getBytes()), "v7".getBytes()).join(30_000), true);
		want("compare and set, refused", client.compareAndSet(new PutRequest(table, row(7), F, Q, "x".getBytes()), "v7".getBytes()).join(30_000), false);
		client.delete(new DeleteRequest(table, row(7), F, Q)).join(30_000);
		want("delete", client.get(new GetRequest(table, row(7), F, Q)).join(30_000).size(), 0);
		client.shutdown().join(30_000);
		System.exit(0);
	}
}

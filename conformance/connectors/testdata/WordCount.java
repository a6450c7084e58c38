import java.io.IOException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hbase.HBaseConfiguration;
import org.apache.hadoop.hbase.client.Put;
import org.apache.hadoop.hbase.client.Result;
import org.apache.hadoop.hbase.client.Scan;
import org.apache.hadoop.hbase.io.ImmutableBytesWritable;
import org.apache.hadoop.hbase.mapreduce.TableMapReduceUtil;
import org.apache.hadoop.hbase.mapreduce.TableMapper;
import org.apache.hadoop.hbase.mapreduce.TableReducer;
import org.apache.hadoop.hbase.util.Bytes;
import org.apache.hadoop.io.IntWritable;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.mapreduce.Job;

/** Counts the words of a table's column f:text into f:n of another's. Usage: WordCount FROM TO */
public class WordCount {
	static final byte[] F = Bytes.toBytes("f"), TEXT = Bytes.toBytes("text"), N = Bytes.toBytes("n");

	public static class Split extends TableMapper<Text, IntWritable> {
		@Override
		protected void map(ImmutableBytesWritable key, Result row, Context out) throws IOException, InterruptedException {
			for (String word : Bytes.toString(row.getValue(F, TEXT)).split(" ")) {
				out.write(new Text(word), new IntWritable(1));
			}
		}
	}

	public static class Sum extends TableReducer<Text, IntWritable, ImmutableBytesWritable> {
		@Override
		protected void reduce(Text word, Iterable<IntWritable> counts, Context out) throws IOException, InterruptedException {
			int sum = 0;
			for (IntWritable n : counts) {
				sum += n.get();
			}
			byte[] key = Bytes.toBytes(word.toString());
			out.write(new ImmutableBytesWritable(key), new Put(key).addColumn(F, N, Bytes.toBytes(Integer.toString(sum))));
		}
	}

	public static void main(String[] args) throws Exception {
		Configuration conf = HBaseConfiguration.create();
		Job job = Job.getInstance(conf, "word count");
		job.setJarByClass(WordCount.class);
		TableMapReduceUtil.initTableMapperJob(args[0], new Scan().setCaching(100), Split.class, Text.class, IntWritable.class, job, false);
		TableMapReduceUtil.initTableReducerJob(args[1], Sum.class, job, null, null, null, null, false);
		System.exit(job.waitForCompletion(true) ? 0 : 1);
	}
}

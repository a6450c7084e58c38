import java.io.File;
import org.apache.tinkerpop.gremlin.process.traversal.Order;
import org.apache.tinkerpop.gremlin.process.traversal.dsl.graph.GraphTraversalSource;
import org.apache.tinkerpop.gremlin.process.traversal.dsl.graph.__;
import org.apache.tinkerpop.gremlin.structure.Vertex;
import org.janusgraph.core.JanusGraphFactory;
import org.janusgraph.core.Multiplicity;
import org.janusgraph.core.schema.JanusGraphManagement;
import org.janusgraph.core.schema.ConsistencyModifier;

/**
 * Keeps a graph of 300 people in HBase: a schema with a unique index, a ring of them
 * and two groups, queries, changes, and all of it again after it was closed and
 * opened. Usage: JanusGraph QUORUM PORT build|drop
 */
public class JanusGraph {
	static org.janusgraph.core.JanusGraph open(String[] args) {
		return JanusGraphFactory.build().set("storage.backend", "hbase").set("storage.hostname", args[0]).set("storage.port", Integer.parseInt(args[1]))
			.set("storage.hbase.table", "graph").set("cache.db-cache", false).open();
	}

	static void want(String what, Object got, Object wanted) {
		if (!wanted.equals(got)) {
			System.out.println("WRONG " + what + ": " + got + ", not " + wanted);
			System.exit(1);
		}
		System.out.println("ok " + what);
	}

	public static void main(String[] args) throws Exception {
		var graph = open(args);
		if (args[2].equals("drop")) {
			JanusGraphFactory.drop(graph);
			System.exit(0);
		}
		JanusGraphManagement schema = graph.openManagement();
		var name = schema.makePropertyKey("name").dataType(String.class).make();
		var age = schema.makePropertyKey("age").dataType(Integer.class).make();
		schema.makeEdgeLabel("knows").multiplicity(Multiplicity.MULTI).make();
		schema.makeEdgeLabel("in").multiplicity(Multiplicity.MANY2ONE).make();
		schema.makeVertexLabel("person").make();
		schema.makeVertexLabel("group").make();
		var unique = schema.buildIndex("byName", Vertex.class).addKey(name).unique().buildCompositeIndex();
		schema.setConsistency(unique, ConsistencyModifier.LOCK);
		schema.buildIndex("byAge", Vertex.class).addKey(age).buildCompositeIndex();
		schema.commit();

		GraphTraversalSource g = graph.traversal();
		Vertex[] groups = {g.addV("group").property("name", "even").next(), g.addV("group").property("name", "odd").next()};
		Vertex[] people = new Vertex[300];
		for (int i = 0; i < people.length; i++) {
			people[i] = g.addV("person").property("name", "person" + i).property("age", i % 60).next();
			people[i].addEdge("in", groups[i % 2]);
		}
		for (int i = 0; i < people.length; i++) {
			people[i].addEdge("knows", people[(i + 1) % people.length], "since", 2000 + i);
		}
		g.tx().commit();
		check(g);
		graph.close();

		graph = open(args);
		g = graph.traversal();
		check(g);
		// The unique index refuses a name that another has.
		int taken = 0;
		for (int i = 0; i < 2; i++) {
			try {
				g.addV("person").property("name", "person7").next();
				g.tx().commit();
				taken++;
			} catch (RuntimeException e) {
				g.tx().rollback();
			}
		}
		want("unique", taken, 0);
		g.V().has("name", "person8").property("age", 99).iterate();
		g.V().has("name", "person9").drop().iterate();
		g.tx().commit();
		want("changed", g.V().has("age", 99).values("name").next(), "person8");
		want("removed", g.V().has("name", "person9").hasNext(), false);
		want("left", g.V().count().next(), 301L);
		want("edges left", g.E().hasLabel("knows").count().next(), 298L);
		graph.close();
		System.out.println("janusgraph ok");
		System.exit(0);
	}

	static void check(GraphTraversalSource g) {
		want("vertices", g.V().count().next(), 302L);
		want("by index", g.V().has("name", "person41").values("age").next(), 41);
		want("by age", g.V().has("age", 5).count().next(), 5L);
		want("three steps", g.V().has("name", "person299").out("knows").out("knows").out("knows").values("name").next(), "person2");
		want("group", g.V().has("name", "odd").in("in").count().next(), 150L);
		want("edges", g.V().has("name", "person0").outE("knows").values("since").next(), 2000);
		want("order", g.V().hasLabel("person").order().by("age", Order.desc).by("name").limit(1).values("name").next(), "person119");
	}
}

// Package beam runs a pipeline of Beam that reads the changes of a table: Changes.java, with
// Beam's connector as it is published. `make beam` fetches the jars that it wants. run.sh runs
// Beam's own test of the connector.
package beam

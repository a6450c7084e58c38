// Package ops is what an operator sees of a running server, and does to it, over
// HTTP: metrics, health, and the admin service for tablets.
//
// It is told what happened, through Metrics for each request and through
// functions for the state of the engine, and does not know the gateway. Of the
// engine it knows what an operator is told of a tablet; see Operator.
package ops

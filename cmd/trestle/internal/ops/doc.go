// Package ops is what an operator sees of a running server: metrics and
// health over HTTP.
//
// It is told what happened, through Metrics for each request and through
// functions for the state of the engine, and knows neither the gateway nor the
// engine.
package ops

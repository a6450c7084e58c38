// Package telemetry sends traces of requests to a collector, by the OpenTelemetry protocol.
package telemetry

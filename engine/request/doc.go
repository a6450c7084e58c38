// Package request keeps what is measured of one request, from the protocol that it came by
// down to the tablets: a Record, which its context carries.
//
// Every layer adds what it knows. What makes metrics, traces and the log of slow requests
// of it is above all of them.
package request

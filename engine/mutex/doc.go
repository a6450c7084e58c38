// Package mutex is the mutex of whoever holds one while it waits for the
// network or a store. It is sync.Mutex, except in a simulation (the build tag
// sim): there waiting for it counts as waiting, so that simulated time goes on.
package mutex

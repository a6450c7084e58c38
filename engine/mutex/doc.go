// Package mutex is a mutex that may be held while its holder waits for the
// network or a store. It is sync.Mutex, except in a simulation (the build tag
// sim): there waiting for it counts as waiting, so that simulated time goes on.
package mutex

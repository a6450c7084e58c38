// Package loopback gives a test addresses that stay its own, also while no
// process listens there. They are for processes that are told their address
// before they start, or that start again on the same one.
//
// A port that the kernel has chosen does not do. As soon as its listener is
// closed, the kernel may give it to another listener or an outgoing connection,
// and keep it from the process that was meant to have it. So a Host is an
// address of 127.0.0.0/8 other than 127.0.0.1, which is what outgoing
// connections and all other listeners of tests have. Its ports are below those
// that the kernel chooses from by default. Where the loopback interface has no
// more than 127.0.0.1, as on macOS, or if asked for, that is the address, and
// the ports alone are the Host's own.
//
// What keeps two tests from having the same Host, in whichever processes and
// clones of the project they run, is a listener on the first of its ports. It
// ends with the process that took the Host.
package loopback

// Package packages tests what a release consists of, as packaging/build.sh has
// made it: that it is what it says, installs, starts, and stores a row by the
// commands of docs/install.md. `make packages-test` runs it.
//
// Nothing of it needs a daemon: Debian is a directory to change the root to, a
// service manager is the test, which does what a unit says, and containers are
// run by buildah in network namespaces.
package packages

// Package settings turns flags, environment variables and a YAML file into the
// configuration of a server.
//
// There is one table (see table.go). A row of it is a flag --name, an
// environment variable TRESTLE_NAME and a key of the file, all with the same
// meaning; a flag wins over the environment, the environment over the file,
// the file over the default. A name that is not in the table is refused, and
// everything that is wrong is reported at once.
package settings

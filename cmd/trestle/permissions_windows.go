package main

// keepToOwner does nothing: files have the permissions of the directory they are in.
func keepToOwner() {}

// checkOwner returns nil, for the same reason.
func checkOwner(string, int) error { return nil }

// Package locktest is the suite that every lock service passes.
package locktest

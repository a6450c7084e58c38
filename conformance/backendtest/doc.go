// Package backendtest is the suite that every gateway/backend.Backend passes:
//
//	func TestConformance(t *testing.T) {
//		backendtest.Run(t, func(t testing.TB) backend.Backend { … })
//	}
//
// Each test states one promise of the interface. Random takes the promises
// together: it runs the same random operations on a Backend and on
// conformance/model and compares every answer. Reopened does so with a Backend
// that is closed and opened in between.
package backendtest

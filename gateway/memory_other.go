//go:build !linux

package gateway

func installedMemory() int64 { return 0 }

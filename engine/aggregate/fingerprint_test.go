package aggregate

import (
	"encoding/binary"
	"strings"
	"testing"
)

// The values are those that the tests of ZetaSketch and of Guava publish for
// Fingerprint2011.
func TestFingerprint(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want uint64
	}{
		{"", 0x23ad7c904aa665e3},
		{"foo", 0xd0bcbfe261b36504},
		{"foobar", 0x36a1e57a138e4467},
		{"Z\u00fcrich", 0x27efc00f7d2ce548},
		{"Zu\u0308rich", 0x7dfa3067e55c7e8a},
		{"test", 8473225671271759044},
		{strings.Repeat("test", 8), 7345148637025587076},
		{strings.Repeat("test", 64), 4904844928629814570},
	} {
		if got := fingerprint([]byte(tt.in)); got != tt.want {
			t.Errorf("fingerprint(%q) = %#x, want %#x", tt.in, got, tt.want)
		}
	}
	for v, want := range map[int64]uint64{0: 0x853a22bd6e14a48f, 42: 0x583b2b9df8e0eb60, -15: 0x539414f287f11e37} {
		if got := fingerprint(binary.LittleEndian.AppendUint64(nil, uint64(v))); got != want {
			t.Errorf("fingerprint of integer %d = %#x, want %#x", v, got, want)
		}
	}
}

// TestFingerprintLengths digests inputs of 0 to 3200 bytes into one value,
// which Guava's test says the original in C++ gives.
func TestFingerprintLengths(t *testing.T) {
	const rounds = 800
	buf := make([]byte, 4*rounds)
	n := 0
	var h uint64
	step := func(length int) {
		h ^= fingerprint(buf[:length])
		h ^= h >> 41
		h *= 949921979
		buf[n] = 'a' + byte(h&0xfffff%26)
		n++
	}
	for i := range rounds {
		step(i)
		step(i * i % n)
		step(i * i * i % n)
		step(n)
		x0, x1, x2, x3 := int(buf[n-1]), int(buf[n-2]), int(buf[n-3]), int(buf[n/2])
		buf[(x0<<16+x1<<8+x2)%n] ^= byte(x3)
		buf[(x1<<16+x2<<8+x3)%n] ^= byte(i)
	}
	if h != 0xeaa3b1c985261632 {
		t.Errorf("got %#x, want 0xeaa3b1c985261632", h)
	}
}

package transport

// MaxLarge is maxLarge.
const MaxLarge = maxLarge

// Lent returns how many large buffers are lent.
func (s *Server) Lent() int64 { return s.lent.Load() }

package settings

// A Shown is a setting as an operator is shown it. None has a secret for a value: those
// are in files.
type Shown struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Origin string `json:"origin"`
	Help   string `json:"help"`
}

// Shown returns all settings in the order of help.
func (s *Set) Shown() []Shown {
	out := make([]Shown, len(s.rows))
	for i := range s.rows {
		r := &s.rows[i]
		out[i] = Shown{r.name, r.value.get(), string(s.Origin(r.name)), r.help}
	}
	return out
}

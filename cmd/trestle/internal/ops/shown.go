package ops

// ShowSettings makes the service answer with settings, which go out as JSON.
func (a *Admin) ShowSettings(settings any) { a.settings.Store(&settings) }

// listSettings is /admin/settings. They tell of the machine, as the list of servers does.
func (a *Admin) listSettings(q *request) (any, error) {
	if err := q.onServers(); err != nil {
		return nil, err
	}
	out := struct {
		Settings any `json:"settings"`
	}{[]any{}}
	if s := a.settings.Load(); s != nil {
		out.Settings = *s
	}
	return out, nil
}

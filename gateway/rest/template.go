package rest

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"sync"
)

// A template is a path of google.api.http, such as
//
//	/v2/{name=projects/*/instances/*}:undelete
//
// where * is one segment, ** is one or more, and braces name the field of the
// request that gets what they match.
type template struct {
	text   string
	re     func() *regexp.Regexp // compiled with the first path: those of all templates take 11 ms
	fields []string              // paths of fields, by group
	rank   int                   // of two templates that match, the one of lower rank counts
}

var variable = regexp.MustCompile(`\{([a-z0-9_.]+)(?:=([^{}]+))?\}`)

func compile(text string) (*template, error) {
	if !strings.HasPrefix(text, "/") {
		return nil, fmt.Errorf("template %q does not begin with a slash", text)
	}
	t := &template{text: text}
	var re strings.Builder
	re.WriteByte('^')
	rest := text
	for {
		at := variable.FindStringSubmatchIndex(rest)
		if at == nil {
			break
		}
		segments := "*"
		if at[4] >= 0 {
			segments = rest[at[4]:at[5]]
		}
		t.fields = append(t.fields, rest[at[2]:at[3]])
		re.WriteString(t.pattern(rest[:at[0]], false))
		re.WriteString("(" + t.pattern(segments, at[1] == len(rest)) + ")")
		rest = rest[at[1]:]
	}
	if strings.ContainsAny(rest, "{}") {
		return nil, fmt.Errorf("template %q has a variable that is not understood", text)
	}
	re.WriteString(t.pattern(rest, true) + "$")
	// A verb is more specific than none, one segment than many.
	if strings.Contains(text, "**") {
		t.rank += 2
	}
	if !strings.Contains(text[strings.LastIndexAny(text, "/}")+1:], ":") {
		t.rank++
	}
	t.re = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(re.String()) }) // of quoted parts
	return t, nil
}

// pattern returns the regular expression of some segments. A wildcard that ends
// the path does not match a verb.
func (t *template) pattern(text string, last bool) string {
	parts := strings.Split(text, "/")
	for i, p := range parts {
		end := last && i == len(parts)-1
		switch {
		case p == "*" && end:
			p = "[^/:]+"
		case p == "*":
			p = "[^/]+"
		case p == "**" && end:
			p = "(?:[^/]+/)*[^/:]+"
		case p == "**":
			p = "[^/]+(?:/[^/]+)*"
		default:
			p = regexp.QuoteMeta(p)
		}
		parts[i] = p
	}
	return strings.Join(parts, "/")
}

var errEscape = errors.New("the path has an invalid percent escape")

// match returns the values of the template's fields in an escaped path.
func (t *template) match(path string) (values []string, ok bool, err error) {
	m := t.re().FindStringSubmatch(path)
	if m == nil {
		return nil, false, nil
	}
	for _, v := range m[1:] {
		// A slash that is part of a name is not one between names.
		v = strings.ReplaceAll(strings.ReplaceAll(v, "%2F", "%252F"), "%2f", "%252f")
		if v, err = url.PathUnescape(v); err != nil {
			return nil, true, errEscape
		}
		values = append(values, v)
	}
	return values, true, nil
}

package functions

import (
	"context"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/trestledb/trestle/engine/query/types"
)

// FuzzCast casts a text to every type, with a format if one is given, and what comes
// out back to text.
func FuzzCast(f *testing.F) {
	for _, s := range [][2]string{
		{"12", ""}, {"-0x1F", ""}, {"1e300", ""}, {"inf", ""}, {"2014-01-31 18:12:34.123+05:30", ""}, {"2014-1-3 America/New_York", ""},
		{"2014-01-31", "YYYY-MM-DD"}, {"11:05 p.m.", "HH12:MI A.M."}, {"1999", "999.99EEEE"}, {"4711", `Y,YYY"x"MON FF3`}, {"616263", "hex"},
		{"7777", "base8"}, {"101", "BASE2"}, {"YWJj", "base64m"}, {"TESTENUM", "S0,009.9MI"}, {"x", "0X0x"}, {"id: 1 inner { n: 2 }", ""},
	} {
		f.Add(s[0], s[1])
	}
	targets := []*types.Type{
		types.BoolType, types.Int64Type, types.Float32Type, types.Float64Type, types.StringType, types.BytesType, types.DateType,
		types.TimestampType, color, pb(),
	}
	f.Fuzz(func(t *testing.T, s, format string) {
		c := &Call{Now: testNow}
		back := func(from *types.Type, v types.Value, fm *types.Value) {
			x, err := CastValue(c, from, types.StringType, v, fm, nil)
			if err != nil || !x.Valid {
				return
			}
			if !utf8.ValidString(x.Str) {
				t.Fatalf("%s %s as STRING is %q", from, showValue(from, v), x.Str)
			}
			if fm != nil || from.IsFloat() || from.Kind == types.Proto {
				return
			}
			again, err := CastValue(c, types.StringType, from, x, nil, nil)
			if err != nil || !types.SameGroup(from, v, again) {
				t.Fatalf("%s %q does not come back: %v, %v", from, x.Str, showValue(from, again), err)
			}
		}
		if utf8.ValidString(s) {
			for _, to := range targets {
				v, err := CastValue(c, types.StringType, to, types.NewString(s), nil, nil)
				if err == nil {
					back(to, v, nil)
				}
			}
		}
		if format == "" || !utf8.ValidString(format) {
			return
		}
		fm := types.NewString(format)
		for _, to := range []*types.Type{types.BytesType, types.DateType, types.TimestampType} {
			if !utf8.ValidString(s) {
				break
			}
			if v, err := CastValue(c, types.StringType, to, types.NewString(s), &fm, nil); err == nil {
				back(to, v, &fm)
			}
		}
		back(types.BytesType, types.NewString(s), &fm)
		back(types.Int64Type, types.NewInt(int64(len(s))*-123456789), &fm)
		back(types.Float64Type, types.NewFloat(float64(len(s))*1.1e10), &fm)
		back(types.DateType, types.NewInt(int64(len(s))*1000), &fm)
		back(types.TimestampType, types.NewInt(int64(len(s))*123456789), &fm)
		back(pb(), types.NewString(s), nil)
	})
}

// FuzzPatterns gives LIKE, FORMAT and regular expressions patterns of any kind. Text
// stays valid UTF-8, and LIKE agrees with the regular expression that it stands for.
func FuzzPatterns(f *testing.F) {
	for _, s := range [][2]string{
		{"%a_b%", "xaёb"}, {`100\%`, "100%"}, {"%d %5.2f %t %T %s", "a"}, {"%'x|%-*d|%%", "b"}, {`(\w+)@(?:a|b)*$`, "foo@ab"},
		{`\bfoo\B`, "a foo"}, {`(?m)^a`, "b\na"}, {"[z-a]", ""}, {"(((a{1000}){1000})", "a"}, {`\1\\x`, "b"},
	} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, pattern, s string) {
		for _, kind := range []*types.Type{types.StringType, types.BytesType} {
			if kind.Kind == types.String && (!utf8.ValidString(pattern) || !utf8.ValidString(s)) || len(s) > 100 || len(pattern) > 100 {
				continue
			}
			ctx := context.Background()
			p, x := types.NewString(pattern), types.NewString(s)
			call := func(eval evalFunc, ts []*types.Type, list ...types.Value) types.Value {
				v, err := eval(&Call{Ctx: ctx, Types: ts}, list)
				if err != nil {
					return types.Null
				}
				if kind.Kind == types.String && !utf8.ValidString(v.Str) {
					t.Fatalf("%q of %q gave %q", pattern, s, v.Str)
				}
				return v
			}
			two := []*types.Type{kind, kind}
			like := call(evalLike, two, x, p)
			if like.Valid && !strings.Contains(pattern, `\`) {
				want := likeReference([]rune(latin1If(kind, s)), []rune(latin1If(kind, pattern)))
				if strings.Count(pattern, "%") < 6 && like.Bool() != want {
					t.Fatalf("%q LIKE %q is %v", s, pattern, like.Bool())
				}
			}
			call(evalRegexpContains, two, x, p)
			call(evalRegexpExtract, two, x, p)
			call(evalRegexpExtractAll, two, x, p)
			call(evalRegexpInstr, two, x, p)
			call(evalRegexpReplace, []*types.Type{kind, kind, kind}, x, p, x)
			call(evalRegexpReplace, []*types.Type{kind, kind, kind}, x, types.NewString("(.)"), p)
			call(evalInstr, []*types.Type{kind, kind, types.Int64Type, types.Int64Type}, x, p, types.NewInt(-1), types.NewInt(2))
			call(evalTranslate, []*types.Type{kind, kind, kind}, x, p, x)
			call(evalFormat, []*types.Type{types.StringType, kind, types.Int64Type, types.Float64Type}, p, x, types.NewInt(-5), types.NewFloat(1.5))
			call(evalFormat, []*types.Type{types.StringType, types.Int64Type}, p, types.NewInt(77))
			call(evalFormat, []*types.Type{types.StringType, types.Float64Type}, p, types.NewFloat(-1e10))
		}
	})
}

func latin1If(kind *types.Type, s string) string {
	if kind.Kind == types.Bytes {
		return latin1(s)
	}
	return s
}

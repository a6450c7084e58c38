package functions

import "github.com/trestledb/trestle/engine/query/types"

func init() {
	part := Template{Part: true}

	lengths := func(name, doc string, aliases ...string) *Function {
		f := stringFunction(name, doc,
			signature(tInt64, intResult(byteLength), unaryStrings(byteLength), tString),
			signature(tInt64, intResult(byteLength), unaryStrings(byteLength), tBytes))
		f.Aliases = aliases
		return f
	}
	chars := stringFunction("CHAR_LENGTH", "Returns how many characters the text has.",
		signature(tInt64, intResult(charLength), unaryStrings(charLength), tString))
	chars.Aliases = []string{"CHARACTER_LENGTH"}
	concat := stringFunction("CONCAT", "Returns the values one after the other; values of other types than BYTES are cast to STRING.",
		&Signature{Args: []Arg{{Type: tString}, {Type: tString, Repeated: true}}, Result: tString, Eval: evalConcat, Kernel: concatStrings},
		&Signature{Args: []Arg{{Type: tBytes}, {Type: tBytes, Repeated: true}}, Result: tBytes, Eval: evalConcat, Kernel: concatStrings},
		&Signature{
			Args: []Arg{{Type: arbitrary}, {Type: arbitrary, Repeated: true}}, Result: tString, Check: checkConcat, Eval: evalConcatMixed, Internal: true,
		})
	// sameKind returns two signatures: of STRING and of BYTES, where kind stands for
	// either.
	kind := AnyT("kind")
	sameKind := func(result Template, eval evalFunc, required []Template, rest ...Template) []*Signature {
		var list []*Signature
		for _, t := range []Template{tString, tBytes} {
			with := func(x Template) Template {
				if x.Any == kind.Any {
					return t
				}
				return x
			}
			all := func(templates []Template) []Template {
				out := make([]Template, len(templates))
				for i, x := range templates {
					out[i] = with(x)
				}
				return out
			}
			list = append(list, withOptional(with(result), eval, all(required), all(rest)...))
		}
		return list
	}
	of := func(list ...Template) []Template { return list }

	substring := stringFunction("SUBSTR", "Returns the part of the value that begins at a position, counted from 1 or, if negative, from the end.",
		sameKind(kind, evalSubstr, of(kind, tInt64), tInt64)...)
	substring.Aliases = []string{"SUBSTRING"}
	startsWith := sameKind(tBool, evalStartsWith, of(kind, kind))
	for _, s := range startsWith {
		s.Kernel = startsWithKernel
	}

	register(
		lengths("BYTE_LENGTH", "Returns how many bytes the value has.", "OCTET_LENGTH"),
		chars,
		stringFunction("LENGTH", "Returns how many characters a STRING, or bytes a BYTES, has.",
			signature(tInt64, intResult(charLength), unaryStrings(charLength), tString),
			signature(tInt64, intResult(byteLength), unaryStrings(byteLength), tBytes)),
		concat,
		substring,
		stringFunction("LEFT", "Returns the first characters or bytes.", sameKind(kind, evalLeft, of(kind, tInt64))...),
		stringFunction("RIGHT", "Returns the last characters or bytes.", sameKind(kind, evalRight, of(kind, tInt64))...),
		stringFunction("STRPOS", "Returns the position, from 1, at which the second value occurs first in the first, or 0.",
			sameKind(tInt64, evalStrpos, of(kind, kind))...),
		stringFunction("INSTR", "Returns the position at which the second value occurs for the n-th time, searching from a position, or 0.",
			sameKind(tInt64, evalInstr, of(kind, kind), tInt64, tInt64)...),
		stringFunction("STARTS_WITH", "Returns whether the second value is a prefix of the first.", startsWith...),
		stringFunction("ENDS_WITH", "Returns whether the second value is a suffix of the first.", sameKind(tBool, evalEndsWith, of(kind, kind))...),
		stringFunction("REPLACE", "Returns the first value with each occurrence of the second replaced by the third.",
			sameKind(kind, evalReplace, of(kind, kind, kind))...),
		stringFunction("TRANSLATE", "Returns the value with each character of the second argument replaced by that of the third at the same place.",
			sameKind(kind, evalTranslate, of(kind, kind, kind))...),
		stringFunction("REPEAT", "Returns the value n times in a row.", sameKind(kind, evalRepeat, of(kind, tInt64))...),
		stringFunction("LPAD", "Returns the value with a pattern before it, up to a length.", sameKind(kind, pad(true), of(kind, tInt64), kind)...),
		stringFunction("RPAD", "Returns the value with a pattern behind it, up to a length.", sameKind(kind, pad(false), of(kind, tInt64), kind)...),
		stringFunction("REVERSE", "Returns the characters or bytes in reverse order.", sameKind(kind, evalReverse, of(kind))...),
		stringFunction("SPLIT", "Returns the parts between occurrences of a delimiter, by default a comma.",
			withOptional(ArrayT(tString), evalSplit, of(tString), tString),
			signature(ArrayT(tBytes), evalSplit, nil, tBytes, tBytes)),
		stringFunction("EDIT_DISTANCE", "Returns how many insertions, deletions and replacements make one value of the other.",
			editDistanceSignature(tString), editDistanceSignature(tBytes)),

		stringFunction("LOWER", "Returns the value in lower case.",
			signature(tString, changeCase('A', false), nil, tString), signature(tBytes, changeCase('A', true), nil, tBytes)),
		stringFunction("UPPER", "Returns the value in upper case.",
			signature(tString, changeCase('a', false), nil, tString), signature(tBytes, changeCase('a', true), nil, tBytes)),
		stringFunction("INITCAP", "Returns the text with the first letter of each word in upper case.", withOptional(tString, evalInitcap, of(tString), tString)),
		stringFunction("TRIM", "Returns the value without white space, or without the given characters, at both ends.",
			withOptional(tString, trim(true, true), of(tString), tString), signature(tBytes, trimBytes(true, true), nil, tBytes, tBytes)),
		stringFunction("LTRIM", "Returns the value without white space, or without the given characters, at its beginning.",
			withOptional(tString, trim(true, false), of(tString), tString), signature(tBytes, trimBytes(true, false), nil, tBytes, tBytes)),
		stringFunction("RTRIM", "Returns the value without white space, or without the given characters, at its end.",
			withOptional(tString, trim(false, true), of(tString), tString), signature(tBytes, trimBytes(false, true), nil, tBytes, tBytes)),
		stringFunction("NORMALIZE", "Returns the text in one of Unicode's normal forms: NFC (the default), NFD, NFKC, NFKD.",
			withOptional(tString, normalize(false), of(tString), part)),
		stringFunction("NORMALIZE_AND_CASEFOLD", "Returns the text in a normal form and without differences of case.",
			withOptional(tString, normalize(true), of(tString), part)),
		stringFunction("SOUNDEX", "Returns the Soundex code of the text.", signature(tString, stringResult(soundex), nil, tString)),

		stringFunction("ASCII", "Returns the code of the first character or byte.", sameKind(tInt64, evalASCII, of(kind))...),
		stringFunction("UNICODE", "Returns the code point of the first character.", signature(tInt64, evalUnicode, nil, tString)),
		stringFunction("CHR", "Returns the character of a code point.", signature(tString, evalChr, nil, tInt64)),
		stringFunction("CODE_POINTS_TO_STRING", "Returns the text of an array of code points.", signature(tString, evalCodePointsToString, nil, ArrayT(tInt64))),
		stringFunction("CODE_POINTS_TO_BYTES", "Returns the BYTES of an array of integers.", signature(tBytes, evalCodePointsToBytes, nil, ArrayT(tInt64))),
		stringFunction("TO_CODE_POINTS", "Returns the code points of a STRING, or the values of the bytes.", sameKind(ArrayT(tInt64), evalToCodePoints, of(kind))...),
		stringFunction("TO_HEX", "Returns hexadecimal digits.", signature(tString, evalToHex, nil, tBytes)),
		stringFunction("FROM_HEX", "Returns the bytes that hexadecimal digits stand for.", signature(tBytes, stringResult(fromHex), nil, tString)),
		stringFunction("TO_BASE32", "Returns base32 (RFC 4648).", signature(tString, evalToBase32, nil, tBytes)),
		stringFunction("FROM_BASE32", "Returns the bytes that base32 stands for.",
			signature(tBytes, func(c *Call, args []types.Value) (types.Value, error) { return decodeBase32(c, args[0].Str) }, nil, tString)),
		stringFunction("TO_BASE64", "Returns base64 (RFC 4648).", signature(tString, evalToBase64, nil, tBytes)),
		stringFunction("FROM_BASE64", "Returns the bytes that base64 stands for.",
			signature(tBytes, func(c *Call, args []types.Value) (types.Value, error) { return decodeBase64(c, args[0].Str) }, nil, tString)),
		stringFunction("SAFE_CONVERT_BYTES_TO_STRING", "Returns the bytes as a STRING, with U+FFFD for each that is not of UTF-8.",
			signature(tString, stringResult(safeConvertBytes), nil, tBytes)),
		&Function{
			Name: "BIT_CAST_TO_INT64", Category: "Bit", Doc: "Returns the bits as an INT64.",
			Signatures: []*Signature{signature(tInt64, func(_ *Call, args []types.Value) (types.Value, error) { return args[0], nil }, nil, tInt64)},
		},
		&Function{
			Name: "BIT_COUNT", Category: "Bit", Doc: "Returns how many bits are set.",
			Signatures: []*Signature{
				signature(tInt64, evalBitCount, nil, tInt64),
				signature(tInt64, intResult(bitCountBytes), unaryStrings(bitCountBytes), tBytes),
			},
		},
	)
}

func editDistanceSignature(t Template) *Signature {
	s := signature(tInt64, evalEditDistance, nil, t, t)
	s.Args = append(s.Args, Arg{Name: "max_distance", Type: tInt64, Optional: true, NamedOnly: true})
	return s
}

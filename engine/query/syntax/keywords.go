package syntax

// A word is a keyword of GoogleSQL. wNone is no keyword; wOther one that no rule
// here asks for, which matters for messages only.
type word uint8

// The keywords that the parser asks for: first those that are reserved.
const (
	wNone word = iota
	wOther
	wALL
	wAND
	wANY
	wARRAY
	wAS
	wASC
	wAT
	wBETWEEN
	wBY
	wCASE
	wCAST
	wCOLLATE
	wCREATE
	wCROSS
	wCUBE
	wCURRENT
	wDEFAULT
	wDEFINE
	wDESC
	wDISTINCT
	wELSE
	wEND
	wEXCEPT
	wEXISTS
	wEXTRACT
	wFALSE
	wFOLLOWING
	wFOR
	wFROM
	wFULL
	wGROUP
	wGROUPING
	wHAVING
	wIF
	wIGNORE
	wIN
	wINNER
	wINTERSECT
	wINTERVAL
	wINTO
	wIS
	wJOIN
	wLATERAL
	wLEFT
	wLIKE
	wLIMIT
	wMERGE
	wNATURAL
	wNEW
	wNOT
	wNULL
	wNULLS
	wON
	wOR
	wORDER
	wOUTER
	wOVER
	wPARTITION
	wPRECEDING
	wQUALIFY
	wRANGE
	wRECURSIVE
	wRESPECT
	wRIGHT
	wROLLUP
	wROWS
	wSELECT
	wSET
	wSOME
	wSTRUCT
	wTABLESAMPLE
	wTHEN
	wTO
	wTRUE
	wUNBOUNDED
	wUNION
	wUNNEST
	wUSING
	wWHEN
	wWHERE
	wWINDOW
	wWITH
	// Those that may be identifiers too.
	wANALYZE
	wBIGDECIMAL
	wBIGNUMERIC
	wCORRESPONDING
	wDATE
	wDATETIME
	wDECIMAL
	wDELETE
	wEXPLAIN
	wFIRST
	wFORMAT
	wINSERT
	wJSON
	wLAST
	wMAX
	wMIN
	wNAME
	wNUMERIC
	wOFFSET
	wPIVOT
	wREPLACE
	wROW
	wSAFECAST
	wSETS
	wSTRICT
	wTIME
	wTIMESTAMP
	wUNKNOWN
	wUNPIVOT
	wUPDATE
	wVALUE
	wVALUES
	wZONE
	wordCount
)

var wordNames = [wordCount]string{
	wALL: "ALL", wAND: "AND", wANY: "ANY", wARRAY: "ARRAY", wAS: "AS", wASC: "ASC", wAT: "AT",
	wBETWEEN: "BETWEEN", wBY: "BY", wCASE: "CASE", wCAST: "CAST", wCOLLATE: "COLLATE",
	wCREATE: "CREATE", wCROSS: "CROSS", wCUBE: "CUBE", wCURRENT: "CURRENT", wDEFAULT: "DEFAULT",
	wDEFINE: "DEFINE", wDESC: "DESC", wDISTINCT: "DISTINCT", wELSE: "ELSE", wEND: "END",
	wEXCEPT: "EXCEPT", wEXISTS: "EXISTS", wEXTRACT: "EXTRACT", wFALSE: "FALSE",
	wFOLLOWING: "FOLLOWING", wFOR: "FOR", wFROM: "FROM", wFULL: "FULL", wGROUP: "GROUP",
	wGROUPING: "GROUPING", wHAVING: "HAVING", wIF: "IF", wIGNORE: "IGNORE", wIN: "IN",
	wINNER: "INNER", wINTERSECT: "INTERSECT", wINTERVAL: "INTERVAL", wINTO: "INTO", wIS: "IS",
	wJOIN: "JOIN", wLATERAL: "LATERAL", wLEFT: "LEFT", wLIKE: "LIKE", wLIMIT: "LIMIT",
	wMERGE: "MERGE", wNATURAL: "NATURAL", wNEW: "NEW", wNOT: "NOT", wNULL: "NULL",
	wNULLS: "NULLS", wON: "ON", wOR: "OR", wORDER: "ORDER", wOUTER: "OUTER", wOVER: "OVER",
	wPARTITION: "PARTITION", wPRECEDING: "PRECEDING", wQUALIFY: "QUALIFY", wRANGE: "RANGE",
	wRECURSIVE: "RECURSIVE", wRESPECT: "RESPECT", wRIGHT: "RIGHT", wROLLUP: "ROLLUP",
	wROWS: "ROWS", wSELECT: "SELECT", wSET: "SET", wSOME: "SOME", wSTRUCT: "STRUCT",
	wTABLESAMPLE: "TABLESAMPLE", wTHEN: "THEN", wTO: "TO", wTRUE: "TRUE",
	wUNBOUNDED: "UNBOUNDED", wUNION: "UNION", wUNNEST: "UNNEST", wUSING: "USING",
	wWHEN: "WHEN", wWHERE: "WHERE", wWINDOW: "WINDOW", wWITH: "WITH",
	wANALYZE: "ANALYZE", wBIGDECIMAL: "BIGDECIMAL", wBIGNUMERIC: "BIGNUMERIC",
	wCORRESPONDING: "CORRESPONDING", wDATE: "DATE", wDATETIME: "DATETIME", wDECIMAL: "DECIMAL",
	wDELETE: "DELETE", wEXPLAIN: "EXPLAIN", wFIRST: "FIRST", wFORMAT: "FORMAT",
	wINSERT: "INSERT", wJSON: "JSON", wLAST: "LAST", wMAX: "MAX", wMIN: "MIN", wNAME: "NAME",
	wNUMERIC: "NUMERIC", wOFFSET: "OFFSET", wPIVOT: "PIVOT", wREPLACE: "REPLACE", wROW: "ROW",
	wSAFECAST: "SAFE_CAST", wSETS: "SETS", wSTRICT: "STRICT", wTIME: "TIME",
	wTIMESTAMP: "TIMESTAMP", wUNKNOWN: "UNKNOWN", wUNPIVOT: "UNPIVOT", wUPDATE: "UPDATE",
	wVALUE: "VALUE", wVALUES: "VALUES", wZONE: "ZONE",
}

// otherReserved are reserved keywords that no rule asks for; otherWords are
// keywords that may be identifiers and that no rule asks for.
var (
	otherReserved = []string{
		"ASSERT_ROWS_MODIFIED", "CONTAINS", "ENUM", "ESCAPE", "EXCLUDE", "FETCH", "GROUPS",
		"HASH", "LOOKUP", "NO", "OF", "PROTO", "TREAT", "WITHIN",
	}
	otherWords = []string{
		"ABORT", "ACCESS", "ACTION", "ADD", "AGGREGATE", "ALTER", "ANONYMIZATION", "ARE", "ASSERT",
		"BATCH", "BEGIN", "BREAK", "CALL", "CASCADE", "CHECK", "CLAMPED", "CLONE", "CLUSTER", "COLUMN",
		"COLUMNS", "COMMIT", "CONNECTION", "CONSTANT", "CONSTRAINT", "CONTINUE", "COPY", "CYCLE",
		"DATA", "DATABASE", "DECLARE", "DEFINER", "DELETION", "DEPTH", "DESCRIBE", "DESCRIPTOR",
		"DETERMINISTIC", "DO", "DROP", "ELSEIF", "ENFORCED", "ERROR", "EXCEPTION", "EXECUTE",
		"EXPORT", "EXTEND", "EXTERNAL", "FILES", "FILL", "FILTER", "FILTER_FIELDS", "FOREIGN",
		"FUNCTION", "GENERATED", "GRANT", "GRAPH", "GROUP_ROWS", "HIDDEN", "IDENTITY", "IMMEDIATE",
		"IMMUTABLE", "IMPORT", "INCLUDE", "INCREMENT", "INDEX", "INOUT", "INPUT", "INVOKER",
		"ISOLATION", "ITERATE", "KEY", "LANGUAGE", "LEAVE", "LEVEL", "LOAD", "LOCALITY", "LOOP",
		"MACRO", "MAP", "MATCH", "MATCHED", "MATERIALIZED", "MAXVALUE", "MEASURES", "MESSAGE",
		"METADATA", "MINVALUE", "MODEL", "MODULE", "NEXT", "NODE", "NULL_FILTERED", "ONLY", "OPTIONS",
		"OUT", "OUTPUT", "OVERWRITE", "PARENT", "PARTITIONS", "PAST", "PATTERN", "PERCENT",
		"POLICIES", "POLICY", "PRIMARY", "PRIVATE", "PRIVILEGE", "PRIVILEGES", "PROCEDURE",
		"PROJECT", "PROPERTIES", "PROPERTY", "PUBLIC", "RAISE", "READ", "REBUILD", "REFERENCES",
		"RELATIONSHIP", "REMOTE", "REMOVE", "RENAME", "REPEAT", "REPEATABLE", "REPLACE_FIELDS",
		"REPLICA", "REPORT", "RESTRICT", "RESTRICTION", "RETURN", "RETURNS", "REVOKE", "ROLLBACK",
		"RUN", "SCHEMA", "SEARCH", "SECURITY", "SEQUENCE", "SHOW", "SIMPLE", "SKIP", "SNAPSHOT",
		"SOURCE", "SQL", "STABLE", "START", "STATIC_DESCRIBE", "STORED", "STORING", "SYSTEM",
		"SYSTEM_TIME", "TABLE", "TABLES", "TARGET", "TEMP", "TEMPORARY", "TRANSACTION", "TRANSFORM",
		"TRUNCATE", "TYPE", "UNDROP", "UNIQUE", "UNTIL", "VECTOR", "VIEW", "VIEWS", "VOLATILE",
		"WEIGHT", "WHILE", "WRITE", "YIELD",
	}
)

// maxWord is the length of the longest keyword, in bytes.
const maxWord = 20

type wordInfo struct {
	word     word
	reserved bool
}

var words = func() map[string]wordInfo {
	m := make(map[string]wordInfo, 400)
	for w := wALL; w < wordCount; w++ {
		m[wordNames[w]] = wordInfo{w, w < wANALYZE}
	}
	for _, s := range otherReserved {
		m[s] = wordInfo{wOther, true}
	}
	for _, s := range otherWords {
		m[s] = wordInfo{wOther, false}
	}
	return m
}()

func lookupWord(s string) wordInfo {
	if len(s) > maxWord || len(s) < 2 {
		return wordInfo{}
	}
	var buf [maxWord]byte
	for i := 0; i < len(s); i++ {
		c := s[i]
		if 'a' <= c && c <= 'z' {
			c -= 'a' - 'A'
		}
		buf[i] = c
	}
	return words[string(buf[:len(s)])]
}

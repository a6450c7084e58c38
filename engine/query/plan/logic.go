package plan

import (
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/functions"
	"github.com/trestledb/trestle/engine/query/types"
)

// nullWhen tells whether e is NULL, or fails, whenever all columns of nulls are NULL.
func nullWhen(e algebra.Expr, nulls columnSet) bool {
	switch e := e.(type) {
	case *algebra.ColumnRef:
		return nulls[e.ID]
	case *algebra.Literal:
		return !e.Value.Valid
	case *algebra.Cast:
		return nullWhen(e.X, nulls)
	case *algebra.GetField:
		return nullWhen(e.X, nulls)
	case *algebra.GetProtoField:
		return nullWhen(e.X, nulls) && !e.Has
	case *algebra.Call:
		if e.Function.Kind != functions.Scalar || e.Signature.Nulls {
			return false
		}
		for _, a := range e.Args {
			if a != nil && nullWhen(a, nulls) {
				return true
			}
		}
	}
	return false
}

// trueWhen tells whether e is TRUE whenever all columns of nulls are NULL.
func trueWhen(e algebra.Expr, nulls columnSet) bool {
	switch e := e.(type) {
	case *algebra.Literal:
		return e.T.Kind == types.Bool && e.Value.Bool()
	case *algebra.Call:
		switch e.Function.Name {
		case "$is_null":
			return nullWhen(e.Args[0], nulls)
		case "$or":
			for _, a := range e.Args {
				if trueWhen(a, nulls) {
					return true
				}
			}
		}
	}
	return false
}

// notTrueWhen tells whether e cannot be TRUE when all columns of nulls are NULL.
func notTrueWhen(e algebra.Expr, nulls columnSet) bool {
	if nullWhen(e, nulls) {
		return true
	}
	switch e := e.(type) {
	case *algebra.Literal:
		return !e.Value.Bool()
	case *algebra.Call:
		switch e.Function.Name {
		case "$not":
			return trueWhen(e.Args[0], nulls)
		case "$is_true":
			return notTrueWhen(e.Args[0], nulls)
		case "$in", "$in_array":
			return nullWhen(e.Args[0], nulls)
		case "$and":
			for _, a := range e.Args {
				if notTrueWhen(a, nulls) {
					return true
				}
			}
		case "$or":
			for _, a := range e.Args {
				if !notTrueWhen(a, nulls) {
					return false
				}
			}
			return len(e.Args) > 0
		}
	}
	return false
}

// harmless are functions that have a result for all arguments.
var harmless = map[string]bool{
	"$equal": true, "$not_equal": true, "$less": true, "$less_or_equal": true, "$greater": true, "$greater_or_equal": true,
	"$between": true, "$in": true, "$in_array": true, "$is_null": true, "$is_true": true, "$is_false": true,
	"$is_distinct_from": true, "$is_not_distinct_from": true, "$not": true, "$and": true, "$or": true,
	"STARTS_WITH": true, "ENDS_WITH": true, "$map_subscript": true, "MAP_CONTAINS_KEY": true, "MAP_EMPTY": true,
	"COALESCE": true, "IF": true, "IFNULL": true, "NULLIF": true, "$case_no_value": true, "$case_with_value": true,
	"BYTE_LENGTH": true, "LENGTH": true, "WRITE_TIMESTAMP": true,
}

// safe tells whether e can be evaluated for more rows than the query says: it does not
// fail, and has no other effect.
func safe(e algebra.Expr) bool {
	ok := true
	algebra.Walk(e, func(e algebra.Expr) bool {
		switch e := e.(type) {
		case *algebra.Literal, *algebra.Param, *algebra.ColumnRef, *algebra.GetField, *algebra.MakeStruct, *algebra.MakeArray:
		case *algebra.Cast:
			ok = ok && e.Safe
		case *algebra.Call:
			switch {
			case e.Function.Volatile:
				ok = false
			case e.Function.Name == "$like":
				_, fixed := e.Args[1].(*algebra.Literal)
				ok = ok && fixed
			default:
				ok = ok && (harmless[e.Function.Name] || e.Safe && e.Function.Kind == functions.Scalar)
			}
		default:
			ok = false
		}
		return ok
	})
	return ok
}

// fixed tells whether e has the same value for all rows of a relation with these
// columns.
func fixed(e algebra.Expr, local columnSet) bool {
	ok := true
	algebra.Walk(e, func(e algebra.Expr) bool {
		switch e := e.(type) {
		case *algebra.ColumnRef:
			ok = ok && !local[e.ID]
		case *algebra.Subquery:
			ok = false
		case *algebra.Call:
			ok = ok && !e.Function.Volatile
		}
		return ok
	})
	return ok
}

func volatile(e algebra.Expr) bool {
	found := false
	algebra.Walk(e, func(e algebra.Expr) bool {
		if c, ok := e.(*algebra.Call); ok && c.Function.Volatile {
			found = true
		}
		return !found
	})
	return found
}

func hasSubquery(e algebra.Expr) bool {
	found := false
	algebra.Walk(e, func(e algebra.Expr) bool {
		if _, ok := e.(*algebra.Subquery); ok {
			found = true
		}
		return !found
	})
	return found
}

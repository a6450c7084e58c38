package types

import (
	"slices"
	"sort"
)

// SortMap puts the entries of a map into the order that Value.List demands:
// ascending by key, the last one of equal keys. list is key, value, key, value;
// it is changed, and what it returns is a part of it. key is the keys' type.
func SortMap(key *Type, list []Value) []Value {
	sorted, unique := true, true
	for i := 2; i < len(list); i += 2 {
		switch c := Compare(key, list[i-2], list[i]); {
		case c > 0:
			sorted = false
		case c == 0:
			unique = false
		}
	}
	if !sorted {
		sort.Stable(&entries{key, list})
	} else if unique {
		return list
	}
	out := list[:0]
	for i := 0; i < len(list); i += 2 {
		if i+2 < len(list) && Compare(key, list[i], list[i+2]) == 0 {
			continue
		}
		out = append(out, list[i], list[i+1])
	}
	clear(list[len(out):])
	return slices.Clip(out)
}

// FindKey returns the index in list, the entries of a map, at which the value
// of key k stands, or -1. key is the keys' type.
func FindKey(key *Type, list []Value, k Value) int {
	low, high := 0, len(list)/2
	if k.Valid && (key.Kind == String || key.Kind == Bytes) {
		// A family's map: the keys are qualifiers, none of them NULL.
		for low < high {
			mid := int(uint(low+high) / 2)
			switch at := &list[2*mid]; {
			case !at.Valid || at.Str < k.Str:
				low = mid + 1
			case at.Str == k.Str:
				return 2*mid + 1
			default:
				high = mid
			}
		}
		return -1
	}
	for low < high {
		mid := int(uint(low+high) / 2)
		switch c := Compare(key, list[2*mid], k); {
		case c < 0:
			low = mid + 1
		case c == 0:
			return 2*mid + 1
		default:
			high = mid
		}
	}
	return -1
}

type entries struct {
	key  *Type
	list []Value
}

func (e *entries) Len() int           { return len(e.list) / 2 }
func (e *entries) Less(i, j int) bool { return Compare(e.key, e.list[2*i], e.list[2*j]) < 0 }
func (e *entries) Swap(i, j int) {
	e.list[2*i], e.list[2*j] = e.list[2*j], e.list[2*i]
	e.list[2*i+1], e.list[2*j+1] = e.list[2*j+1], e.list[2*i+1]
}

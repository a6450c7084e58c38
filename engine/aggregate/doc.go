// Package aggregate combines the states of aggregate cells: what a cell of a
// Sum, Min, Max or HLL family holds, and how one more input or another state
// changes it.
//
// The state of Sum, Min and Max is a 64-bit big-endian two's complement
// integer. That of HLL is a HyperLogLog++ sketch in the format of Google's
// ZetaSketch library, which BigQuery's HLL_COUNT functions and the open source
// ZetaSketch read and write: an AggregatorStateProto
//
//	1   type              112 (HYPERLOGLOG_PLUS_UNIQUE)
//	2   num_values        inputs seen, distinct or not
//	3   encoding_version  2
//	4   value_type        8 (64-bit integer), 10 (double), 11 (bytes or UTF-8)
//	112 HyperLogLogPlusUniqueStateProto
//	      2 sparse_size      values in sparse_data
//	      3 precision        p: the dense form has 2^p registers
//	      4 sparse precision sp; 0 if the sparse form is not used
//	      5 data             dense form: a byte per register, the largest rho
//	      6 sparse_data      sparse form: ascending values, as varint differences
//
// A new sketch has p 15 and sp 20 and is sparse until sparse_data would reach
// three quarters of the dense form. An input is hashed with Fingerprint2011
// over its bytes, integers as 8 little-endian bytes. A sparse value is one of
//
//	+---+---------+---------------------+
//	| 0 | padding | index, sp bits      |  if its low sp-p bits are not all 0
//	+---+---------+--------------+------+
//	| 1 | padding | index, p bits| rho 6|  otherwise; rho of the bits behind sp
//	+---+---------+--------------+------+
//
// with the flag at bit max(sp, p+6). The bytes written were compared with what
// the Java library writes for the same inputs; the tests hold some of these.
//
// The package knows states and inputs. It knows nothing of rows or time.
package aggregate

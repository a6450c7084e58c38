// Package usertimeout has the kernel end TCP connections whose peer acknowledges nothing.
//
// A machine that vanishes with data under way is otherwise noticed after TCP's last
// retransmission, about a quarter of an hour later. Keep-alive does not help: it begins when
// nothing is under way.
package usertimeout

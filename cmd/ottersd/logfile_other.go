//go:build !linux

package main

import "golang.org/x/sys/unix"

// duplicate makes to another descriptor of what from is.
func duplicate(from, to int) error { return unix.Dup2(from, to) }

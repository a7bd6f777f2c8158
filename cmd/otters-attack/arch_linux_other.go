//go:build linux && !amd64

package main

import "errors"

// archAttacks are those of this kind of processor alone: none.
func archAttacks() []attack { return nil }

func call32([]string) error { return errors.New("this processor has no such gate") }

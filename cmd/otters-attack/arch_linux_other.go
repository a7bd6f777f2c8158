//go:build linux && !amd64

package main

// archAttacks are those of this kind of processor alone: none.
func archAttacks() []attack { return nil }

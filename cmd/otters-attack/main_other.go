//go:build !linux

// Command otters-attack tries the ways out of a sandbox, one by one, and says which were open. It
// knows Linux alone.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "otters-attack: this system has no sandbox to attack: it needs Linux")
	os.Exit(1)
}

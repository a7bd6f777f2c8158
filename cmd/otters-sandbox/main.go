// Command otters-sandbox is the monitor of one agent: it starts the agent's program, outlives the
// daemon, keeps the log and records the exit. It is started by the daemon, not by hand.
package main

import (
	"os"

	"github.com/otters-sh/otters/sandbox/monitor"
)

func main() { os.Exit(monitor.Main()) }

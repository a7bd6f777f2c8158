// Command scripted is the runtime and the tools of the agents that package executortest runs.
package main

import (
	"os"

	"github.com/otters-sh/otters/executor/executortest/script"
)

func main() { os.Exit(script.Main()) }

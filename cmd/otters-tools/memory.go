package main

import (
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

const (
	// maxMemory bounds what a tool takes in all, in bytes: what a filter of jq makes up, or the values of
	// a document, is bounded by nothing else.
	maxMemory = 1 << 30
	// memoryLook is how far apart the looks at it are; a tool can take some ten megabytes meanwhile.
	memoryLook = 10 * time.Millisecond
)

// bounded runs a tool, and ends the program with the tool's code for an error when it takes more than
// maxMemory. Nothing that a tool writes to a file is visible before it is whole, so that an end at
// any moment does no harm.
func bounded(c *call, args []string, end func(code int)) int {
	// The nearer it comes, the less garbage is kept.
	debug.SetMemoryLimit(maxMemory / 4 * 3)
	done := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		ticker := time.NewTicker(memoryLook)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
			}
			if memoryTaken() > maxMemory {
				tooMuch(c, c.stderr)
				end(c.tool.errorCode)
				return
			}
		}
	})
	code := c.run(args)
	close(done)
	watch.Wait()
	return code
}

func tooMuch(c *call, w io.Writer) {
	fmt.Fprintf(w, "%s: takes more than %d MiB of memory\n", c.tool.name, maxMemory>>20)
}

// memoryTaken is what the program has of the system, in bytes.
func memoryTaken() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64() - s[1].Value.Uint64()
}

// act runs the tool of this process.
func act(t tool, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return bounded(newCall(t, stdin, stdout, stderr), args, os.Exit)
}

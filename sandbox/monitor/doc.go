// Package monitor is the program otters-sandbox: it starts one program, reaps it and all it
// starts, keeps its log and records its exit, and answers controllers on a socket. Package
// sandbox starts it and talks to it.
//
// A monitor is started with one packet socket as descriptor 3, in a session of its own, and waits
// there for what to run; it ends where the socket closes before that. From then on it lives as
// long as the program, whatever becomes of who started it. SIGTERM and SIGINT sent to the monitor
// stop the program with a grace of ten seconds, so that a service manager's shutdown ends agents
// in order; all others do nothing.
//
// Invariants: the program never outlives the monitor (the kernel kills it where the monitor is
// killed); nothing that the program started is alive when the exit is recorded; the record is
// written before anyone is told; a slow controller, log or output never delays a stop.
//
// The package imports neither net nor encoding/json: every agent pays for its pages.
package monitor

// Package daemon owns the state of a machine's agents: one database, one embedded registry, one
// supervisor per agent, and the API on a unix socket.
//
// Invariants: one daemon per home; what the API acknowledged survives a power cut; an agent outlives
// the daemon unless its stop was asked for; a method that the access table does not name may be
// called by nobody.
//
// Only cmd/ottersd and tests use it; clients speak to it over its socket.
package daemon

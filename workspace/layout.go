// Package workspace is the layout of an agent's tree, the agent.yaml in it and the documents that
// tell the model where it is. A runtime reads a tree through it and an executor writes one.
//
// Everything is written whole or not at all: beside and renamed into place.
package workspace

import "path"

// Paths in an agent's tree, relative to its root and written with slashes.
const (
	EtcDir        = "etc"
	AgentYAML     = "etc/agent.yaml"
	ContextDir    = "etc/context"
	DataDir       = "etc/data"
	BinDocsDir    = "etc/data/bins"
	RuntimeBinDir = "usr/local/bin"
	RuntimeBin    = "usr/local/bin/runtime"
	BinDir        = "usr/bin"
	WorkDir       = "workspace"
	TmpDir        = "tmp"
	HomeDir       = "home"
	VarLibDir     = "var/lib"
)

// ReadOnlyDirs are the folders an agent only reads, and WritableDirs those that are its own.
func ReadOnlyDirs() []string {
	return []string{EtcDir, ContextDir, DataDir, BinDocsDir, "usr", "usr/local", RuntimeBinDir, BinDir}
}

// WritableDirs are the folders that belong to the agent, parents before children.
func WritableDirs() []string {
	return []string{WorkDir, TmpDir, HomeDir, "home/.config", "home/.cache", "home/.local", "home/.local/share", VarLibDir}
}

// UsageFile is where the usage text of a BIN lies.
func UsageFile(bin string) string { return path.Join(BinDocsDir, bin, "USAGE.md") }

// ContextFile is where the document NAME lies.
func ContextFile(name string) string { return path.Join(ContextDir, name+".md") }

package workspace

import (
	"bytes"
	"fmt"
	"path"
	"strings"
)

// Names of the generated documents, which no CONTEXT may have.
const (
	AgentDoc     = "AGENT"
	WorkspaceDoc = "WORKSPACE"
	MountsDoc    = "MOUNTS"
)

// DataFile is a file in etc/data.
type DataFile struct {
	Name        string
	Description string
}

// Confinement is what WORKSPACE.md says of the confinement in force.
type Confinement struct {
	// Level is its name.
	Level string
	// Enforced and Open are sentences: what is enforced, and what is not.
	Enforced []string
	Open     []string
	// Destinations are what a proxy opens of the network.
	Destinations []string
}

// AgentDocument is AGENT.md: who the agent is and what it has. view tells where things are as the
// agent sees them.
func AgentDocument(c *Config, data []DataFile, view View) []byte {
	var b bytes.Buffer
	name := c.Name
	if name == "" {
		name = c.ID
	}
	fmt.Fprintf(&b, "# Agent %s\n\nYou are the agent %s.", line(name), line(name))
	if c.Model != "" {
		fmt.Fprintf(&b, " Your model is %s.", line(c.Model))
	}
	b.WriteString("\n")

	section(&b, "Tools", len(c.Tools))
	for _, t := range c.Tools {
		item(&b, t.Name, t.Description)
		if t.Usage != "" {
			fmt.Fprintf(&b, "  How to call it: %s\n", path.Join(view.Root, t.Usage))
		}
	}
	section(&b, "Data files", len(data))
	for _, d := range data {
		item(&b, path.Join(view.Root, DataDir, d.Name), d.Description)
	}
	section(&b, "Capabilities", len(c.Capabilities))
	for _, k := range c.Capabilities {
		item(&b, strings.ReplaceAll(k.Name, "-", "_"), k.Description)
	}
	section(&b, "Variables", len(c.Envs))
	for _, e := range c.Envs {
		item(&b, e.Key, e.Description)
	}
	section(&b, "Folders you may write in", 1)
	item(&b, view.WorkspaceDir, "your working folder")
	item(&b, path.Join(view.Root, TmpDir), "for what need not last")
	item(&b, path.Join(view.Root, HomeDir), "your home folder")
	item(&b, path.Join(view.Root, VarLibDir), "where programs keep their state")
	return b.Bytes()
}

// WorkspaceDocument is WORKSPACE.md: the folders as the agent sees them and what is enforced.
func WorkspaceDocument(view View, conf Confinement) []byte {
	var b bytes.Buffer
	b.WriteString("# Workspace\n")
	section(&b, "Folders", 1)
	item(&b, view.WorkspaceDir, "your working folder; relative paths start here")
	item(&b, path.Join(view.Root, EtcDir), "your definition, contexts and data; only for reading")
	for _, d := range view.BinDirs {
		item(&b, d, "your tools; only for running")
	}
	item(&b, path.Join(view.Root, TmpDir), "temporary files")
	item(&b, path.Join(view.Root, HomeDir), "your home folder")
	item(&b, path.Join(view.Root, VarLibDir), "state of programs")
	if view.Isolated {
		b.WriteString("\nYou see nothing of the host but these folders and your mounts.\n")
	}
	section(&b, "Network", len(conf.Destinations))
	if len(conf.Destinations) > 0 {
		b.WriteString("A proxy opens these destinations and no others, on ports 80 and 443 where none is named. It is in\nHTTP_PROXY and HTTPS_PROXY, with its credential; programs that read these variables use it.\n\n")
	}
	for _, d := range conf.Destinations {
		item(&b, d, "")
	}
	if conf.Level != "" {
		fmt.Fprintf(&b, "\n## Confinement\n\nThe sandbox level is %s.\n", conf.Level)
	}
	for _, s := range conf.Enforced {
		fmt.Fprintf(&b, "- Enforced: %s\n", line(s))
	}
	for _, s := range conf.Open {
		fmt.Fprintf(&b, "- Not enforced: %s\n", line(s))
	}
	return b.Bytes()
}

// MountsDocument is MOUNTS.md; there is none without mounts, and it is then nil.
func MountsDocument(mounts []Mount) []byte {
	if len(mounts) == 0 {
		return nil
	}
	var b bytes.Buffer
	b.WriteString("# Mounts\n\nFolders and files of the host that you see:\n\n")
	for _, m := range mounts {
		mode := "you may write"
		if m.ReadOnly {
			mode = "only for reading"
		}
		if m.Description != "" {
			mode += "; " + m.Description
		}
		item(&b, m.Target, mode)
	}
	return b.Bytes()
}

func section(b *bytes.Buffer, title string, items int) {
	if items > 0 {
		fmt.Fprintf(b, "\n## %s\n\n", title)
	}
}

func item(b *bytes.Buffer, name, description string) {
	fmt.Fprintf(b, "- `%s`", line(name))
	if description != "" {
		fmt.Fprintf(b, ": %s", line(description))
	}
	b.WriteByte('\n')
}

// line keeps a text of someone else's from starting a line, and with it a section, of its own.
func line(s string) string { return strings.Join(strings.Fields(s), " ") }

// Package spec is the Agentfile language: the resolved definition of an agent, its parser and
// printer, and the checks that both a file and an override must pass.
//
// docs/agentfile.md is the language's reference. The package reads nothing but the build folder that
// Parse may be given, and may be used by anyone.
package spec

import (
	"slices"
	"strings"
)

// DefaultSyntax is the language version a file without a syntax line is written in.
const DefaultSyntax = "openotters/agentfile:1"

// SkillSyntax is that of a definition with skills, which readers of DefaultSyntax alone refuse.
const SkillSyntax = "openotters/agentfile:1+skills"

// Agentfile is the resolved definition of an agent: what the file says after ARG expansion, merged
// with its parent. Its JSON form is the "agent" object of an image's config blob, with empty fields
// left out. Slices keep the file's order and hold each key once.
//
// The zero value is an empty definition; overrides are recorded by applying them to it.
type Agentfile struct {
	// Syntax is the language version; it is stored beside the definition, not in it.
	Syntax string `json:"-"`
	// From is "scratch" or the parent's reference.
	From string `json:"from,omitempty"`
	// Runtime is the reference of the runtime image; empty is the daemon's own.
	Runtime string `json:"runtime,omitempty"`
	// Model is provider/model; empty means it must be given at deploy.
	Model string `json:"model,omitempty"`
	Name  string `json:"name,omitempty"`

	Contexts []Context `json:"contexts,omitempty"`
	Configs  []Config  `json:"configs,omitempty"`
	Bins     []Bin     `json:"bins,omitempty"`
	Adds     []Add     `json:"adds,omitempty"`
	// Exec is the arguments after the runtime's binary; nil is ["serve"].
	Exec   []string `json:"exec,omitempty"`
	Labels Pairs    `json:"labels,omitempty"`
	Args   Pairs    `json:"args,omitempty"`
	Envs   []Env    `json:"envs,omitempty"`
	// Capabilities are tools that the runtime provides; names are written with hyphens.
	Capabilities []string `json:"capabilities,omitempty"`

	// Mounts are given at deploy and never written into an image.
	Mounts []Mount `json:"-"`
}

// Context is a document for the model's system prompt.
type Context struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	// Content is the text; in a file it may instead come from File.
	Content string `json:"content,omitempty"`
	// File is the source's path in the build folder, kept as a note of where Content came from.
	File string `json:"file,omitempty"`
}

// Config is a setting of the runtime. Its value keeps its text: 1.10 stays 1.10.
type Config struct {
	Key string `json:"key"`
	// Value is nil where the file gives none, which differs from an empty one.
	Value       *string `json:"value,omitempty"`
	Description string  `json:"description,omitempty"`
	// Required means that a value must be given at deploy.
	Required bool `json:"required,omitempty"`
}

// Bin is a tool: a program of a BIN image.
type Bin struct {
	Name string `json:"name"`
	// Image is the reference of the BIN image, resolved at deploy.
	Image       string `json:"image"`
	Description string `json:"description,omitempty"`
	Usage       string `json:"usage,omitempty"`
}

// Env is a variable of the agent's environment.
type Env struct {
	Key         string `json:"key"`
	Value       string `json:"value,omitempty"`
	Description string `json:"description,omitempty"`
}

// Add is a file that becomes etc/data/NAME, or a skill: a folder that becomes etc/data/skills/NAME.
type Add struct {
	Src string `json:"src"`
	// Name is the path in etc/data: a file's name, or skills/NAME. An older blob's "dst" is read as its
	// last element.
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
}

// IsSkill tells that it is a folder with a SKILL.md.
func (a Add) IsSkill() bool { return strings.HasPrefix(a.Name, skillsDir) }

// HasSkills tells that the definition needs SkillSyntax.
func (a *Agentfile) HasSkills() bool { return slices.ContainsFunc(a.Adds, Add.IsSkill) }

// Mount is a host path that an agent sees.
type Mount struct {
	// Host is the absolute path on the host.
	Host string `json:"host"`
	// Target is the path as the agent sees it, inside its tree.
	Target      string `json:"target"`
	Description string `json:"description,omitempty"`
	ReadOnly    bool   `json:"read_only,omitempty"`
}

// Pair is a key with its value.
type Pair struct {
	Key   string
	Value string
}

// Pairs are keys with values in the order they were first given. Their JSON form is an object.
type Pairs []Pair

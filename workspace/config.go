package workspace

// Config is what etc/agent.yaml holds: the resolved definition the runtime starts from. Neither an
// address nor a credential nor the value of an ENV is ever in it.
type Config struct {
	ID    string `yaml:"id"`
	Name  string `yaml:"name,omitempty"`
	Model string `yaml:"model,omitempty"`
	// Workspace is the working folder as the agent sees it.
	Workspace string     `yaml:"workspace"`
	Image     ImageRef   `yaml:"image"`
	Runtime   RuntimeRef `yaml:"runtime"`
	// Configs are the runtime's settings; every value keeps its text.
	Configs      map[string]string `yaml:"configs,omitempty"`
	Capabilities []Capability      `yaml:"capabilities,omitempty"`
	Envs         []EnvName         `yaml:"envs,omitempty"`
	Mounts       []Mount           `yaml:"mounts,omitempty"`
	Context      []Context         `yaml:"context,omitempty"`
	Tools        []Tool            `yaml:"tools,omitempty"`
	Exec         []string          `yaml:"exec,omitempty"`
	Provenance   Provenance        `yaml:"provenance"`
}

// ImageRef names the agent's image.
type ImageRef struct {
	Ref    string `yaml:"ref,omitempty"`
	Digest string `yaml:"digest,omitempty"`
}

// RuntimeRef names the runtime and where its binary is, as the agent sees it.
type RuntimeRef struct {
	Ref    string `yaml:"ref,omitempty"`
	Digest string `yaml:"digest,omitempty"`
	Binary string `yaml:"binary,omitempty"`
}

// EnvName names a variable of the agent's environment; its value is in no document.
type EnvName struct {
	Key         string `yaml:"key"`
	Description string `yaml:"description,omitempty"`
}

// Mount is a mount as the agent sees it.
type Mount struct {
	Target      string `yaml:"target"`
	Description string `yaml:"description,omitempty"`
	ReadOnly    bool   `yaml:"read_only,omitempty"`
}

// Context names a document of the system prompt. File is relative to the tree's root.
type Context struct {
	Name        string `yaml:"name"`
	File        string `yaml:"file"`
	Description string `yaml:"description,omitempty"`
}

// Tool is a BIN the agent may run.
type Tool struct {
	Name        string `yaml:"name"`
	Description string `yaml:"description,omitempty"`
	// Binary is the program's absolute path as the agent sees it.
	Binary string `yaml:"binary"`
	Ref    string `yaml:"ref,omitempty"`
	Digest string `yaml:"digest,omitempty"`
	// Usage is the path of the usage text relative to the tree's root; empty where there is none.
	Usage string `yaml:"usage,omitempty"`
}

// Provenance says exactly which bytes run.
type Provenance struct {
	ImageDigest   string `yaml:"image_digest,omitempty"`
	RuntimeRef    string `yaml:"runtime_ref,omitempty"`
	RuntimeDigest string `yaml:"runtime_digest,omitempty"`
}

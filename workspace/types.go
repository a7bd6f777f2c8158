package workspace

// Capability is a tool that the runtime provides to the model.
type Capability struct {
	Name        string `yaml:"name"`
	Description string `yaml:"description,omitempty"`
}

// View is the tree as the agent sees it, which in a container is not where it lies on the host.
// The zero value is the tree at the host path it has.
type View struct {
	// Root is the tree's root.
	Root string
	// WorkspaceDir is the working folder.
	WorkspaceDir string
	// BinDirs are the folders tools are found in.
	BinDirs []string
	// RuntimeBin is the runtime's binary.
	RuntimeBin string
	// Isolated tells that the agent sees nothing but the tree.
	Isolated bool
}

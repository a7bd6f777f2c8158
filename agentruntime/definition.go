package agentruntime

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/otters-sh/otters/workspace"
)

// maxDocument bounds a document of a tree, in bytes.
const maxDocument = 1 << 20

// definition is what a tree says about its agent.
type definition struct {
	config   *workspace.Config
	settings settings
	system   systemText
	skills   []skill
	warnings []string
}

// readDefinition reads agent.yaml and the contexts below root. Symlinks that leave the root are not
// followed. Errors wrap ErrConfig.
func readDefinition(root *os.Root) (definition, error) {
	var def definition
	var err error
	if def.config, def.settings, err = readConfig(root); err != nil {
		return def, err
	}
	def.skills, def.warnings = readSkills(root)
	if def.system, err = readSystem(root, def.config.Context, def.skills); err != nil {
		return def, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return def, nil
}

// readConfig reads agent.yaml alone. Errors wrap ErrConfig.
func readConfig(root *os.Root) (*workspace.Config, settings, error) {
	f, err := openRegular(root, workspace.AgentYAML)
	if err != nil {
		return nil, settings{}, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	defer f.Close()
	config, err := workspace.ReadConfig(f)
	if err != nil {
		return nil, settings{}, fmt.Errorf("%w: %s: %w", ErrConfig, workspace.AgentYAML, err)
	}
	set, err := readSettings(config.Configs)
	return config, set, err
}

// openRegular opens a file below root for reading. A pipe without a writer is not waited for.
func openRegular(root *os.Root, name string) (*os.File, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", name)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// readDocument reads a text below root of at most limit bytes.
func readDocument(root *os.Root, name string, limit int64) (string, error) {
	f, err := openRegular(root, name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return "", err
	}
	if int64(len(data)) > limit {
		return "", fmt.Errorf("%s is longer than %d bytes", name, limit)
	}
	return strings.ToValidUTF8(string(data), "\uFFFD"), nil
}

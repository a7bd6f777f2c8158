package agentruntime

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/otters-sh/otters/workspace"
)

// Bounds on what a tree may hold, in bytes.
const (
	maxDocument = 1 << 20
	maxPrompt   = 4 << 20
)

// generated are the documents that come before the agent's own contexts, in this order.
var generated = []string{"AGENT", "WORKSPACE", "MOUNTS"}

// definition is what a tree says about its agent.
type definition struct {
	config   *workspace.Config
	settings settings
	system   string
}

// readDefinition reads agent.yaml and the contexts below root. Symlinks that leave the root are not
// followed. Errors wrap ErrConfig.
func readDefinition(root *os.Root) (definition, error) {
	var def definition
	f, err := root.Open(workspace.AgentYAML)
	if err != nil {
		return def, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	defer f.Close()
	if def.config, err = workspace.ReadConfig(f); err != nil {
		return def, fmt.Errorf("%w: %s: %w", ErrConfig, workspace.AgentYAML, err)
	}
	if def.settings, err = readSettings(def.config.Configs); err != nil {
		return def, err
	}
	if def.system, err = systemPrompt(root, def.config.Context); err != nil {
		return def, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return def, nil
}

// systemPrompt joins the documents in an order that never changes, so that providers can cache it.
func systemPrompt(root *os.Root, contexts []workspace.Context) (string, error) {
	var b strings.Builder
	for _, name := range generated {
		text, err := readDocument(root, workspace.ContextFile(name), maxDocument)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("context %s: %w", name, err)
		}
		appendDocument(&b, name, text)
	}
	for _, c := range contexts {
		text, err := readDocument(root, c.File, maxDocument)
		if err != nil {
			return "", fmt.Errorf("context %s: %w", c.Name, err)
		}
		appendDocument(&b, c.Name, text)
		if b.Len() > maxPrompt {
			return "", fmt.Errorf("context %s: all contexts together are longer than %d bytes", c.Name, maxPrompt)
		}
	}
	return b.String(), nil
}

func appendDocument(b *strings.Builder, name, text string) {
	if b.Len() > 0 {
		b.WriteString("\n\n")
	}
	fmt.Fprintf(b, "<document name=%q>\n%s\n</document>", name, strings.TrimSpace(text))
}

// readDocument reads a text below root of at most limit bytes.
func readDocument(root *os.Root, name string, limit int64) (string, error) {
	f, err := root.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is no regular file", name)
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return "", err
	}
	if int64(len(data)) > limit {
		return "", fmt.Errorf("%s is longer than %d bytes", name, limit)
	}
	return strings.ToValidUTF8(string(data), "\uFFFD"), nil
}

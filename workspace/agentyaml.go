package workspace

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"gopkg.in/yaml.v3"
)

// MaxConfigSize bounds agent.yaml, in bytes.
const MaxConfigSize = 4 << 20

// ErrInvalidConfig is wrapped by every error that tells what is wrong with an agent.yaml.
var ErrInvalidConfig = errors.New("invalid agent.yaml")

// Marshal is the text of agent.yaml. Equal configs have equal texts.
func (c *Config) Marshal() ([]byte, error) {
	var buf bytes.Buffer
	enc := yaml.NewEncoder(&buf)
	enc.SetIndent(2)
	if err := enc.Encode(c); err != nil {
		return nil, fmt.Errorf("agent.yaml: %w", err)
	}
	if err := enc.Close(); err != nil {
		return nil, fmt.Errorf("agent.yaml: %w", err)
	}
	return buf.Bytes(), nil
}

// ReadConfig reads an agent.yaml of at most MaxConfigSize bytes. Fields it does not know are left
// alone, since a newer executor may write more; what it knows must have its type, and there must be
// an id. Errors wrap ErrInvalidConfig.
func ReadConfig(r io.Reader) (*Config, error) {
	data, err := io.ReadAll(io.LimitReader(r, MaxConfigSize+1))
	if err != nil {
		return nil, fmt.Errorf("read agent.yaml: %w", err)
	}
	if len(data) > MaxConfigSize {
		return nil, fmt.Errorf("%w: over %d bytes", ErrInvalidConfig, MaxConfigSize)
	}
	c := new(Config)
	if err := yaml.Unmarshal(data, c); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidConfig, err)
	}
	if c.ID == "" {
		return nil, fmt.Errorf("%w: it has no id", ErrInvalidConfig)
	}
	return c, nil
}

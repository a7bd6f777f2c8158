package spec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path"
)

// Get is the value of key.
func (p Pairs) Get(key string) (string, bool) {
	for _, e := range p {
		if e.Key == key {
			return e.Value, true
		}
	}
	return "", false
}

func (p Pairs) keys() []string {
	keys := make([]string, len(p))
	for i, e := range p {
		keys[i] = e.Key
	}
	return keys
}

// MarshalJSON writes an object in the order of p.
func (p Pairs) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, e := range p {
		if i > 0 {
			b.WriteByte(',')
		}
		key, err := json.Marshal(e.Key)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(e.Value)
		if err != nil {
			return nil, err
		}
		b.Write(key)
		b.WriteByte(':')
		b.Write(value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// UnmarshalJSON reads an object, or an array of {key, value}, in its order. A key that is there
// twice is an error, since readers differ in which one they take.
func (p *Pairs) UnmarshalJSON(data []byte) error {
	*p = nil
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	start, err := d.Token()
	if err != nil {
		return err
	}
	switch start {
	case nil:
		return nil
	case json.Delim('['):
		for d.More() {
			var e struct {
				Key   string `json:"key"`
				Value string `json:"value"`
			}
			if err := d.Decode(&e); err != nil {
				return err
			}
			*p = append(*p, Pair{e.Key, e.Value})
		}
	case json.Delim('{'):
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return err
			}
			var value string
			if err := d.Decode(&value); err != nil {
				return err
			}
			*p = append(*p, Pair{key.(string), value})
		}
	default:
		return errors.New("want an object, or an array of key and value")
	}
	return p.unique()
}

func (p Pairs) unique() error {
	seen := make(map[string]bool, len(p))
	for _, e := range p {
		if seen[e.Key] {
			return fmt.Errorf("the key %q is there twice", clip(e.Key))
		}
		seen[e.Key] = true
	}
	return nil
}

// UnmarshalJSON also reads a value that older builds wrote as a number or a truth value; it keeps
// the text that stands there.
func (c *Config) UnmarshalJSON(data []byte) error {
	var e struct {
		Key         string          `json:"key"`
		Value       json.RawMessage `json:"value"`
		Description string          `json:"description"`
		Required    bool            `json:"required"`
	}
	if err := json.Unmarshal(data, &e); err != nil {
		return err
	}
	*c = Config{Key: e.Key, Description: e.Description, Required: e.Required}
	if len(e.Value) == 0 || string(e.Value) == "null" {
		return nil
	}
	text := string(e.Value)
	switch text[0] {
	case '"':
		if err := json.Unmarshal(e.Value, &text); err != nil {
			return err
		}
	case '{', '[':
		return fmt.Errorf("the value of %q is not text", clip(e.Key))
	}
	c.Value = &text
	return nil
}

// UnmarshalJSON also reads the "dst" that older builds wrote: a path whose last element is the name.
func (a *Add) UnmarshalJSON(data []byte) error {
	var e struct {
		Src         string `json:"src"`
		Name        string `json:"name"`
		Dst         string `json:"dst"`
		Description string `json:"description"`
	}
	if err := json.Unmarshal(data, &e); err != nil {
		return err
	}
	*a = Add{Src: e.Src, Name: e.Name, Description: e.Description}
	switch {
	case a.Name != "":
	case e.Dst != "":
		a.Name = path.Base(e.Dst)
	case e.Src != "":
		a.Name = path.Base(e.Src)
	}
	return nil
}

// UnmarshalJSON also reads capabilities written with underscores, and one that is there twice once.
func (a *Agentfile) UnmarshalJSON(data []byte) error {
	type plain Agentfile
	if err := json.Unmarshal(data, (*plain)(a)); err != nil {
		return err
	}
	seen := make(map[string]bool, len(a.Capabilities))
	var names []string
	for _, name := range a.Capabilities {
		if name = capability(name); !seen[name] {
			names = append(names, name)
		}
		seen[name] = true
	}
	a.Capabilities = names
	return nil
}

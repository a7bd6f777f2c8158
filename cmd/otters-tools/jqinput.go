package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// inputs reads the values of all files, one at a time. It is the iterator behind jq's input too, and
// so returns errors as values.
type inputs struct {
	q      *query
	files  []string
	opened bool
	name   string
	file   io.Closer
	next   func() (any, error)
	ended  bool
}

// Next returns the next value, or an error once for each file that can't be read on.
func (in *inputs) Next() (any, bool) {
	if in.ended {
		return nil, false
	}
	if in.q.slurp {
		in.ended = true
		return in.all(), true
	}
	return in.value()
}

func (in *inputs) value() (any, bool) {
	for {
		if in.next == nil {
			more, err := in.open()
			if err != nil {
				return fmt.Errorf("%s: %s", in.name, cause(err)), true
			}
			if !more {
				in.ended = true
				return nil, false
			}
		}
		v, err := in.next()
		if err == nil {
			return v, true
		}
		in.close()
		if !errors.Is(err, io.EOF) {
			return fmt.Errorf("%s: %s", in.name, cause(err)), true
		}
	}
}

// all returns every value in one array, or with -R the whole text.
func (in *inputs) all() any {
	values := []any{}
	var text []byte
	for {
		v, ok := in.value()
		switch {
		case !ok && in.q.text:
			return string(text)
		case !ok:
			return values
		}
		if err, bad := v.(error); bad {
			return err
		}
		if s, isText := v.(string); isText && in.q.text {
			text = append(text, s...)
			if len(text) > maxHeld {
				return errHeld
			}
			continue
		}
		values = append(values, v)
	}
}

// open goes on to the next file, to standard input when none was given.
func (in *inputs) open() (bool, error) {
	if len(in.files) == 0 && in.opened {
		return false, nil
	}
	in.name = "-"
	if len(in.files) > 0 {
		in.name, in.files = in.files[0], in.files[1:]
	}
	in.opened = true
	r := in.q.c.stdin
	if in.name != "-" {
		f, err := os.Open(in.name)
		if err != nil {
			return false, err
		}
		r, in.file = f, f
	} else {
		in.name = "standard input"
	}
	switch {
	case in.q.text:
		in.next = in.textReader(r)
	case in.q.yaml:
		in.next = yamlReader(r)
	default:
		in.next = in.jsonReader(r)
	}
	return true, nil
}

func (in *inputs) close() {
	if in.file != nil {
		in.file.Close()
	}
	in.file, in.next = nil, nil
}

func (in *inputs) textReader(r io.Reader) func() (any, error) {
	l := in.q.c.lines(r)
	return func() (any, error) {
		line, err := l.next()
		if err != nil {
			return nil, err
		}
		if !in.q.slurp {
			line = bytes.TrimSuffix(line, []byte{'\n'})
		}
		return string(line), nil
	}
}

// jsonReader reads value after value. Each may be maxHeld long; all of them together when they are
// collected into one array.
func (in *inputs) jsonReader(r io.Reader) func() (any, error) {
	limited := &allowance{r: r, left: maxHeld}
	dec := newDecoder(limited)
	return func() (any, error) {
		if !in.q.slurp {
			limited.left = maxHeld
		}
		var v any
		err := dec.Decode(&v)
		var syntax *json.SyntaxError
		switch {
		case errors.As(err, &syntax):
			return nil, fmt.Errorf("byte %d: not JSON: %w", syntax.Offset, err)
		case errors.Is(err, io.ErrUnexpectedEOF):
			return nil, fmt.Errorf("after byte %d: not JSON: it ends inside a value", dec.InputOffset())
		}
		return v, err
	}
}

// newDecoder keeps numbers as they are written.
func newDecoder(r io.Reader) *json.Decoder {
	dec := json.NewDecoder(r)
	dec.UseNumber()
	return dec
}

// allowance reads no more than left bytes, and says so.
type allowance struct {
	r    io.Reader
	left int64
}

func (a *allowance) Read(p []byte) (int, error) {
	if a.left <= 0 {
		return 0, errHeld
	}
	n, err := a.r.Read(p[:min(int64(len(p)), a.left)])
	a.left -= int64(n)
	return n, err
}

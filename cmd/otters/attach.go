package main

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"unicode/utf8"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

const (
	// maxAttachments and maxAttached bound what goes along with a prompt, the latter in bytes.
	maxAttachments = 16
	maxAttached    = 10 << 20
	// maxSchema bounds a JSON Schema in bytes.
	maxSchema = 256 << 10
)

// attachments reads the files that go along with a prompt.
func attachments(paths []string) ([]*daemonv1.Attachment, error) {
	if len(paths) > maxAttachments {
		return nil, usagef("prompt: %d files attached, at most %d are taken", len(paths), maxAttachments)
	}
	var out []*daemonv1.Attachment
	left := int64(maxAttached)
	for _, path := range paths {
		data, err := readFile(path, left)
		if err != nil {
			return nil, fmt.Errorf("prompt: attach: %w; name another file (all together have at most %d bytes)", err, maxAttached)
		}
		if len(data) == 0 {
			return nil, fmt.Errorf("prompt: attach: %s is empty; leave it out", path)
		}
		left -= int64(len(data))
		out = append(out, &daemonv1.Attachment{Name: filepath.Base(path), MediaType: mediaType(data), Data: data})
	}
	return out, nil
}

// mediaType is what the content says that it is: a name may say anything.
func mediaType(data []byte) string {
	kind := http.DetectContentType(data)
	if kind == "application/octet-stream" && utf8.Valid(data) && !strings.ContainsRune(string(data), 0) {
		return "text/plain; charset=utf-8"
	}
	return kind
}

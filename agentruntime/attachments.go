package agentruntime

import (
	"fmt"
	"mime"
	"net/http"
	"strings"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/otters-sh/otters/loop"
	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
)

// Bounds on what comes with a prompt; sizes in bytes.
const (
	maxAttachments     = 16
	maxAttachmentName  = 255
	maxAttachedText    = 1 << 20
	maxAttachedImage   = 5 << 20
	maxAttachmentBytes = 10 << 20 // all of a prompt
)

// imageTypes are the media types that vision models take.
var imageTypes = map[string]bool{"image/png": true, "image/jpeg": true, "image/gif": true, "image/webp": true}

// textTypes are those that are text beside text/* and what ends in +json, +xml or +yaml.
var textTypes = map[string]bool{
	"application/json": true, "application/xml": true, "application/yaml": true, "application/x-yaml": true, "application/toml": true,
	"application/javascript": true, "application/sql": true, "application/x-sh": true, "application/x-ndjson": true,
}

// checkAttachments makes parts of what comes with a prompt. Errors are statuses that name the file.
func checkAttachments(list []*agentv1.Attachment) ([]loop.Part, error) {
	if len(list) > maxAttachments {
		return nil, status.Errorf(codes.InvalidArgument, "attachments: %d are over the limit of %d", len(list), maxAttachments)
	}
	var parts []loop.Part
	total := 0
	for i, a := range list {
		p, err := checkAttachment(a)
		if err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "attachment %d (%q): %s", i+1, start(a.GetName(), maxNoteKey), err)
		}
		if total += len(a.GetData()); total > maxAttachmentBytes {
			return nil, status.Errorf(codes.InvalidArgument, "attachments: all together are over the limit of %d bytes", maxAttachmentBytes)
		}
		parts = append(parts, p)
	}
	return parts, nil
}

func checkAttachment(a *agentv1.Attachment) (loop.Part, error) {
	name, data := a.GetName(), a.GetData()
	if name == "" || len(name) > maxAttachmentName || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == '/' || r == 0x7f }) {
		return loop.Part{}, fmt.Errorf("name: want 1 to %d bytes without slashes and control characters", maxAttachmentName)
	}
	kind, params, err := mime.ParseMediaType(a.GetMediaType())
	if err != nil {
		return loop.Part{}, fmt.Errorf("media_type %q: want one such as text/plain or image/png", start(a.GetMediaType(), maxNoteKey))
	}
	switch {
	case len(data) == 0:
		return loop.Part{}, fmt.Errorf("data: there is none")
	case imageTypes[kind]:
		if len(data) > maxAttachedImage {
			return loop.Part{}, fmt.Errorf("data: %d bytes are over the limit of %d for an image", len(data), maxAttachedImage)
		}
		if is := http.DetectContentType(data); is != kind {
			return loop.Part{}, fmt.Errorf("data: it is %s, not %s", is, kind)
		}
		return loop.Image(name, kind, data), nil
	case isText(kind):
		if len(data) > maxAttachedText {
			return loop.Part{}, fmt.Errorf("data: %d bytes are over the limit of %d for text", len(data), maxAttachedText)
		}
		if c := params["charset"]; c != "" && !strings.EqualFold(c, "utf-8") && !strings.EqualFold(c, "us-ascii") || !utf8.Valid(data) || strings.ContainsRune(string(data), 0) {
			return loop.Part{}, fmt.Errorf("data: it is no UTF-8 text; convert it")
		}
		return loop.TextFile(name, kind, string(data)), nil
	}
	return loop.Part{}, fmt.Errorf("media_type %s: not taken; taken are text and image/png, image/jpeg, image/gif and image/webp", kind)
}

func isText(kind string) bool {
	return strings.HasPrefix(kind, "text/") || textTypes[kind] ||
		strings.HasSuffix(kind, "+json") || strings.HasSuffix(kind, "+xml") || strings.HasSuffix(kind, "+yaml")
}

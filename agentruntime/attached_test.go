package agentruntime

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
)

func TestAttachmentsAreBounded(t *testing.T) {
	t.Parallel()
	const png = "\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"
	file := func(name, kind, data string) *agentv1.Attachment {
		return &agentv1.Attachment{Name: name, MediaType: kind, Data: []byte(data)}
	}
	many := make([]*agentv1.Attachment, 17)
	for i := range many {
		many[i] = file("a", "text/plain", "x")
	}
	image := string(png) + strings.Repeat("x", 5<<20-len(png))
	for name, c := range map[string]struct {
		files []*agentv1.Attachment
		want  string // empty where it is taken
	}{
		"text":          {[]*agentv1.Attachment{file("a", "application/ld+json", "{}")}, ""},
		"sixteen":       {many[:16], ""},
		"seventeen":     {many, "17 are over the limit of 16"},
		"largest text":  {[]*agentv1.Attachment{file("a", "text/plain", strings.Repeat("x", 1<<20))}, ""},
		"larger text":   {[]*agentv1.Attachment{file("a", "text/plain", strings.Repeat("x", 1<<20+1))}, "over the limit of 1048576 for text"},
		"two images":    {[]*agentv1.Attachment{file("a", "image/png", image), file("b", "image/png", image)}, ""},
		"larger image":  {[]*agentv1.Attachment{file("a", "image/png", image+"x")}, "over the limit of 5242880 for an image"},
		"all too large": {[]*agentv1.Attachment{file("a", "image/png", image), file("b", "image/png", image), many[0]}, "all together are over the limit of 10485760 bytes"},
		"empty":         {[]*agentv1.Attachment{file("a", "text/plain", "")}, `attachment 1 ("a"): data: there is none`},
		"no type":       {[]*agentv1.Attachment{many[0], file("b", "", "x")}, `attachment 2 ("b"): media_type ""`},
		"other type":    {[]*agentv1.Attachment{file("a.pdf", "application/pdf", "%PDF-1.7")}, "media_type application/pdf: not taken; taken are text and image/png"},
		"not the type":  {[]*agentv1.Attachment{file("a", "image/jpeg", string(png))}, "it is image/png, not image/jpeg"},
		"a script":      {[]*agentv1.Attachment{file("a", "image/png", "<svg/>")}, "it is text/plain; charset=utf-8, not image/png"},
		"no text":       {[]*agentv1.Attachment{file("a", "text/plain", "\xff\xfe")}, "no UTF-8 text"},
		"zero byte":     {[]*agentv1.Attachment{file("a", "text/plain", "a\x00b")}, "no UTF-8 text"},
		"other charset": {[]*agentv1.Attachment{file("a", "text/plain; charset=latin1", "a")}, "no UTF-8 text"},
		"a path":        {[]*agentv1.Attachment{file("../a", "text/plain", "x")}, "name: want 1 to 255 bytes without slashes"},
		"no name":       {[]*agentv1.Attachment{file("", "text/plain", "x")}, "name: want 1 to 255 bytes"},
		"control":       {[]*agentv1.Attachment{file("a\n", "text/plain", "x")}, "control characters"},
	} {
		parts, err := checkAttachments(c.files)
		if c.want == "" && (err != nil || len(parts) != len(c.files)) || c.want != "" && (status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
}

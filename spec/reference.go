package spec

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// ErrInvalidReference is wrapped by every error of ParseReference.
var ErrInvalidReference = errors.New("invalid reference")

// maxReferenceName is the longest name, host included: what registries and file systems take.
const maxReferenceName = 255

// Reference names an image: [host[:port]/]name[:tag][@digest]. Without a host it is in the embedded
// registry.
type Reference struct {
	// Name is the repository, with its host where it has one.
	Name string
	// Tag is empty where none was given.
	Tag string
	// Digest is algorithm:hex, empty where none was given.
	Digest string
}

// The grammar is that of the OCI distribution specification; the digest algorithms are the two
// that are registered.
var (
	repositoryPart = regexp.MustCompile(`^[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*$`)
	hostPattern    = regexp.MustCompile(`^(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?$`)
	tagPattern     = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)
	digestPattern  = regexp.MustCompile(`^(?:sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})$`)
)

// ParseReference reads [host[:port]/]name[:tag][@digest]. It adds nothing: a tag that is not there
// stays empty. Errors wrap ErrInvalidReference.
func ParseReference(s string) (Reference, error) {
	r := Reference{Name: s}
	bad := func(why string, args ...any) (Reference, error) {
		return Reference{}, fmt.Errorf("%w %q: %s", ErrInvalidReference, clip(s), fmt.Sprintf(why, args...))
	}
	if s == "" {
		return bad("it is empty; write name[:tag] or host/name[:tag]")
	}
	if name, digest, ok := strings.Cut(r.Name, "@"); ok {
		if !digestPattern.MatchString(digest) {
			return bad("the digest is not sha256: and 64 or sha512: and 128 lower-case hex digits")
		}
		r.Name, r.Digest = name, digest
	}
	if i := strings.LastIndexByte(r.Name, ':'); i > strings.LastIndexByte(r.Name, '/') {
		r.Name, r.Tag = r.Name[:i], r.Name[i+1:]
		if !tagPattern.MatchString(r.Tag) {
			return bad("the tag %q is not 1 to 128 letters, digits, _, . or -, the first no . or -", clip(r.Tag))
		}
	}
	if len(r.Name) > maxReferenceName {
		return bad("the name has %d bytes, more than %d", len(r.Name), maxReferenceName)
	}
	if host := r.Host(); host != "" && !hostPattern.MatchString(host) {
		return bad("%q is not a host or host:port", host)
	}
	for part := range strings.SplitSeq(r.Repository(), "/") {
		switch {
		case repositoryPart.MatchString(part):
		case part == "":
			return bad("a part of the name is empty")
		case repositoryPart.MatchString(strings.ToLower(part)):
			return bad("%q has capitals; write %q", part, strings.ToLower(part))
		default:
			return bad("%q is not lower-case letters and digits with single . _ or - between", part)
		}
	}
	return r, nil
}

// String prints name[:tag][@digest].
func (r Reference) String() string {
	s := r.Name
	if r.Tag != "" {
		s += ":" + r.Tag
	}
	if r.Digest != "" {
		s += "@" + r.Digest
	}
	return s
}

// Host is the registry's host with its port, and empty for the embedded registry. The first part of
// the name is a host when it has a dot or a colon or is "localhost", and is not the only part.
func (r Reference) Host() string {
	first, _, more := strings.Cut(r.Name, "/")
	if more && (first == "localhost" || strings.ContainsAny(first, ".:")) {
		return first
	}
	return ""
}

// Repository is the name without its host.
func (r Reference) Repository() string {
	if host := r.Host(); host != "" {
		return r.Name[len(host)+1:]
	}
	return r.Name
}

// Identifier is what to ask the repository for: the digest, else the tag, else "latest".
func (r Reference) Identifier() string {
	switch {
	case r.Digest != "":
		return r.Digest
	case r.Tag != "":
		return r.Tag
	}
	return "latest"
}

// WithDefaultTag is r with the tag where r has neither tag nor digest.
func (r Reference) WithDefaultTag(tag string) Reference {
	if r.Tag == "" && r.Digest == "" {
		r.Tag = tag
	}
	return r
}

// clip shortens what an error quotes.
func clip(s string) string {
	const most = 100
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

package daemon

import (
	"regexp"
	"strings"

	"github.com/otters-sh/otters/spec"
)

// What comes from another registry is kept in a repository of the embedded one that starts with the
// host. A repository's name has no colon and a host no underscore, so host:port is kept as host__port.

var storedPort = regexp.MustCompile(`^([a-z0-9.-]+)__([0-9]{1,5})$`)

// storedRepository is the repository of the embedded registry for ref.
func storedRepository(ref spec.Reference) string {
	host := ref.Host()
	if host == "" {
		return ref.Name
	}
	return strings.ReplaceAll(strings.ToLower(host), ":", "__") + "/" + ref.Repository()
}

// storeName is ref as the store calls it: repository:tag or repository@digest.
func storeName(ref spec.Reference) string {
	if ref.Digest != "" {
		return storedRepository(ref) + "@" + ref.Digest
	}
	return storedRepository(ref) + ":" + ref.Identifier()
}

// pinnedTag names what was pulled by digest alone, so that it is kept.
var pinnedTag = regexp.MustCompile(`:pinned\.(sha256)\.([0-9a-f]{64})$`)

// keptName is storeName, or for a digest the tag that keeps it.
func keptName(ref spec.Reference) string {
	if ref.Digest == "" {
		return storeName(ref)
	}
	tag := "pinned." + strings.Replace(ref.Digest, ":", ".", 1)
	return storedRepository(ref) + ":" + tag[:min(len(tag), 128)]
}

// shownName undoes storedRepository in a repository or reference of the store, and keptName.
func shownName(stored string) string {
	stored = pinnedTag.ReplaceAllString(stored, "@$1:$2")
	first, rest, ok := strings.Cut(stored, "/")
	if m := storedPort.FindStringSubmatch(first); ok && m != nil {
		return m[1] + ":" + m[2] + "/" + rest
	}
	return stored
}

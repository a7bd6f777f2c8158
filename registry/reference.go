package registry

import (
	_ "crypto/sha256" // the digest algorithms taken
	_ "crypto/sha512"
	"fmt"
	"regexp"
	"strings"

	"github.com/opencontainers/go-digest"
	"oras.land/oras-go/v2/errdef"
)

// Grammar of distribution-spec 1.1, "Pulling manifests".
var (
	namePattern = regexp.MustCompile(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)
	tagPattern  = regexp.MustCompile(`^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}$`)
)

// nameLimit keeps host and name together within what clients take.
const nameLimit = 255

func checkName(name string) error {
	if len(name) > nameLimit {
		return fmt.Errorf("repository name: %d bytes, at most %d are allowed: %w", len(name), nameLimit, errdef.ErrInvalidReference)
	}
	if !namePattern.MatchString(name) {
		return fmt.Errorf("repository name %q: want lower case letters and digits, separated by '.', '_', '__', '-' or '/': %w",
			name, errdef.ErrInvalidReference)
	}
	return nil
}

func checkTag(tag string) error {
	if !tagPattern.MatchString(tag) {
		return fmt.Errorf("tag %q: want at most 128 letters, digits, '_', '.' or '-', not starting with '.' or '-': %w",
			abbreviate(tag), errdef.ErrInvalidReference)
	}
	return nil
}

func checkDigest(d digest.Digest) error {
	algorithm, _, found := strings.Cut(string(d), ":")
	if !found {
		return fmt.Errorf("digest %q: want algorithm:hex: %w", abbreviate(string(d)), errdef.ErrInvalidDigest)
	}
	if algorithm != string(digest.SHA256) && algorithm != string(digest.SHA512) {
		return fmt.Errorf("digest algorithm %q: sha256 and sha512 are supported: %w", abbreviate(algorithm), errdef.ErrInvalidDigest)
	}
	if err := d.Validate(); err != nil {
		return fmt.Errorf("digest %q: not %s in lower case hex: %w", abbreviate(string(d)), algorithm, errdef.ErrInvalidDigest)
	}
	return nil
}

// abbreviate keeps what a caller sent from filling a message.
func abbreviate(s string) string {
	if len(s) > 160 {
		return s[:160] + "…"
	}
	return s
}

// splitReference parts "repository:tag" and "repository@digest". One of tag and dgst is set.
func splitReference(ref string) (name, tag string, dgst digest.Digest, err error) {
	if before, after, found := strings.Cut(ref, "@"); found {
		name, dgst = before, digest.Digest(after)
		err = checkDigest(dgst)
	} else if i := strings.LastIndexByte(ref, ':'); i >= 0 {
		name, tag = ref[:i], ref[i+1:]
		err = checkTag(tag)
	} else {
		err = fmt.Errorf("want repository:tag or repository@digest: %w", errdef.ErrInvalidReference)
	}
	if err == nil {
		err = checkName(name)
	}
	if err != nil {
		return "", "", "", fmt.Errorf("reference %q: %w", abbreviate(ref), err)
	}
	return name, tag, dgst, nil
}

package gate

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

// tokenBytes of randomness make a token unguessable however often it is tried.
const tokenBytes = 32

// maxToken bounds what is hashed for a stranger, in bytes.
const maxToken = 4096

// NewToken makes a secret of 32 random bytes, written as prefix and 43 characters of base64url. The
// prefix tells people and scanners what it opens ("otr_").
func NewToken(prefix string) (string, error) {
	var b [tokenBytes]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", fmt.Errorf("make a token: %w", err)
	}
	return prefix + base64.RawURLEncoding.EncodeToString(b[:]), nil
}

// TokenHash is what is kept of a token: its SHA-256. Tokens of NewToken have enough randomness to
// need no salt.
func TokenHash(token string) [32]byte { return sha256.Sum256([]byte(token)) }

// TokenMatches tells in constant time whether token is the one that hash was made of. The zero hash
// matches nothing, nor does an empty token or one of more than 4096 bytes.
func TokenMatches(hash [32]byte, token string) bool {
	if token == "" || len(token) > maxToken || hash == ([32]byte{}) {
		return false
	}
	got := TokenHash(token)
	return subtle.ConstantTimeCompare(hash[:], got[:]) == 1
}

// BearerToken is the token of a request's only Authorization header of scheme Bearer. It is false
// when there is none, another scheme, or more than one header.
func BearerToken(h http.Header) (string, bool) {
	values := h.Values("Authorization")
	if len(values) != 1 {
		return "", false
	}
	scheme, token, ok := strings.Cut(values[0], " ")
	token = strings.TrimSpace(token)
	if !ok || !strings.EqualFold(scheme, "Bearer") || token == "" || len(token) > maxToken {
		return "", false
	}
	return token, true
}

// WriteTokenFile writes token and a newline to path with mode 0600. The file appears whole or not at
// all, replaces what was there (a symlink is replaced, not followed), and is never readable by
// others, not for a moment.
func WriteTokenFile(path, token string) (err error) {
	dir := filepath.Dir(path)
	// CreateTemp makes the file 0600 and refuses to open one that exists.
	f, err := os.CreateTemp(dir, ".token-*")
	if err != nil {
		return fmt.Errorf("write token file: %w", err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("write token file %s: %w", path, err)
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.WriteString(token + "\n")
	if err == nil {
		err = f.Chmod(0o600)
	}
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	return err
}

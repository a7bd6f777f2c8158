package system

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/go-git/go-billy/v5"

	"github.com/otters-sh/otters/workspace"
)

const (
	sealKeyFile = "seal.key"
	// sealKeySize is AES-256's.
	sealKeySize = 32
)

// sealer encrypts what a handle must not show: AES-256-GCM with a random nonce in front.
type sealer struct {
	aead cipher.AEAD
}

func newSealer(key []byte) (*sealer, error) {
	if len(key) != sealKeySize {
		return nil, fmt.Errorf("seal key: %d bytes, want %d", len(key), sealKeySize)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("seal key: %w", err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, fmt.Errorf("seal key: %w", err)
	}
	return &sealer{aead: aead}, nil
}

// seal binds plain to what it is for, so that sealed values can't be swapped between agents.
func (s *sealer) seal(plain []byte, purpose string) []byte {
	return s.aead.Seal(nil, nil, plain, []byte(purpose))
}

func (s *sealer) open(sealed []byte, purpose string) ([]byte, error) {
	plain, err := s.aead.Open(nil, nil, sealed, []byte(purpose))
	if err != nil {
		return nil, errors.New("sealed value does not open: the seal key is another one, or the value was changed")
	}
	return plain, nil
}

// readSealKey reads the key kept in fs, and makes it the first time.
func readSealKey(fs billy.Filesystem) ([]byte, error) {
	f, err := fs.Open(sealKeyFile)
	if errors.Is(err, os.ErrNotExist) {
		key := make([]byte, sealKeySize)
		rand.Read(key)
		if err := workspace.WriteFile(fs, sealKeyFile, key, 0o600, true); err != nil {
			return nil, fmt.Errorf("seal key: %w", err)
		}
		return key, nil
	}
	if err != nil {
		return nil, fmt.Errorf("seal key: %w", err)
	}
	defer f.Close()
	key, err := io.ReadAll(io.LimitReader(f, sealKeySize+1))
	if err != nil {
		return nil, fmt.Errorf("seal key: %w", err)
	}
	return key, nil
}

package agentoci

import (
	"fmt"
	"strings"

	digest "github.com/opencontainers/go-digest"

	"github.com/otters-sh/otters/spec"
)

// Link is one parent of an image.
type Link struct {
	// Name is what FROM called it, without a digest.
	Name   string
	Digest digest.Digest
}

// parseChain reads the annotation of AnnotationChain: name@digest words, nearest parent first.
func parseChain(s string) ([]Link, error) {
	words := strings.Fields(s)
	if len(words) > spec.MaxDepth {
		return nil, fmt.Errorf("%w: %d parents, more than %d", ErrChain, len(words), spec.MaxDepth)
	}
	var chain []Link
	for _, word := range words {
		ref, err := spec.ParseReference(word)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrChain, err)
		}
		if ref.Digest == "" {
			return nil, fmt.Errorf("%w: %q has no digest", ErrChain, word)
		}
		d := digest.Digest(ref.Digest)
		ref.Digest = ""
		chain = append(chain, Link{Name: ref.String(), Digest: d})
	}
	return chain, checkChain(chain)
}

func formatChain(chain []Link) string {
	words := make([]string, len(chain))
	for i, l := range chain {
		words[i] = l.Name + "@" + l.Digest.String()
	}
	return strings.Join(words, " ")
}

// checkChain refuses more than MaxDepth parents, and one that is its own parent's parent. The name
// alone says nothing: a tag may be rebuilt on its older self.
func checkChain(chain []Link) error {
	if len(chain) > spec.MaxDepth {
		return fmt.Errorf("%w: %d parents, more than %d; build on one that is nearer to scratch", ErrChain, len(chain), spec.MaxDepth)
	}
	seen := map[digest.Digest]bool{}
	for _, l := range chain {
		if seen[l.Digest] {
			return fmt.Errorf("%w: a cycle: %s@%s is there twice", ErrChain, l.Name, l.Digest)
		}
		seen[l.Digest] = true
	}
	return nil
}

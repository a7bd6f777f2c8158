package agentruntime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/otters-sh/otters/workspace"
)

const (
	// maxPrompt bounds the documents of a system prompt, in bytes.
	maxPrompt = 4 << 20
	// defaultPromptBudget is about 16,000 tokens, in bytes.
	defaultPromptBudget = 64 << 10
	// largestNamed is how many documents a warning about the size names.
	largestNamed = 3
)

// generated are the documents with facts about the agent. They come before its own contexts, in this
// order.
var generated = []string{"AGENT", "WORKSPACE", "MOUNTS"}

// systemText is the part of a system prompt that never changes while the runtime runs: facts, contexts,
// skills. Their order never changes, so that providers can cache them.
type systemText struct {
	text  string
	parts []partSize
}

// partSize is how many bytes a document takes.
type partSize struct {
	name string
	size int
}

func readSystem(root *os.Root, contexts []workspace.Context, skills []skill) (systemText, error) {
	var b strings.Builder
	var s systemText
	add := func(name, text string) error {
		before := b.Len()
		appendDocument(&b, name, text)
		s.parts = append(s.parts, partSize{name, b.Len() - before})
		if b.Len() > maxPrompt {
			return fmt.Errorf("context %s: all contexts together are longer than %d bytes", name, maxPrompt)
		}
		return nil
	}
	for _, name := range generated {
		text, err := readDocument(root, workspace.ContextFile(name), maxDocument)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = add(name, text)
		}
		if err != nil {
			return s, fmt.Errorf("context %s: %w", name, err)
		}
	}
	for _, c := range contexts {
		text, err := readDocument(root, c.File, maxDocument)
		if err != nil {
			return s, fmt.Errorf("context %s: %w", c.Name, err)
		}
		if err := add(c.Name, text); err != nil {
			return s, err
		}
	}
	if len(skills) > 0 {
		if err := add("skills", skillList(skills)); err != nil {
			return s, err
		}
	}
	s.text = b.String()
	return s, nil
}

func appendDocument(b *strings.Builder, name, text string) {
	if b.Len() > 0 {
		b.WriteString("\n\n")
	}
	fmt.Fprintf(b, "<document name=%q>\n%s\n</document>", name, strings.TrimSpace(text))
}

// systemPrompt is the agent's own text with the pinned notes above or below.
func (s *service) systemPrompt(ctx context.Context, st *store) (string, error) {
	notes, err := s.noteText(ctx, st)
	if err != nil || notes == "" {
		return s.system.text, err
	}
	parts := []string{s.system.text, notes}
	if s.section == sectionAbove {
		parts[0], parts[1] = parts[1], parts[0]
	}
	return strings.TrimSpace(strings.Join(parts, "\n\n")), nil
}

// noteText is the pinned notes as they stand in the system prompt.
func (s *service) noteText(ctx context.Context, st *store) (string, error) {
	if s.section == sectionOff {
		return "", nil
	}
	pinned, err := st.notes(ctx, true)
	if err != nil {
		return "", err
	}
	return section(pinned), nil
}

// overBudget warns where the system prompt is larger than its budget, which is a bound on nothing: all
// of it is sent.
func (s *service) overBudget(notes string) []string {
	total := len(s.system.text) + len(notes)
	if total <= s.budget {
		return nil
	}
	parts := append(slices.Clone(s.system.parts), partSize{"notes", len(notes)})
	slices.SortStableFunc(parts, func(a, b partSize) int { return b.size - a.size })
	var largest []string
	for _, p := range parts[:min(len(parts), largestNamed)] {
		if p.size > 0 {
			largest = append(largest, fmt.Sprintf("%s %d", p.name, p.size))
		}
	}
	return []string{fmt.Sprintf("system prompt: %d bytes are over the prompt-budget of %d; the largest are %s", total, s.budget, strings.Join(largest, ", "))}
}

// currentWarnings are what an operator must know and no prompt fails for.
func (s *service) currentWarnings(ctx context.Context) ([]string, error) {
	st, err := s.store.wait(ctx)
	if err != nil {
		return nil, err
	}
	notes, err := s.noteText(ctx, st)
	if err != nil {
		return nil, err
	}
	return slices.Concat(s.warnings, st.damage, s.overBudget(notes)), nil
}

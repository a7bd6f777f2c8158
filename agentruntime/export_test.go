package agentruntime

import (
	"context"
	"reflect"
)

// KnownKeys are the CONFIG keys.
var KnownKeys = knownKeys

// EndsSentence tells whether a text is stored at once.
var EndsSentence = endsSentence

// SameSettings tells whether configs change nothing.
func SameSettings(configs map[string]string) (bool, error) {
	s, err := readSettings(configs)
	def, derr := readSettings(nil)
	if err == nil {
		err = derr
	}
	return reflect.DeepEqual(s, def), err
}

// Attachments are how many files and images are read of a session for a list of its messages, and how
// many there are.
func (s *Sessions) Attachments(ctx context.Context, session string) (listed, all int, err error) {
	turns, err := s.store.turns(ctx, session, maxListMessages, shown)
	for _, t := range turns {
		listed += len(t.messages[0].Attachments())
	}
	if err == nil {
		turns, err = s.store.turns(ctx, session, maxListMessages, nil)
	}
	for _, t := range turns {
		all += len(t.messages[0].Attachments())
	}
	return listed, all, err
}

package agentruntime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/otters-sh/otters/loop"
)

// Strategies of memory: what becomes of the turns that are too many.
const (
	slide     = "slide"
	summarize = "summarize"
)

// memory says how much of a session a model gets.
type memory struct {
	strategy  string
	window    int // turns
	maxTokens int // 0 is no bound
}

// maxTurns bounds how many turns are read at once; more are made into a summary before.
const maxTurns = 6000

// conversation is what a turn builds on, and what it takes to make it shorter.
type conversation struct {
	store    *store
	model    loop.Model
	memory   memory
	session  string
	turn     *turn // the one that builds on it
	metadata map[string]string

	before  int64 // the prompt that is answered
	summary summary
	turns   []storedTurn
}

var _ loop.Store = (*conversation)(nil)

// History is loop.Store's: it reads the conversation and makes it fit. The prompt is stored before, since
// a summary can take long.
func (c *conversation) History(ctx context.Context) ([]loop.Message, error) {
	if err := c.open(ctx); err != nil {
		return nil, fmt.Errorf("%w: %w", errRecord, err)
	}
	return c.messages(), nil
}

func (c *conversation) open(ctx context.Context) error {
	c.before = cmp.Or(c.turn.prompt, c.turn.id)
	limit := c.memory.window
	if c.memory.strategy == summarize {
		limit = maxTurns
	}
	if limit == 0 {
		return nil
	}
	var err error
	if c.summary, err = c.store.summary(ctx, c.session, c.before); err != nil {
		return err
	}
	if c.turns, err = c.store.activeTurns(ctx, c.session, c.summary.upto, c.before, limit); err != nil {
		return err
	}
	switch {
	case c.fits():
	case c.memory.strategy == slide:
		for len(c.turns) > 1 && !c.fits() {
			c.turns = c.turns[1:]
		}
	default:
		if err := c.compact(ctx, c.half()); err != nil && ctx.Err() != nil {
			return err
		} else if err != nil {
			// The model gets what it would get of a sliding window, and is asked again next time.
			for len(c.turns) > 1 && !c.fits() {
				c.turns = c.turns[1:]
			}
		}
	}
	return nil
}

func (c *conversation) fits() bool {
	return len(c.turns) <= max(1, c.memory.window) && (c.memory.maxTokens == 0 || loop.EstimateTokens(c.messages()) <= c.memory.maxTokens)
}

// half is how many of the newest turns stay as they are when the others become a summary.
func (c *conversation) half() int {
	keep := min(max(1, c.memory.window/2), len(c.turns)-1)
	for keep > 1 && c.memory.maxTokens > 0 && loop.EstimateTokens(messagesOf(c.turns[len(c.turns)-keep:])) > c.memory.maxTokens/2 {
		keep--
	}
	return keep
}

// compact makes all but the newest keep turns into a summary, or leaves them out where memory slides.
// They stay in the session.
func (c *conversation) compact(ctx context.Context, keep int) error {
	covered := c.turns[:max(0, len(c.turns)-keep)]
	if len(covered) == 0 {
		return errors.New("there is nothing to leave out")
	}
	sum := summary{upto: covered[len(covered)-1].prompt}
	if c.memory.strategy == summarize {
		var err error
		history := append(c.summary.messages(), messagesOf(covered)...)
		if sum.text, err = loop.Summarize(ctx, c.model, history, c.metadata); err != nil {
			return fmt.Errorf("summary: %w", err)
		}
	}
	if err := c.store.saveSummary(ctx, c.session, sum, time.Now().Unix()); err != nil {
		return fmt.Errorf("%w: %w", errRecord, err)
	}
	c.summary, c.turns = sum, c.turns[len(covered):]
	return nil
}

// overflow is loop.Turn's Compact: half of the turns stay, the newest.
func (c *conversation) overflow(ctx context.Context) ([]loop.Message, error) {
	if err := c.compact(ctx, len(c.turns)/2); err != nil {
		return nil, err
	}
	return c.messages(), nil
}

func (c *conversation) messages() []loop.Message {
	return append(c.summary.messages(), messagesOf(c.turns)...)
}

func (s summary) messages() []loop.Message {
	if s.text == "" {
		return nil
	}
	return []loop.Message{loop.UserMessage("Summary of our conversation until here:\n" + s.text)}
}

// messagesOf are the messages of turns, consistent.
func messagesOf(turns []storedTurn) []loop.Message {
	var history []loop.Message
	for _, t := range turns {
		history = append(history, t.messages...)
	}
	return loop.Repair(history, "interrupted: it is not known whether the call ran to its end")
}

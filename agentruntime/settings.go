package agentruntime

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/otters-sh/otters/loop"
	"github.com/otters-sh/otters/loop/anthropic"
)

// defaultMaxMessages is the history window where memory-max-messages is not set.
const defaultMaxMessages = 20

// settings are the CONFIG keys in force.
type settings struct {
	maxTokens     int
	maxIterations int
	maxMessages   int
	memoryTokens  int // 0 is no bound
	strategy      string
	section       string // where pinned notes stand
	notes         noteLimits
	maxTurnTokens int
	maxRepeats    int
	objectTries   int
	promptBudget  int // bytes
	maxOutput     int // bytes
	timeout       time.Duration
	softTimeout   time.Duration // 0 is five sixths of timeout
	toolTimeout   time.Duration
	params        loop.Params
	thinking      anthropic.Thinking
}

// readSettings takes every key of configs or says why it cannot. Errors wrap ErrConfig.
func readSettings(configs map[string]string) (settings, error) {
	s := settings{
		maxTokens:     loop.DefaultMaxTokens,
		maxIterations: loop.DefaultMaxIterations,
		maxMessages:   defaultMaxMessages,
		strategy:      slide,
		section:       sectionBelow,
		notes:         noteLimits{bytes: defaultNoteBytes, count: defaultNoteCount},
		maxTurnTokens: loop.DefaultMaxTurnTokens,
		maxRepeats:    loop.DefaultRepeatLimit,
		objectTries:   loop.DefaultObjectTries,
		promptBudget:  defaultPromptBudget,
		maxOutput:     loop.DefaultMaxOutput,
		timeout:       loop.DefaultTimeout,
		toolTimeout:   loop.DefaultToolTimeout,
	}
	for _, key := range slices.Sorted(maps.Keys(configs)) {
		if err := s.set(key, configs[key]); err != nil {
			return s, fmt.Errorf("%w: config %s: %w", ErrConfig, key, err)
		}
	}
	if s.softTimeout >= s.timeout {
		return s, fmt.Errorf("%w: config turn-soft-timeout: %s is not below turn-timeout, which is %s", ErrConfig, s.softTimeout, s.timeout)
	}
	return s, nil
}

func (s *settings) set(key, value string) (err error) {
	switch key {
	case "max-tokens":
		s.maxTokens, err = integer(value, 1, 1<<20)
	case "max-iterations":
		s.maxIterations, err = integer(value, 1, 1000)
	case "max-turn-tokens":
		s.maxTurnTokens, err = integer(value, 1, 1<<30)
	case "max-repeats":
		s.maxRepeats, err = integer(value, 1, 1000)
	case "prompt-budget":
		s.promptBudget, err = integer(value, 1024, maxPrompt)
	case "object-tries":
		s.objectTries, err = integer(value, 1, 10)
	case "turn-timeout":
		s.timeout, err = duration(value)
	case "turn-soft-timeout":
		s.softTimeout, err = duration(value)
	case "tool-timeout":
		s.toolTimeout, err = duration(value)
	case "tool-max-output":
		s.maxOutput, err = integer(value, 256, 16<<20)
	case "memory-max-messages":
		s.maxMessages, err = integer(value, 1, 10000)
	case "temperature":
		s.params.Temperature, err = number(value, 0, 2)
	case "top-p":
		s.params.TopP, err = number(value, 0, 1)
	case "presence-penalty":
		s.params.PresencePenalty, err = number(value, -2, 2)
	case "frequency-penalty":
		s.params.FrequencyPenalty, err = number(value, -2, 2)
	case "memory-strategy":
		s.strategy, err = value, oneOf(value, slide, summarize)
	case "memory-max-tokens":
		s.memoryTokens, err = integer(value, 0, 1<<30)
	case "notes-prompt-section":
		s.section, err = value, oneOf(value, sectionOff, sectionAbove, sectionBelow)
	case "notes-max-bytes-per":
		s.notes.bytes, err = integer(value, 1, maxNoteBytes)
	case "notes-max-count":
		s.notes.count, err = integer(value, 1, maxNoteCount)
	case "top-k":
		s.params.TopK, err = wholeNumber(value, 1, 1<<20)
	case "thinking":
		s.thinking, err = thinking(value)
	default:
		err = fmt.Errorf("unknown key; known are %s", strings.Join(knownKeys, ", "))
	}
	return err
}

// knownKeys are the keys that can be set.
var knownKeys = []string{
	"max-tokens", "max-iterations", "max-turn-tokens", "max-repeats", "object-tries", "prompt-budget", "turn-timeout", "turn-soft-timeout", "tool-timeout",
	"tool-max-output", "memory-strategy", "memory-max-messages", "memory-max-tokens", "temperature",
	"top-p", "top-k", "thinking", "presence-penalty", "frequency-penalty", "notes-prompt-section", "notes-max-bytes-per", "notes-max-count",
}

func oneOf(value string, known ...string) error {
	if slices.Contains(known, value) {
		return nil
	}
	return fmt.Errorf("bad value %q; want %s", value, strings.Join(known, " or "))
}

func integer(value string, low, high int) (int, error) {
	v, err := strconv.Atoi(value)
	if err != nil || v < low || v > high {
		return 0, fmt.Errorf("bad value %q; want a whole number from %d to %d", value, low, high)
	}
	return v, nil
}

func wholeNumber(value string, low, high int) (*int, error) {
	v, err := integer(value, low, high)
	return &v, err
}

// thinking takes off, adaptive, or a number of tokens.
func thinking(value string) (anthropic.Thinking, error) {
	switch value {
	case "off":
		return anthropic.ThinkingOff, nil
	case "adaptive":
		return anthropic.ThinkingAdaptive, nil
	}
	v, err := integer(value, anthropic.MinThinkingBudget, 1<<20)
	if err != nil {
		return 0, fmt.Errorf("bad value %q; want off, adaptive or a number of tokens from %d to %d", value, anthropic.MinThinkingBudget, 1<<20)
	}
	return anthropic.Thinking(v), nil
}

// duration takes 1s to 24h, written as Go writes durations.
func duration(value string) (time.Duration, error) {
	v, err := time.ParseDuration(value)
	if err != nil || v < time.Second || v > 24*time.Hour {
		return 0, fmt.Errorf("bad value %q; want a duration from 1s to 24h, such as 90s or 1h30m", value)
	}
	return v, nil
}

func number(value string, low, high float64) (*float64, error) {
	v, err := strconv.ParseFloat(value, 64)
	if err != nil || !(v >= low && v <= high) {
		return nil, fmt.Errorf("bad value %q; want a number from %g to %g", value, low, high)
	}
	return &v, nil
}

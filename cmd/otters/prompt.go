package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/otters-sh/otters/client"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// maxPrompt bounds a prompt in bytes; the daemon takes messages of up to 4 MiB.
const maxPrompt = 1 << 20

func (a *app) promptCommand() *cobra.Command {
	var session string
	cmd := &cobra.Command{
		Use:   "prompt [--session S] AGENT [TEXT]",
		Short: "Send a prompt to an agent and print the answer as it comes",
		Long: `Send a prompt to an agent and print the answer as it comes.

Without TEXT, or where it is "-", the prompt is read from standard input, at most 1 MiB. The
answer's text goes to standard output; tool calls, results and times to standard error. Ctrl-C
cancels the turn. Succeeds only when the turn came to its end (reason "done").`,
		Args:              between(1, 2),
		ValidArgsFunction: a.completeAgents,
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := a.promptText(cmd.Context(), args[1:])
			if err != nil {
				return err
			}
			return a.with(cmd.Context(), func(c *client.Client) error {
				t := &turn{text: a.out, notes: a.err, neutralise: a.outTerm, style: newStyle(a.errTerm)}
				req := &daemonv1.PromptRequest{Agent: args[0], SessionId: session, Text: text}
				if err := t.play(cmd.Context(), c, req); err != nil {
					return err
				}
				return t.summary()
			})
		},
	}
	cmd.Flags().StringVar(&session, "session", "", "`id` of the session to go on with (default: a new one)")
	return cmd
}

// promptText is the prompt of the command line or of standard input.
func (a *app) promptText(ctx context.Context, args []string) (string, error) {
	text := "-"
	if len(args) > 0 {
		text = args[0]
	}
	if text == "-" {
		if a.inTerm {
			fmt.Fprintln(a.err, "reading the prompt from standard input; Ctrl-D ends it")
		}
		var err error
		if text, err = readText(ctx, a.in, "prompt", maxPrompt); err != nil {
			return "", err
		}
	}
	switch {
	case strings.TrimSpace(text) == "":
		return "", usagef("prompt: the text is empty; give it as the last argument or on standard input")
	case len(text) > maxPrompt:
		return "", usagef("prompt: the text has more than %d bytes; give less, or put it into a file of the workspace", maxPrompt)
	case !utf8.ValidString(text):
		return "", usagef("prompt: the text is not valid UTF-8; convert it first")
	}
	return text, nil
}

// readText reads at most one byte more than most. It returns early when ctx ends; the reader it leaves
// behind ends with the program.
func readText(ctx context.Context, in io.Reader, what string, most int64) (string, error) {
	type result struct {
		text []byte
		err  error
	}
	done := make(chan result, 1)
	go func() {
		text, err := io.ReadAll(io.LimitReader(in, most+1))
		done <- result{text, err}
	}()
	select {
	case r := <-done:
		if r.err != nil {
			return "", fmt.Errorf("%s: standard input: %w", what, r.err)
		}
		return string(r.text), nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// endings say what a person can do about a turn that did not come to its end.
var endings = map[string]string{
	"max_iterations": "ask for less at a time, or raise CONFIG max-iterations",
	"max_tokens":     "ask for less at a time, or raise CONFIG max-tokens",
	"timeout":        "ask for less at a time",
	"repeat":         "the model asked for the same again and again: word the prompt differently",
	"cancelled":      "send the prompt again",
	"denied":         "a call was refused: see what was said above",
	"budget":         "raise the budget, or wait for the next period",
	"model_error":    "see `otters logs`, and whether the model is reachable",
	"interrupted":    "the runtime ended during the turn: see `otters logs`",
}

// ended makes the error of a turn that ended for another reason than being done.
func ended(agent, reason, said string) error {
	why := "the turn ended early: " + reason
	if said != "" {
		why += ": " + said
	}
	if hint := endings[reason]; hint != "" {
		why += "; " + hint
	}
	return errors.New("prompt " + agent + ": " + why)
}
